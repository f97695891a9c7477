"""One daemon as a process: start, readiness, stop, and its pid file."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from netsum import private
from netsum.fabric.errors import FabricError

READY_S = 60.0
"""A daemon that has not printed `ready` by then is considered failed. It takes well under a second on an idle
machine."""
STOP_S = 10.0
"""Time between SIGTERM and SIGKILL."""
_PR_SET_PDEATHSIG = 1


@dataclass
class Daemon:
    """A daemon: its name in the fabric, its command line, and the folder of its files."""

    name: str
    command: list[str]
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def out(self) -> Path:
        return self.folder / f"{self.name}.out"

    @property
    def pid_file(self) -> Path:
        return self.folder / f"{self.name}.pid"

    def start(self, tied: bool) -> None:
        """Start the process, without waiting for it. tied: it ends with the caller, however the caller ends.

        Raises FabricError if it runs already or cannot be executed.
        """
        if self.pid() is not None:
            raise FabricError(f"{self.name} runs already as process {self.pid()}; stop it by `netsum fabric down`")
        private.make_folder(self.folder)
        try:
            with private.open_file(self.out) as out, private.open_file(self.log, "ab") as log:
                process = subprocess.Popen(
                    self.command,
                    env={**os.environ, "NO_COLOR": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=log,
                    start_new_session=True,
                    umask=0o077,
                    preexec_fn=die_with_parent if tied else None,
                )
        except OSError as error:
            raise FabricError(f"{self.name}: cannot run {self.command[0]}: {error}") from error
        _children[process.pid] = process
        private.write_text(self.pid_file, json.dumps({"pid": process.pid, "command": self.command}))

    def wait_ready(self) -> None:
        """Block until the daemon has printed `ready`. Raises FabricError with the end of its log if it does not."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if any(line.startswith("ready") for line in _lines(self.out)):
                return
            if self.pid() is None:
                raise FabricError(f"{self.name} ended before it was ready:\n{self.log_tail()}")
            time.sleep(0.02)
        raise FabricError(f"{self.name} was not ready after {READY_S:.0f} s:\n{self.log_tail()}")

    def pid(self) -> int | None:
        """The process id, or None if it is not running. The pid file of another process is ignored."""
        try:
            remembered = json.loads(self.pid_file.read_text())
            pid, command = int(remembered["pid"]), list(remembered["command"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        child = _children.get(pid)
        if child is not None:
            return pid if child.poll() is None else None
        running = _command_line(pid)
        # A script's command line begins with its interpreter.
        ours = command and running is not None and running[-len(command) :] == command
        return pid if ours else None

    def kill(self) -> None:
        """SIGKILL: simulates a power failure."""
        pid = self.pid()
        if pid is not None:
            _signal(pid, signal.SIGKILL)
            _gone(pid, STOP_S)

    def ask_to_stop(self) -> None:
        """SIGTERM, without waiting."""
        pid = self.pid()
        if pid is not None:
            _signal(pid, signal.SIGTERM)

    def stop(self) -> None:
        """Stop it: SIGTERM, and SIGKILL if that does not help. Removes the pid file."""
        pid = self.pid()
        if pid is not None:
            _signal(pid, signal.SIGTERM)
            if not _gone(pid, STOP_S):
                _signal(pid, signal.SIGKILL)
                _gone(pid, STOP_S)
        self.pid_file.unlink(missing_ok=True)

    def log_tail(self) -> str:
        """The last lines of its log, and the path of the log."""
        lines = _lines(self.log)[-8:]
        return "\n".join(["  " + line for line in lines] + [f"  (log: {self.log})"])


_children: dict[int, subprocess.Popen[bytes]] = {}
"""Processes started here, so that they can be reaped."""
# After a fork they belong to the parent.
os.register_at_fork(after_in_child=_children.clear)


def die_with_parent() -> None:
    """Called in a new process: have the kernel end it when the thread that created it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _command_line(pid: int) -> list[str] | None:
    """The command line of a live process; None for one that has ended or is a zombie."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    return raw.decode(errors="replace").rstrip("\0").split("\0") if raw else None


def _signal(pid: int, which: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, which)


def _gone(pid: int, seconds: float) -> bool:
    """Wait for the end of a process; returns whether it ended in time."""
    deadline = time.monotonic() + seconds
    child = _children.get(pid)
    while time.monotonic() < deadline:
        if (child.poll() is not None) if child else (_command_line(pid) is None):
            return True
        time.sleep(0.02)
    return False
