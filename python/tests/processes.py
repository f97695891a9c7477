"""Ranks as forked processes that meet without a launcher, for tests of libraries above `netsum.communicator`."""

import array
import fcntl
import multiprocessing
import os
import secrets
import termios
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path

from netsum.fabric.reservations import reserved_port

BOUND_S = 240.0
"""Guards against tests that hang. No test may depend on how long anything takes: the machine may be busy."""

END_S = 60.0
"""Time for processes to exit after their answer."""


class Latch:
    """A counter shared by the processes of a test: `set` by some of them, visible to all, also if one dies or stops.

    To be created before the processes are forked.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def set(self) -> None:
        os.write(self._write, b"x")

    def wait(self, times: int = 1) -> None:
        """Block until `set` has been called `times` times by all processes together; fails after BOUND_S."""
        wait_until(lambda: self.count() >= times)

    def count(self) -> int:
        """Number of calls of `set` so far."""
        unread = array.array("i", [0])
        fcntl.ioctl(self._read, termios.FIONREAD, unread)
        return unread[0]


def state_of(pid: int) -> str:
    """The kernel's letter for a process's state: "T" for a stopped one."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until(reached: Callable[[], bool]) -> None:
    """Block until `reached()`; fails after BOUND_S."""
    deadline = time.monotonic() + BOUND_S
    while not reached():
        assert time.monotonic() < deadline, f"not reached in {BOUND_S:.0f} s"
        time.sleep(0.005)


def run_ranks(body: Callable[[int], object], size: int, start: str = "fork", **environment: str) -> list:
    """`body(rank)` in `size` processes with the environment of a launcher; returns their results.

    Fails with the tracebacks of the ranks that failed, or with the ranks that hang. A killed rank gives None.
    """
    with reserved_port() as port:
        meeting = {"NETSUM_MEETING": f"127.0.0.1:{port}", "NETSUM_TOKEN": secrets.token_hex(16)}
        settings = {"WORLD_SIZE": str(size), **meeting, **environment}
        return _run(multiprocessing.get_context(start), body, size, settings)


def _run(context, body: Callable[[int], object], size: int, settings: dict[str, str]) -> list:
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    processes = [
        context.Process(target=_rank, args=(body, rank, size, settings, pipes[rank][1]), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for _, end in pipes:
        end.close()
    answers = _collect([end for end, _ in pipes], time.monotonic() + BOUND_S)
    # Processes that have answered, or have closed their pipe, only have to exit.
    until = time.monotonic() + END_S
    for process in processes:
        process.join(max(until - time.monotonic(), 0.1))
    hanging = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for process in processes:
        process.kill()
        process.join()
    failures = [answer[1] for answer in answers if answer and answer[1]]
    assert not failures, "\n".join(failures)
    assert not hanging, f"ranks {hanging} did not end"
    return [answer[0] if answer else None for answer in answers]


def _collect(ends: list, deadline: float) -> list:
    answers: list = [None] * len(ends)
    waiting = dict(zip(ends, range(len(ends)), strict=True))
    while waiting and time.monotonic() < deadline:
        for end in wait(list(waiting), timeout=0.5):
            rank = waiting.pop(end)
            try:
                answers[rank] = end.recv()
            except EOFError:
                answers[rank] = None
    return answers


def _rank(body, rank: int, size: int, settings: dict[str, str], end) -> None:
    for variable in ("NETSUM_CONTROLLER", "NETSUM_PLAN", "TORCHELASTIC_USE_AGENT_STORE"):
        os.environ.pop(variable, None)
    os.environ.update(settings, RANK=str(rank), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    try:
        answer = (body(rank), None)
    except BaseException:
        answer = (None, f"rank {rank}:\n{traceback.format_exc()}")
    end.send(answer)
    end.close()
    os._exit(0)
