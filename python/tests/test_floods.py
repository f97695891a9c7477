"""Every listener under a flood: memory stays bounded, and an honest client is served meanwhile.

The flood comes from this machine: connections that say nothing, that begin a handshake of TLS, that send headers or a
message without end, and more of them than the listener has places for.
"""

import contextlib
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from processes import wait_until

from netsum import _core
from netsum.fabric.binaries import SWITCH, find

CONNECTIONS = 400
GROWTH_KIB = 16 << 10
"""What a process may take beside what it has: docs/operations.md, "Memory under attack"."""
ENDLESS = b"GET /metrics HTTP/1.1\r\n" + b"X-Filler: " + b"a" * (256 << 10)
# A record of TLS that announces 16 KiB and never ends; a frame of HTTP/2; a message of a meeting that announces 4 GiB.
BEGINNINGS = [b"", b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\xff" * 64, ENDLESS]


def resident_kib(pid: int) -> int:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))


@contextlib.contextmanager
def flood(address: tuple[str, int]) -> Iterator[None]:
    """Holds connections, in turn of every kind; those that are closed by the listener are made again."""
    made, stop = [], threading.Event()

    def connect(number: int) -> socket.socket | None:
        try:
            each = socket.create_connection(address, timeout=5)
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                each.send(BEGINNINGS[number % len(BEGINNINGS)])
            return each
        except OSError:
            return None

    def keep() -> None:
        number = 0
        while not stop.wait(0.002):
            made.append(connect(number))
            number += 1
            if len(made) > CONNECTIONS and (oldest := made.pop(0)):
                oldest.close()

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        wait_until(lambda: len(made) >= CONNECTIONS)
        yield
    finally:
        stop.set()
        thread.join()
        for each in filter(None, made):
            each.close()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def process_of(*words: object) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(list(map(str, words)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def check(process: subprocess.Popen, address: tuple[str, int], serve: Callable[[], None]) -> None:
    """An honest client is served before, during and after a flood, and the process does not grow beyond its bound."""
    before = resident_kib(process.pid)
    with flood(address):
        serve()
        grown = resident_kib(process.pid) - before
    print(f"{before} KiB grew by {grown} KiB")
    assert process.poll() is None
    assert grown <= GROWTH_KIB, f"{before} KiB grew by {grown} KiB"


def test_the_page_of_a_switch(tmp_path):
    port = free_port()
    words = ("--name", "s0", "--controller", "127.0.0.1:9", "--listen", f"127.0.0.1:{free_port()}")
    with process_of(find(SWITCH), *words, "--memory", "1MiB", "--metrics", f"127.0.0.1:{port}") as switch:
        switch.stdout.readline()

        def serve() -> None:
            # A scraper tries again, as Prometheus does: its place may go to a newer connection.
            wait_until(lambda: b"# TYPE netsum_switch_cpu_seconds" in page(port))

        serve()
        check(switch, ("127.0.0.1", port), serve)


def page(port: int) -> bytes:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10) as reader:
        reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: s0\r\n\r\n")
        return b"".join(iter(lambda: reader.recv(1 << 16), b""))
    return b""


def test_an_authority_that_serves(tmp_path):
    port, ca = free_port(), tmp_path / "ca"
    _core.ca_init(ca, "lab")
    at = f"127.0.0.1:{port}"
    token = _core.ca_token(ca, "host/h0", at, 3600.0)
    program = f"from netsum import _core; server = _core.Enrolment({str(ca)!r}, {at!r}, 7); print('up', flush=True); "
    with process_of(sys.executable, "-c", program + "input()") as server:
        server.stdout.readline()
        check(server, ("127.0.0.1", port), lambda: wait_until(lambda: joins(token, tmp_path / "h0")))


def joins(token: str, folder: Path) -> bool:
    with contextlib.suppress(_core.NetsumError, _core.CredentialsError):
        _core.ca_join(token, folder)
    return (folder / "identity.pem").is_file()


def test_a_meeting_of_ranks():
    program = textwrap.dedent("""
        from netsum import _core
        meeting = _core.Meeting("127.0.0.1:0", bytes(range(16)), 240.0)
        print(meeting.port(), flush=True)
        at = f"127.0.0.1:{meeting.port()}"
        print(_core.meet(at, bytes(range(16)), 0, 2, b"first", 240.0), flush=True)
        input()
    """)
    with process_of(sys.executable, "-c", program) as process:
        port = int(process.stdout.readline())

        def serve() -> None:
            met = _core.meet(f"127.0.0.1:{port}", bytes(range(16)), 1, 2, b"second", 240.0)
            assert met == [b"first", b"second"]

        check(process, ("127.0.0.1", port), serve)
