"""Runs a test body as several ranks: real processes, forked so that each test does not import torch again."""

import contextlib
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path

import pytest
import torch
import torch._dynamo  # DDP's constructor imports it, for seconds: once here, and not in every rank of every test.
import torch.distributed as dist

torch.set_num_threads(1)
BOUND_S = 300.0
"""Guards against tests that hang; no test may depend on how long anything takes."""
GROUP_TIMEOUT_S = 120.0
"""Default timeout of operations: longer than any that can succeed takes, even on a busy machine."""


@pytest.fixture
def ranks(tmp_path: Path) -> Callable:
    """`ranks(body, size=2, **environment)`: run body(rank, size) in `size` processes with an initialized world.

    before: called first in each of them. Fails with the tracebacks of the ranks that failed. A rank that exits by
    os._exit(0) counts as successful.
    """
    made = 0

    def run(
        body: Callable[[int, int], None],
        size: int = 2,
        backend: str = "netsum",
        before: Callable[[], None] = lambda: None,
        **environment: str,
    ) -> None:
        nonlocal made
        made += 1
        _run(body, size, backend, before, environment, tmp_path / f"store-{made}")

    return run


def _run(body, size: int, backend: str, before, environment: dict[str, str], store: Path) -> None:
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    processes = [
        context.Process(target=_rank, args=(body, rank, size, backend, before, environment, store, pipes[rank][1]))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    # A rank that cannot say how it failed would not end.
    for _, child in pipes:
        child.close()
    failures, ends = [], {end for end, _ in pipes}
    deadline = time.monotonic() + BOUND_S
    while any(process.is_alive() for process in processes) and time.monotonic() < deadline:
        alive = [process.sentinel for process in processes if process.is_alive()]
        for end in ends & set(wait([*alive, *ends], timeout=0.5)):
            try:
                failures.append(end.recv())
            except EOFError:
                ends.remove(end)
    hanging = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for process in processes:
        process.kill()
        process.join()
    for end in ends:
        with contextlib.suppress(EOFError):
            while end.poll():
                failures.append(end.recv())
    codes = {rank: process.exitcode for rank, process in enumerate(processes) if process.exitcode not in (0, -9)}
    assert not failures, "\n".join(failures)
    assert not hanging, f"ranks {hanging} did not end in {BOUND_S:.0f} s"
    assert not codes, f"ranks ended with exit codes {codes}"


def _rank(body, rank: int, size: int, backend: str, before, environment: dict[str, str], store: Path, failure) -> None:
    # A fork's thread pool is recreated on first use; torch crashes if two threads do so at once.
    torch.set_num_threads(1)
    os.environ.pop("NETSUM_CONTROLLER", None)
    os.environ.update(RANK=str(rank), **environment)
    dist.set_debug_level_from_env()
    code = 0
    try:
        before()
        dist.init_process_group(
            backend,
            init_method=f"file://{store}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=GROUP_TIMEOUT_S),
        )
        body(rank, size)
        with contextlib.suppress(ValueError, AssertionError):
            dist.destroy_process_group()
    except BaseException:
        failure.send(f"rank {rank}:\n{traceback.format_exc()}")
        code = 1
    os._exit(code)
