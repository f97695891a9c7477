"""Messages between two ranks, barriers, and batches of operations."""

from typing import Any

import torch

from netsum import NetsumError, OperationTimeout
from netsum.torch.engine import Engine, one
from netsum.torch.tensors import Staging, span

# Tags of the monitored barrier; torch passes tags of 31 bits, so these do not collide with users' tags.
_ARRIVED_TAG = 1 << 31
_RELEASED_TAG = _ARRIVED_TAG + 1


class Points:
    """Methods that torch calls; `engine` is their group. Arguments are positional."""

    engine: Engine

    def send(self, tensors: Any, destination: Any, tag: int) -> Any:
        engine, staging = self.engine, Staging()
        memory = staging.read(one(tensors, "send"), "send")
        part = engine.core_for(staging).send(*span(memory), destination, tag, engine.timeout_s)
        return engine.start([part], staging, tensors)

    def recv(self, tensors: Any, source: Any, tag: int) -> Any:
        engine, staging = self.engine, Staging()
        memory = staging.write(one(tensors, "recv"), "recv")
        part = engine.core_for(staging).recv(*span(memory), source, tag, engine.timeout_s)
        return engine.start([part], staging, tensors)

    def recv_anysource(self, tensors: Any, tag: int) -> Any:
        return self.recv(tensors, None, tag)

    # The name that the C++ trampoline of ProcessGroup looks up.
    def recvAnysource(self, tensors: Any, tag: int) -> Any:
        return self.recv(tensors, None, tag)

    def barrier(self, opts: Any) -> Any:
        engine, staging = self.engine, Staging()
        part = engine.core_for(staging, opts).barrier(*engine.terms(opts))
        return engine.start_or_wait([part], staging, [], opts)

    def start_coalescing(self, *device: Any) -> None:
        self.engine.begin_batch()

    def end_coalescing(self, *device: Any) -> Any:
        return self.engine.end_batch()

    def _start_coalescing(self, *device: Any) -> None:
        self.engine.begin_batch()

    def _end_coalescing(self, *device: Any) -> Any:
        return self.engine.end_batch()


def monitored_barrier(engine: Engine, seconds: float, wait_all_ranks: bool) -> None:
    """A barrier via rank 0, which reports the ranks that did not arrive. Blocks for at most `seconds`.

    Raises NetsumError at rank 0 with the first missing rank, or with all of them if `wait_all_ranks`; at the others if
    rank 0 does not release them. The texts are those of torch's own barrier.
    """
    if engine.rank == 0:
        _collect(engine, seconds, wait_all_ranks)
    else:
        _report(engine, seconds)


def _collect(engine: Engine, seconds: float, wait_all_ranks: bool) -> None:
    if seconds <= 0:
        raise OperationTimeout(f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {seconds * 1000:.0f} ms")
    # All receives are posted at the start, each with the full timeout: waiting for a missing rank does not shorten it
    # for the others. All are waited for, since each writes into `tokens` until it completes.
    tokens = torch.zeros(engine.size, dtype=torch.uint8, device="cpu")
    arrivals = {
        rank: engine.core.recv(*span(tokens[rank : rank + 1]), rank, _ARRIVED_TAG, seconds)
        for rank in range(1, engine.size)
    }
    missing = []
    for rank, arrival in arrivals.items():
        try:
            arrival.wait(None)
        except NetsumError:
            missing.append(rank)
    if missing:
        raise NetsumError(_missing_text(missing if wait_all_ranks else missing[:1], seconds))
    for rank in arrivals:
        engine.core.send(*span(tokens[:1]), rank, _RELEASED_TAG, seconds).wait(None)


def _report(engine: Engine, seconds: float) -> None:
    token = torch.zeros(1, dtype=torch.uint8, device="cpu")
    try:
        engine.core.send(*span(token), 0, _ARRIVED_TAG, seconds).wait(None)
        engine.core.recv(*span(token), 0, _RELEASED_TAG, seconds).wait(None)
    except NetsumError as error:
        raise NetsumError(
            f"[Rank {engine.rank}]: Rank {engine.rank} successfully reached monitoredBarrier, but received errors "
            f"while waiting for send/recv from rank 0; rank 0 names the ranks that are missing. {error}"
        ) from error


def _missing_text(missing: list[int], seconds: float) -> str:
    word = "Rank" if len(missing) == 1 else "Ranks"
    names = ", ".join(str(rank) for rank in missing)
    return f"[Rank 0]: {word} {names} failed to pass monitoredBarrier in {seconds * 1000:.0f} ms"
