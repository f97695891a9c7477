"""`netsum job`."""

from typing import Annotated

import typer

from netsum import NetsumError, rekey_job, stop_job
from netsum.cli.controller import FabricOption, controller_of
from netsum.cli.output import console
from netsum.fabric.errors import FabricError
from netsum.fabric.local import named

app = typer.Typer(help="Stop jobs and change their keys; `netsum top` numbers them.", no_args_is_help=True)

ANSWER_S = 10.0
"""How long the controller may take to answer."""

Job = Annotated[int, typer.Argument(min=1, max=2**32 - 1, help="number of the job")]


@app.command("stop")
def stop(
    job: Job,
    reason: Annotated[str, typer.Option(help="what the job's ranks are told")] = "",
    fabric: FabricOption = None,
) -> None:
    """End a job.

    Its ranks get an error with the reason, and its leases are revoked.
    """
    address, credentials = controller_of(fabric)
    try:
        stop_job(address, job, reason, ANSWER_S, credentials)
    except NetsumError as error:
        raise FabricError(f"{named(address, error)}; `netsum top` shows running jobs") from error
    console.print(f"job {job} is stopped")


@app.command("rekey")
def rekey(job: Job, fabric: FabricOption = None) -> None:
    """Give a running job new keys.

    For example because a host of the job was broken into. The job gets a new plan and goes on without loss. Packets
    under the old keys are refused from then on.
    """
    address, credentials = controller_of(fabric)
    try:
        rekey_job(address, job, ANSWER_S, credentials)
    except NetsumError as error:
        raise FabricError(f"{named(address, error)}; `netsum top` shows running jobs") from error
    console.print(f"job {job} gets new keys with its next plan")
