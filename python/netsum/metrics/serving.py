"""Serves metrics over HTTP, or HTTPS with credentials."""

from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from netsum.fabric.errors import FabricError
from netsum.metrics.errors import MetricsError
from netsum.metrics.families import absent, families
from netsum.reports import ControllerStatus

CERTIFICATE, KEY, AUTHORITY = "identity.pem", "identity-key.pem", "ca.pem"


class ControllerCollector(Collector):
    """Asks the controller at each scrape."""

    def __init__(self, read: Callable[[], ControllerStatus]) -> None:
        self._read = read

    def describe(self) -> list[Metric]:
        """Nothing: to register it must not ask the controller."""
        return []

    def collect(self) -> Iterator[Metric]:
        try:
            yield from families(self._read())
        except FabricError:
            yield from absent()


def registry(read: Callable[[], ControllerStatus]) -> CollectorRegistry:
    """The metrics of one controller."""
    made = CollectorRegistry()
    made.register(ControllerCollector(read))
    return made


def serve(read: Callable[[], ControllerStatus], host: str, port: int, credentials: Path | None) -> int:
    """Serve the metrics of a controller on a thread; returns the port.

    credentials: a folder with a certificate; readers then need one of the same authority. Raises MetricsError if the
    address cannot be used, or the credentials cannot be read.
    """
    certificate, key, authority = (None, None, None) if credentials is None else _files(credentials)
    try:
        server, _ = start_http_server(
            port,
            addr=host,
            registry=registry(read),
            certfile=certificate,
            keyfile=key,
            client_cafile=authority,
            client_auth_required=credentials is not None,
        )
    except OSError as error:
        raise MetricsError(f"metrics cannot be served at {host}:{port}: {error.strerror or error}") from error
    found: int = server.server_port
    return found


def _files(credentials: Path) -> list[str]:
    files = [credentials / name for name in (CERTIFICATE, KEY, AUTHORITY)]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise MetricsError(f"{missing[0]} is missing; make it by `netsum ca issue`, or leave out --secure")
    return [str(file) for file in files]
