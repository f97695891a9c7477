"""Ranks as forked processes that meet by themselves, for tests of what stands on `netsum.communicator`."""

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait

from netsum.launcher import free_port

BOUND_S = 240.0


def run_ranks(body: Callable[[int], object], size: int, start: str = "fork", **environment: str) -> list:
    """`body(rank)` in `size` processes with the environment that a launcher would set; what each returns.

    Fails with the tracebacks of the ranks that failed, or with the ranks that hang. A rank that is killed gives None.
    """
    context = multiprocessing.get_context(start)
    settings = {"WORLD_SIZE": str(size), "NETSUM_MEETING": f"127.0.0.1:{free_port()}", **environment}
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    processes = [
        context.Process(target=_rank, args=(body, rank, size, settings, pipes[rank][1]), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for _, end in pipes:
        end.close()
    answers, deadline = _collect([end for end, _ in pipes], time.monotonic() + BOUND_S), 5.0
    for process in processes:
        process.join(deadline)
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
