"""Serves the page on a loopback address.

The page shows what its user may see, so only that user may read it: a token in the address that is printed becomes a
cookie, and requests for another name than the loopback's are refused, since a foreign page could have made them.
"""

import hmac
import http.server
import ipaddress
import json
import re
import secrets
import socket
import threading
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from netsum.dashboard.errors import DashboardError
from netsum.dashboard.watch import Watch

CONNECTIONS_MAX = 64
ALIVE_S = 10.0
"""A stream without news says so often that it lives; a reader that is gone is noticed."""
REQUEST_S = 30.0
_PAGE = Path(__file__).with_name("page")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_JOB = re.compile(r"/api/jobs/(\d{1,10})(/trace\.json)?")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Dashboard:
    """The page of a `Watch`, served between `start` and `stop`."""

    def __init__(self, watch: Watch, host: str = "127.0.0.1", port: int = 0) -> None:
        """Raises DashboardError if the address cannot be used, or is not one of the loopback."""
        _check_loopback(host)
        self._watch, self._host = watch, host
        self._token = secrets.token_urlsafe(24)
        files = {f"/{path.name}": (_TYPES[path.suffix], path.read_bytes()) for path in _files()}
        files["/"] = files["/index.html"]
        handler = _handler(watch, files, self._token)
        try:
            self._server = _Server((host, port), handler)
        except OSError as error:
            raise DashboardError(f"the page cannot be served at {host}:{port}: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="netsum-dashboard-http", daemon=True)

    @property
    def url(self) -> str:
        """The address to open, with the token: whoever has it sees the page."""
        name = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{name}:{self._server.server_port}/?token={self._token}"

    def start(self) -> None:
        """Serve from now on."""
        self._watch.start()
        self._thread.start()

    def stop(self) -> None:
        """End all connections."""
        self._watch.stop()
        self._server.shutdown()
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    # Streams end with the process.
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that goes away is no error."""


def _files() -> list[Path]:
    return [path for path in sorted(_PAGE.iterdir()) if path.suffix in _TYPES]


def _check_loopback(host: str) -> None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise DashboardError(f"--listen {host}: name a loopback address, such as 127.0.0.1") from None
    if not address.is_loopback:
        raise DashboardError(
            f"--listen {host}: the page is served to this machine alone, with your rights at the controller; from "
            "another one, forward the port: `ssh -L 7780:127.0.0.1:PORT …`"
        )


def _names_loopback(host: str) -> bool:
    """Whether a Host header names this machine by its loopback address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _handler(watch: Watch, files: dict[str, tuple[str, bytes]], token: str) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        """One connection."""

        protocol_version = "HTTP/1.1"
        server_version, sys_version = "netsum", ""
        timeout = REQUEST_S

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            tokens = parse_qs(query).get("token", [])
            if not _names_loopback(self.headers.get("Host", "")):
                self._refuse(HTTPStatus.FORBIDDEN, "this page is served to the loopback address only")
            elif path == "/" and tokens:
                self._enter(tokens[0])
            elif not self._knows():
                self._refuse(HTTPStatus.FORBIDDEN, "open the address that `netsum dashboard` has printed")
            elif path in files:
                kind, body = files[path]
                self._send(body, f"{kind}; charset=utf-8")
            else:
                self._api(path)

        def _api(self, path: str) -> None:
            if path == "/api/stream":
                self._stream()
            elif path == "/api/topology":
                self._json(watch.topology())
            elif found := _JOB.fullmatch(path):
                self._job(int(found[1]), download=bool(found[2]))
            else:
                self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

        def _job(self, number: int, download: bool) -> None:
            content = watch.trace(number) if download else watch.job(number)
            if content is None:
                self._refuse(HTTPStatus.NOT_FOUND, f"the controller knows no job {number}")
            elif download:
                name = f'attachment; filename="netsum-job-{number}.json"'
                self._json(content, {"Content-Disposition": name})
            else:
                self._json(content)

        def _stream(self) -> None:
            """Server-sent events: an overview for each change."""
            self.close_connection = True
            self._begin(HTTPStatus.OK, "text/event-stream", {})
            number = 0
            while not watch.stopped:
                last, (number, snapshot) = number, watch.snapshot(number, ALIVE_S)
                self.wfile.write(b"data: " + snapshot + b"\n\n" if number > last else b": alive\n\n")
                self.wfile.flush()

        def _enter(self, given: str) -> None:
            """Turn the token into a cookie, so that it does not stay in the address."""
            if not hmac.compare_digest(given.encode(), token.encode()):
                self._refuse(HTTPStatus.FORBIDDEN, "this address is of another `netsum dashboard`")
                return
            cookie = f"{self._cookie()}={token}; HttpOnly; SameSite=Strict; Path=/"
            self._begin(
                HTTPStatus.SEE_OTHER, "text/plain", {"Location": "/", "Set-Cookie": cookie, "Content-Length": "0"}
            )

        def _knows(self) -> bool:
            try:
                cookie = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie())
            except CookieError:
                return False
            return cookie is not None and hmac.compare_digest(cookie.value.encode(), token.encode())

        def _cookie(self) -> str:
            # Cookies are shared by all ports of an address.
            return f"netsum-{self.connection.getsockname()[1]}"

        def _json(self, content: Any, headers: dict[str, str] | None = None) -> None:
            self._send(json.dumps(content, separators=(",", ":")).encode(), "application/json", headers or {})

        def _refuse(self, status: HTTPStatus, text: str) -> None:
            self._send(f"{text}\n".encode(), "text/plain; charset=utf-8", {}, status)

        def _send(
            self, body: bytes, kind: str, headers: dict[str, str] | None = None, status: HTTPStatus = HTTPStatus.OK
        ) -> None:
            self._begin(status, kind, {**(headers or {}), "Content-Length": str(len(body))})
            self.wfile.write(body)

        def _begin(self, status: HTTPStatus, kind: str, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": kind, **_HEADERS, **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *_: Any) -> None:
            """Requests of the page itself are not worth a line."""

    return Handler
