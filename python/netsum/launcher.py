"""Starts ranks on this machine without torchrun: `python -m netsum.launcher 4 script.py …`, used by `netsum run
--plain`.

Each rank gets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE), NETSUM_MEETING, and a NETSUM_TOKEN
drawn for this run: other users cannot read a process's environment. The first rank that fails ends the others; its exit
code is returned.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time

from netsum.fabric.processes import die_with_parent
from netsum.fabric.reservations import free_port

GRACE_S = 3.0
"""Time between SIGTERM and SIGKILL for ranks whose peer has failed: they may still be printing their errors."""
_LOOK_S = 0.05


def main(arguments: list[str]) -> int:
    """Run `arguments[1:]` as `arguments[0]` ranks; returns 0, or the exit code of the first that failed."""
    count, script = int(arguments[0]), arguments[1:]
    settings = {"OMP_NUM_THREADS": "1", **os.environ, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    settings["NETSUM_MEETING"] = f"127.0.0.1:{free_port()}"
    settings["NETSUM_TOKEN"] = secrets.token_hex(16)
    # torchrun's variables, inherited if this was started under it, would direct ranks to its store.
    settings.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    ranks = [
        subprocess.Popen(
            [sys.executable, *script],
            env={**settings, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            preexec_fn=die_with_parent,
        )
        for rank in range(count)
    ]
    signal.signal(signal.SIGTERM, lambda *_: _end(ranks))
    try:
        return _wait(ranks)
    finally:
        _end(ranks)


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    """The exit code of the first rank that fails, or 0 when all have ended; a signal's code is a shell's."""
    while True:
        codes = [rank.poll() for rank in ranks]
        for rank, code in enumerate(codes):
            if code:
                print(f"netsum: rank {rank} ended with {_words(code)}; the others are ended", file=sys.stderr)
                return code if code > 0 else 128 - code
        if None not in codes:
            return 0
        time.sleep(_LOOK_S)


def _words(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    until = time.monotonic() + GRACE_S
    for rank in ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            rank.wait(max(until - time.monotonic(), 0.0))
        if rank.poll() is None:
            rank.kill()
            rank.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
