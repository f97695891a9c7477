"""Daemons as real processes: readiness, ends, files left over."""

import json
import os
import socket
import sys

import pytest

from netsum.fabric.errors import FabricError
from netsum.fabric.processes import Daemon
from netsum.fabric.sockets import check_free, holder

READY = "import sys, time; print('ready to serve', flush=True); time.sleep(1e6)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY
BROKEN = "import sys; sys.exit('cannot bind 127.0.0.1:1')"


@pytest.fixture
def daemon(tmp_path):
    made = []

    def make(code: str) -> Daemon:
        made.append(Daemon(f"d{len(made)}", [sys.executable, "-c", code], tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def test_start_ready_stop(daemon):
    one = daemon(READY)
    assert one.pid() is None
    one.start(tied=False)
    one.wait_ready()
    pid = one.pid()
    assert pid is not None
    with pytest.raises(FabricError, match=f"runs already as process {pid}"):
        one.start(tied=False)
    one.stop()
    assert one.pid() is None and not one.pid_file.exists()
    assert not os.path.exists(f"/proc/{pid}")


def test_files_are_their_owners_alone_and_no_link_is_followed(tmp_path):
    folder = tmp_path / "fabric"
    code = "open('made', 'w').close(); print('ready', flush=True)"
    one = Daemon("d", [sys.executable, "-c", f"import os; os.chdir({str(folder)!r}); {code}"], folder)
    one.start(tied=False)
    one.wait_ready()
    files = [one.log, one.out, one.pid_file, folder / "made"]
    assert [oct(path.stat().st_mode & 0o777) for path in [folder, *files]] == ["0o700", *["0o600"] * 4]
    one.stop()
    victim = tmp_path / "victim"
    victim.write_text("kept")
    one.out.unlink()
    one.out.symlink_to(victim)
    with pytest.raises(FabricError, match="symbolic link"):
        one.start(tied=False)
    assert victim.read_text() == "kept"


def test_another_command_finds_and_stops_it(daemon, tmp_path):
    one = daemon(READY)
    one.start(tied=True)
    one.wait_ready()
    later = Daemon(one.name, [], tmp_path)
    assert later.pid() == one.pid()
    later.stop()
    assert one.pid() is None


def test_who_ignores_sigterm_is_killed(daemon, monkeypatch):
    monkeypatch.setattr("netsum.fabric.processes.STOP_S", 0.3)
    one = daemon(DEAF)
    one.start(tied=False)
    one.wait_ready()
    one.stop()
    assert one.pid() is None


def test_a_daemon_that_ends_shows_the_end_of_its_log(daemon):
    one = daemon(BROKEN)
    one.start(tied=False)
    with pytest.raises(FabricError, match="ended before it was ready:\n  cannot bind"):
        one.wait_ready()


def test_a_daemon_that_is_never_ready(daemon, monkeypatch):
    monkeypatch.setattr("netsum.fabric.processes.READY_S", 0.3)
    one = daemon("import time; time.sleep(1e6)")
    one.start(tied=False)
    with pytest.raises(FabricError, match="not ready after"):
        one.wait_ready()


def test_a_program_that_is_not_there(tmp_path):
    with pytest.raises(FabricError, match="cannot run /nowhere/daemon"):
        Daemon("x", ["/nowhere/daemon"], tmp_path).start(tied=False)


OF_ANOTHER_COMMAND = json.dumps({"pid": os.getpid(), "command": ["netsum-switch"]})


@pytest.mark.parametrize("text", ["", "{", "[]", pytest.param(OF_ANOTHER_COMMAND, id="of-another-command")])
def test_a_stale_file_is_not_believed(tmp_path, text):
    one = Daemon("old", [], tmp_path)
    one.pid_file.write_text(text)
    assert one.pid() is None
    one.stop()
    assert not one.pid_file.exists()


def test_a_killed_daemon_is_seen(daemon):
    one = daemon(READY)
    one.start(tied=False)
    one.wait_ready()
    one.kill()
    assert one.pid() is None


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_port_of_another_address_has_another_holder(kind):
    """Local fabrics use the same ports of different loopback addresses."""
    with socket.socket(socket.AF_INET, kind) as mine:
        mine.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            mine.listen()
        port = mine.getsockname()[1]
        assert holder("127.0.0.2", port, kind) is None
        assert f"process {os.getpid()}" in (holder("127.0.0.1", port, kind) or "")


@pytest.mark.parametrize("every", ["0.0.0.0", "::"])
def test_a_socket_of_all_addresses_holds_each(every):
    with socket.socket(socket.AF_INET6 if ":" in every else socket.AF_INET, socket.SOCK_DGRAM) as wide:
        wide.bind((every, 0))
        assert f"process {os.getpid()}" in (holder("127.0.0.2", wide.getsockname()[1], socket.SOCK_DGRAM) or "")


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_busy_address_names_its_holder(kind):
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            taken.listen()
        port = taken.getsockname()[1]
        assert f"process {os.getpid()}" in holder("127.0.0.1", port, kind)
        with pytest.raises(FabricError, match=rf"spine9: address 127\.0\.0\.1:{port} is held by .*{os.getpid()}"):
            check_free(f"127.0.0.1:{port}", kind, "spine9")
    check_free(f"127.0.0.1:{port}", kind, "spine9")


def test_an_address_of_another_machine(monkeypatch):
    with pytest.raises(FabricError, match="an address of this machine"):
        check_free("192.0.2.1:7700", socket.SOCK_STREAM, "the controller")
