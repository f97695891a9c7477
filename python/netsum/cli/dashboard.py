"""`netsum dashboard`."""

import json
import signal
import webbrowser
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from netsum.cli.controller import FabricOption, controller_of
from netsum.cli.output import console
from netsum.dashboard.server import Dashboard
from netsum.dashboard.watch import Watch
from netsum.fabric.errors import FabricError
from netsum.fabric.local import controller_status
from netsum.fabric.sockets import split_address
from netsum.reports import RankOperations


def dashboard(
    fabric: FabricOption = None,
    listen: Annotated[str, typer.Option(help="loopback address and port; port 0: any")] = "127.0.0.1:0",
    no_open: Annotated[bool, typer.Option("--no-open", help="do not open a browser")] = False,
) -> None:
    """Show a fabric and its jobs in the browser, until Ctrl-C.

    The page is served to this machine alone and asks the controller with your credentials.
    """
    address, credentials = controller_of(fabric)
    host, port = split_address(listen)
    # Blocked before the server's threads begin: only `sigwait` takes them.
    stops = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    served = page_of(address, credentials, host, port)
    served.start()
    console.print(f"ready {served.url}", soft_wrap=True, highlight=False)
    if not no_open:
        webbrowser.open(served.url)
    signal.sigwait(stops)
    served.stop()


def page_of(address: str, credentials: Path | None, host: str = "127.0.0.1", port: int = 0) -> Dashboard:
    """The page of the controller at `address`."""
    status = partial(controller_status, address, credentials=credentials)
    return Dashboard(Watch(status, partial(_operations, address, credentials)), host, port)


def _operations(address: str, credentials: Path | None, job: int) -> list[RankOperations]:
    from netsum import NetsumError, job_operations

    try:
        found: list[RankOperations] = json.loads(job_operations(address, job, 10.0, credentials))
        return found
    except NetsumError as error:
        raise FabricError(str(error)) from error
