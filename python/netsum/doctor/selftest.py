"""A sum through the fabric with no framework: several processes, one allreduce, the expected values.

Also the smallest example of `netsum.Group`: create it, exchange addresses by any means, connect, sum, close.
"""

import array
import json
import multiprocessing
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

from netsum.doctor.check import Check, fail, ok, warn
from netsum.fabric.description import counted

RANKS = 4
ELEMENTS = 64 * 1024
TIMEOUT_S = 20.0
STATS_S = 3.0
CLOSE_S = 5.0
"""How long the processes have to leave the job, which is abandoned otherwise."""


def selftest(controller: str, credentials: str | None = None) -> Check:
    """Sum floats of RANKS processes on this machine through the fabric of `controller`, and compare."""
    options = {"min_bytes": "0"} | ({"credentials": credentials} if credentials else {})
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(RANKS)]
    workers = [
        context.Process(target=_work, args=(rank, controller, options, pipes[rank][1]), daemon=True)
        for rank in range(RANKS)
    ]
    try:
        # A terminal's Ctrl-C reaches them, too: they leave it to this process, which ends them.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for worker in workers:
                worker.start()
        finally:
            signal.signal(signal.SIGINT, handler)
        ends = [mine for mine, _ in pipes]
        addresses = [_answer(end, rank) for rank, end in enumerate(ends)]
        for end in ends:
            end.send(addresses)
        answers = [_answer(end, rank) for rank, end in enumerate(ends)]
        deadline = time.monotonic() + CLOSE_S
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
    except _SelftestError as error:
        return fail("sum through the fabric", str(error), "read the log of the controller and of the switches")
    finally:
        for worker in workers:
            # An interruption may come before all have begun.
            if worker.pid is not None:
                worker.terminate()
                worker.join()
    return _judge(answers)


class _SelftestError(Exception):
    """A process of the self-test failed."""


def _answer(end: Connection, rank: int) -> Any:
    """The next message of a process: (value, error). Raises _SelftestError for an error or a timeout."""
    try:
        if not end.poll(TIMEOUT_S):
            raise _SelftestError(f"rank {rank} said nothing for {TIMEOUT_S:.0f} s")
        value, error = end.recv()
    except (EOFError, ConnectionResetError):
        raise _SelftestError(f"rank {rank} ended without a word") from None
    if error:
        raise _SelftestError(f"rank {rank}: {error}")
    return value


def _judge(answers: list[dict[str, Any]]) -> Check:
    name = f"sum of {ELEMENTS} floats over {RANKS} processes"
    wrong = sum(answer["wrong"] for answer in answers)
    stats = answers[0]["stats"]
    if wrong:
        return fail(name, f"{wrong} values are wrong", "report this as a bug, with the logs of the fabric")
    if stats["path"] == "trees" and stats["network_operations"]:
        return ok(name, f"right, added in the network by {counted(len(stats['trees']), 'tree')}")
    return warn(name, f"right, but added by the hosts: {stats['reason']}", "mend what the reason names")


def _stats(group: Any) -> dict[str, Any]:
    """The counters of a group, once they include its trees, which are reported shortly after the sums."""
    deadline = time.monotonic() + STATS_S
    while True:
        stats = json.loads(group.stats())
        if stats["path"] != "trees" or stats["trees"] or time.monotonic() > deadline:
            found: dict[str, Any] = stats
            return found
        time.sleep(0.05)


def _work(rank: int, controller: str, options: dict[str, str], end: Connection) -> None:
    """One process of the self-test."""
    try:
        from netsum import Group

        group = Group(rank, RANKS, "doctor", controller, None, TIMEOUT_S, options)
        end.send((group.address(), None))
        group.connect(end.recv())
        values = array.array("f", [float(i % 97 + rank) for i in range(ELEMENTS)])
        address, _ = values.buffer_info()
        group.allreduce(address, ELEMENTS, "float32", "sum", 1.0, TIMEOUT_S).wait(None)
        expected = RANKS * (RANKS - 1) // 2
        wrong = sum(value != RANKS * (i % 97) + expected for i, value in enumerate(values))
        group.barrier(TIMEOUT_S).wait(None)
        end.send(({"wrong": wrong, "stats": _stats(group)}, None))
        group.close()
    except Exception as error:
        end.send((None, f"{type(error).__name__}: {error}"))
