"""`netsum why`."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from netsum.cli.controller import FabricOption, controller_of
from netsum.cli.output import console, print_json
from netsum.diagnosis.asking import WhyError, of_controller, of_sockets
from netsum.diagnosis.evidence import Case
from netsum.diagnosis.verdict import WELL, judge
from netsum.diagnosis.words import as_json, lines
from netsum.fabric.errors import FabricError


def why(
    job: Annotated[
        str | None,
        typer.Argument(help="number of a job of the controller, or name of a group of this host's processes"),
    ] = None,
    fabric: FabricOption = None,
    json: Annotated[bool, typer.Option("--json", help="the verdict as JSON on standard output")] = False,
) -> None:
    """Say why a running job is slow or stuck.

    Who waits for whom, where in the program, and what kind of fault it is. Asks the ranks over the controller; without
    one, or if it does not answer, the processes of this host. Exit code 1 if something is wrong.
    """
    began = time.monotonic()
    case = _case(job, fabric)
    verdict = judge(case)
    if json:
        print_json(as_json(case, verdict, time.monotonic() - began))
    else:
        for line in lines(case, verdict):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if verdict.fault != WELL:
        raise typer.Exit(1)


def _case(job: str | None, fabric: Path | None) -> Case:
    if job is not None and not job.isdigit():
        return of_sockets(job, *_controller(fabric))
    if fabric is None and "NETSUM_CONTROLLER" not in os.environ and job is None:
        return of_sockets(None)
    address, credentials = controller_of(fabric)
    try:
        return of_controller(address, int(job) if job else None, credentials)
    except FabricError as error:
        # The controller may be what is wrong.
        try:
            return of_sockets(None, job=int(job) if job else None)
        except WhyError:
            raise error from None


def _controller(fabric: Path | None) -> tuple[str | None, Path | None]:
    if fabric is None and "NETSUM_CONTROLLER" not in os.environ:
        return (None, None)
    return controller_of(fabric)
