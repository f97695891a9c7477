"""Starts training scripts under torchrun, or without torch, as one process group that can be stopped as a unit."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from netsum import _core, private
from netsum.fabric.processes import die_with_parent

STOP_S = 5.0
"""Time between SIGTERM and SIGKILL: torchrun forwards the signal and waits for its workers."""


class Workers:
    """`count` processes of one script, started by torchrun in a session of their own, or by `netsum.launcher` if
    `plain`.

    The caller must call `stop` at the end; after a normal end it has no effect.
    """

    def __init__(
        self,
        script: Sequence[str],
        count: int,
        environment: dict[str, str],
        log: Path | None = None,
        plain: bool = False,
    ) -> None:
        torchrun = ["netsum.torchrun", "--standalone", "--nproc-per-node"]
        launcher = ["netsum.launcher"] if plain else torchrun
        command = [sys.executable, "-m", *launcher, str(count), *script]
        # As many threads as cores per worker would make the workers compete for cores.
        settings = {"OMP_NUM_THREADS": "1", **os.environ, **environment}
        output = private.open_file(log) if log else None
        try:
            self.process = subprocess.Popen(
                command,
                env=settings,
                start_new_session=True,
                stdout=output,
                stderr=subprocess.STDOUT if log else None,
                preexec_fn=die_with_parent,
            )
        finally:
            if output:
                output.close()

    def poll(self) -> int | None:
        """The exit code, or None while they run."""
        return self.process.poll()

    def wait(self) -> int:
        return self.process.wait()

    def stop(self) -> None:
        """End all of them, workers that outlive torchrun included."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        _remove_sockets()


def _remove_sockets() -> None:
    """Those at which processes answered `netsum why` that are gone: a killed process leaves its own."""
    for socket in Path(_core.socket_folder()).glob("*.sock"):
        if socket.stem.isdigit() and not Path("/proc", socket.stem).exists():
            socket.unlink(missing_ok=True)
