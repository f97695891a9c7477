"""`netsum metrics`."""

import signal
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from netsum.cli.controller import FabricOption, controller_of
from netsum.cli.output import console
from netsum.fabric.local import controller_status
from netsum.fabric.sockets import split_address


def metrics(
    fabric: FabricOption = None,
    listen: Annotated[str, typer.Option(help="address and port; port 0: any")] = "127.0.0.1:9101",
    secure: Annotated[Path | None, typer.Option(help="serve HTTPS with the certificate in this folder")] = None,
) -> None:
    """Serve the metrics of a fabric for Prometheus, until Ctrl-C.

    They are the controller's view of switches, links, jobs and ranks. The controller is asked at each scrape. Switches
    serve more about themselves (netsum-switch --metrics).
    """
    # The library belongs to this command alone.
    from netsum.metrics.errors import MetricsError

    try:
        from netsum.metrics.serving import serve
    except ModuleNotFoundError as error:
        raise MetricsError(f"{error.name} is missing; install it by `pip install netsum[metrics]`") from error
    address, credentials = controller_of(fabric)
    host, port = split_address(listen)
    # Blocked before the server's threads begin: only `sigwait` takes them.
    stops = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    served = serve(partial(controller_status, address, credentials=credentials), host, port, secure)
    console.print(f"ready http{'s' if secure else ''}://{host}:{served}/metrics", soft_wrap=True)
    signal.sigwait(stops)
