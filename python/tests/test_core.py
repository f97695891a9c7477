"""`netsum._core`: every operation between real processes, on plain memory, without torch."""

import ctypes
import json
import os
import signal
import struct
import threading
from multiprocessing import get_context

import pytest
from processes import Latch

from netsum import _core

SOON = 60.0
"""Time limit of operations that succeed: a guard against hanging tests."""
RANKS = 4
CODES = {"float32": "f", "float64": "d", "int8": "b", "uint8": "B", "int16": "h", "int32": "i", "int64": "q"}


class Memory:
    """Elements in memory owned by the test."""

    def __init__(self, dtype: str, values: list) -> None:
        self.code = CODES[dtype]
        self.bytes = struct.pack(f"{len(values)}{self.code}", *values)
        self.buffer = ctypes.create_string_buffer(self.bytes, max(len(self.bytes), 1))
        self.nbytes = len(self.bytes)
        self.numel = len(values)

    @property
    def ptr(self) -> int:
        return ctypes.addressof(self.buffer)

    @property
    def span(self) -> tuple[int, int]:
        return self.ptr, self.nbytes

    def values(self) -> list:
        return list(struct.unpack(f"{self.numel}{self.code}", self.buffer.raw[: self.nbytes]))


def run(body, size: int = RANKS) -> list:
    """Call `body(group, rank)` in `size` forked processes; their results, or the first failure as text."""
    context = get_context("fork")
    addresses = [context.SimpleQueue() for _ in range(size)]
    results = context.SimpleQueue()

    def member(rank: int) -> None:
        try:
            group = _core.Group(rank, size, "test", None, None, SOON, {})
            for queue in addresses:
                queue.put((rank, group.address()))
            known = dict(addresses[rank].get() for _ in range(size))
            group.connect([known[peer] for peer in range(size)])
            result = body(group, rank)
            group.close()
            results.put((rank, result, None))
        except BaseException as error:
            results.put((rank, None, f"rank {rank}: {type(error).__name__}: {error}"))

    processes = [context.Process(target=member, args=(rank,)) for rank in range(size)]
    for process in processes:
        process.start()
    collected = {}
    reader = threading.Thread(target=lambda: [collected.update({r[0]: r[1:]}) for r in iter(results.get, None)])
    reader.start()
    for process in processes:
        process.join(SOON)
        process.kill()
    results.put(None)
    reader.join(SOON)
    failures = [failure for _, failure in collected.values() if failure]
    assert not failures, failures
    return [collected.get(rank, (None,))[0] for rank in range(size)]


@pytest.mark.parametrize("dtype", list(CODES))
def test_reductions(dtype):
    def body(group, rank):
        mine = [(rank + 1) * (i % 5) for i in range(1000)]
        sums = [10 * (i % 5) for i in range(1000)]
        total = Memory(dtype, mine)
        group.allreduce(total.ptr, total.numel, dtype, "sum", 1.0, SOON).wait(None)
        assert total.values() == sums
        most = Memory(dtype, mine)
        group.allreduce(most.ptr, most.numel, dtype, "max", 1.0, SOON).wait(None)
        assert most.values() == [4 * (i % 5) for i in range(1000)]
        mean = Memory(dtype, [2 * rank + 1] * 7)
        group.allreduce(mean.ptr, mean.numel, dtype, "avg", 1.0, SOON).wait(None)
        assert mean.values() == [4] * 7
        scaled = Memory(dtype, [rank] * 7)
        group.allreduce(scaled.ptr, scaled.numel, dtype, "premul_sum", 2.0, SOON).wait(None)
        assert scaled.values() == [12] * 7
        at_root = Memory(dtype, mine)
        group.reduce(at_root.ptr, at_root.numel, dtype, "sum", 1.0, 2, SOON).wait(None)
        assert at_root.values() == (sums if rank == 2 else mine)
        parts = [Memory(dtype, mine[250 * peer : 250 * (peer + 1)]) for peer in range(RANKS)]
        out = Memory(dtype, [0] * 250)
        spans = [(part.ptr, part.numel) for part in parts]
        group.reduce_scatter(out.ptr, spans, dtype, "sum", 1.0, SOON).wait(None)
        assert out.values() == sums[250 * rank : 250 * (rank + 1)]

    run(body)


def test_movements_and_messages():
    def body(group, rank):
        def filled(value: int, n: int) -> Memory:
            return Memory("int64", [value] * n)

        everything = filled(rank, 50_000)
        group.broadcast(*everything.span, 1, SOON).wait(None)
        assert everything.values() == [1] * 50_000
        outs = [filled(-1, 10 + peer) for peer in range(RANKS)]
        spans = [out.span for out in outs]
        mine = filled(rank, 10 + rank)
        group.allgather(spans, mine.span, SOON).wait(None)
        assert [out.values() for out in outs] == [[peer] * (10 + peer) for peer in range(RANKS)]
        group.gather(spans if rank == 3 else [], mine.span, 3, SOON).wait(None)
        group.scatter(mine.span, spans if rank == 3 else [], 3, SOON).wait(None)
        ins = [filled(10 * rank + peer, 5) for peer in range(RANKS)]
        outs = [filled(-1, 5) for _ in range(RANKS)]
        group.alltoall([out.span for out in outs], [each.span for each in ins], SOON).wait(None)
        assert [out.values() for out in outs] == [[10 * peer + rank] * 5 for peer in range(RANKS)]
        group.barrier(SOON).wait(None)
        if rank:
            group.send(*mine.span, 0, rank, SOON).wait(None)
        else:
            for peer in (3, 1, 2):
                got = filled(0, 10 + peer)
                work = group.recv(*got.span, None, peer, SOON)
                work.wait(None)
                assert (work.source_rank(), got.values()) == (peer, [peer] * (10 + peer))
        return json.loads(group.stats())

    for stats in run(body):
        assert stats["path"] == "host"
        assert stats["operations"] == 6
        assert {"job", "epoch", "trees", "pauses", "host_bytes_tx", "served", "redone"} <= stats.keys()


def test_callbacks_come_once_and_may_wait_for_other_operations():
    def body(group, rank):
        first, second = Memory("int32", [rank]), Memory("int32", [1])
        called = []
        done = threading.Event()

        def after() -> None:
            called.append(threading.current_thread())
            group.allreduce(second.ptr, 1, "int32", "sum", 1.0, SOON).wait(None)
            done.set()

        work = group.allreduce(first.ptr, 1, "int32", "sum", 1.0, SOON)
        work.on_done(after)
        assert done.wait(SOON)
        assert len(called) == 1 and called[0] is not threading.main_thread()
        assert second.values() == [4]
        assert work.done() and work.error() is None

    run(body)


def test_errors_have_their_own_exceptions():
    def body(group, rank):
        memory = Memory("float32", [0.0] * (9 if rank == 1 else 8))
        with pytest.raises(_core.Unsupported, match="band is not defined for float32"):
            group.allreduce(memory.ptr, 8, "float32", "band", 1.0, SOON).wait(None)
        with pytest.raises(_core.Unsupported, match=r"complex64.* cannot be reduced"):
            group.allreduce(memory.ptr, 8, "complex64", "sum", 1.0, SOON)
        with pytest.raises(_core.OperationTimeout, match=r"receive of 4 bytes from rank \d"):
            group.recv(memory.ptr, 4, 0 if rank else 1, 99, 0.2).wait(None)
        with pytest.raises(_core.Mismatch, match=r"rank 1 called allreduce float32\[9\] sum"):
            # A rank may see the others' calls while it is still leaving the barrier.
            group.barrier(SOON).wait(None)
            group.allreduce(memory.ptr, memory.numel, "float32", "sum", 1.0, SOON).wait(None)

    run(body)


def test_a_killed_rank_is_named():
    waiting = Latch()

    def body(group, rank):
        memory = Memory("float32", [1.0] * 1000)
        if rank == 2:
            waiting.wait(3)
            os.kill(os.getpid(), signal.SIGKILL)
        work = group.allreduce(memory.ptr, 1000, "float32", "sum", 1.0, SOON)
        waiting.set()
        with pytest.raises(_core.PeerLost, match=r"rank 2 \(host .*, pid \d+\) is lost") as raised:
            work.wait(None)
        assert raised.value.rank == 2
        assert isinstance(raised.value, _core.NetsumError)
        return "told"

    assert run(body) == ["told", "told", None, "told"]


def test_no_controller_at_an_address_is_said():
    with pytest.raises(_core.ControllerUnavailable, match=r"127\.0\.0\.1:1"):
        _core.status("127.0.0.1:1", 2.0)
    with pytest.raises(_core.ControllerUnavailable, match=r"127\.0\.0\.1:1"):
        _core.Group(0, 2, "test", "127.0.0.1:1", None, 2.0, {})
    assert _core.version()
