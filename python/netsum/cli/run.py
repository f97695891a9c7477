"""`netsum run`."""

import contextlib
import importlib.util
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from netsum import plan as planner
from netsum._core import PROTOCOLS
from netsum.cli.output import errors, stop_on_termination
from netsum.fabric.builtin import demo_description
from netsum.fabric.description import Description, parts
from netsum.fabric.errors import FabricError
from netsum.fabric.local import LocalFabric, controller_status, temporary
from netsum.launch import Workers
from netsum.plan import PlanError
from netsum.reports import JobStatus


def run(
    script: Annotated[Path, typer.Argument(help="the training script; its arguments follow")],
    arguments: Annotated[list[str] | None, typer.Argument(help="passed to the script")] = None,
    count: Annotated[
        int | None, typer.Option("-n", "--workers", min=1, max=1024, help="workers on this machine; 2, or the plan's")
    ] = None,
    fabric: Annotated[Path | None, typer.Option(help="fabric file; the fabric is started if it is not running")] = None,
    protocol: Annotated[str, typer.Option(help=f"{', '.join(PROTOCOLS)}: the controller chooses")] = "panama",
    tenant: Annotated[str, typer.Option(help="tenant of the job, from the fabric file")] = "",
    encrypt: Annotated[bool, typer.Option("--encrypt", help="encrypt the values in packets and messages")] = False,
    plan: Annotated[Path | None, typer.Option(help="tree plan for allreduces, instead of a fabric")] = None,
    topology: Annotated[str | None, typer.Option(help="the plan's fabric, for new plans after link failures")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="without torchrun: scripts for JAX, Keras or NumPy")] = False,
) -> None:
    """Run a script as N workers on a fabric.

    By torchrun, or with --plain without it; the exit code is the script's. The fabric is that of --fabric, or of
    NETSUM_CONTROLLER, or else a local one that is stopped after the script. With --plan there is no fabric: one worker
    runs per GPU, and allreduces use the plan's trees (`netsum plan pack --out`).
    """
    if not plain and importlib.util.find_spec("torch") is None:
        raise FabricError(
            "`netsum run` starts scripts by torchrun, and torch is not installed: `pip install 'netsum[torch]'`, or "
            "--plain for scripts without it"
        )
    if not script.is_file():
        raise FabricError(f"{script}: no such script")
    if protocol not in PROTOCOLS:
        raise FabricError(f"--protocol {protocol}: use one of {', '.join(PROTOCOLS)}")
    if plan is not None and fabric is not None:
        raise FabricError("--plan and --fabric exclude each other; leave one of them out")
    stop_on_termination()
    settings = {"NETSUM_PROTOCOL": protocol, "NETSUM_TENANT": tenant} | ({"NETSUM_ENCRYPT": "on"} if encrypt else {})
    # Unlike torchrun's run id, people can read it.
    settings["NETSUM_JOB"] = os.environ.get("NETSUM_JOB") or f"{script.stem[:64]}-{os.getpid()}"
    with _planned(plan, topology, count) if plan else on_fabric(fabric, settings, count) as (count, environment):
        address, credentials = environment["NETSUM_CONTROLLER"], environment.get("NETSUM_CREDENTIALS")
        before = {job["job"] for job in _jobs(address, credentials)} if address else set()
        workers = Workers([str(script), *(arguments or [])], count, environment, plain=plain)
        try:
            if protocol == "auto" and address:
                _explain(address, credentials, before, workers)
            code = workers.wait()
        finally:
            workers.stop()
    raise typer.Exit(code)


def _jobs(address: str, credentials: str | None) -> list[JobStatus]:
    return controller_status(address, credentials=credentials)["jobs"]


def _explain(address: str, credentials: str | None, before: set[int], workers: Workers) -> None:
    """Print the protocol that the controller chose for these workers' jobs, and the reason, once there is a plan."""
    while workers.poll() is None:
        jobs = [job for job in _jobs(address, credentials) if job["job"] not in before and job["epoch"]]
        if jobs:
            for job in jobs:
                errors.print(f"protocol {job['protocol']}: {job['choice']}", highlight=False, soft_wrap=True)
            return
        time.sleep(0.2)


@contextlib.contextmanager
def _planned(plan: Path, topology: str | None, count: int | None) -> Iterator[tuple[int, dict[str, str]]]:
    """Number of workers and their environment for a tree plan. Errors in the plan are reported here if possible."""
    try:
        ranks = len(json.loads(plan.read_text())["gpus"])
    except OSError as error:
        raise PlanError(f"{plan}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise PlanError(f"{plan}: is no tree plan; write one by `netsum plan pack … --out {plan}`") from error
    if count not in (None, ranks):
        raise PlanError(f"{plan} has {ranks} ranks, but -n is {count}; leave -n out")
    environment = {"NETSUM_PLAN": str(plan.resolve()), "NETSUM_CONTROLLER": ""}
    if topology is not None:
        path = Path(topology)
        planner.topology(planner.Selection(topology))  # Report an error here rather than on every rank.
        environment["NETSUM_PLAN_TOPOLOGY"] = str(path.resolve()) if path.exists() else topology
    yield ranks, environment


@contextlib.contextmanager
def on_fabric(file: Path | None, settings: dict[str, str], count: int | None) -> Iterator[tuple[int, dict[str, str]]]:
    """Number of workers and their environment on a fabric: of `file`, of NETSUM_CONTROLLER, or a temporary one."""
    with _controller(file) as environment:
        yield count or 2, environment | settings


@contextlib.contextmanager
def _controller(file: Path | None) -> Iterator[dict[str, str]]:
    """The variables that name a reachable controller, for the duration of a `with` block."""
    given = os.environ.get("NETSUM_CONTROLLER")
    if file is None and given:
        controller_status(given)
        yield {"NETSUM_CONTROLLER": given}
        return
    description = Description.read(file) if file else demo_description()
    running = LocalFabric(description)
    if running.running():
        running.status()
        yield running.environment()
        return
    with temporary(description) as fabric:
        errors.print(f"started fabric '{description.name}' ({parts(description)})", highlight=False)
        yield fabric.environment()
