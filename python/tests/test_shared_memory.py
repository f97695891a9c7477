"""Ranks of one host that share memory: death, missing answers, interrupts, and leftover files."""

import itertools
import json
import os
import signal
import threading
import time

import pytest
from processes import Latch, state_of, wait_until
from test_core import SOON, Memory, run

from netsum import _core


def _sum(group, value: int, n: int, timeout_s: float = SOON, here: bool = True) -> list:
    memory = Memory("int32", [value] * n)
    work = group.allreduce(memory.ptr, memory.numel, "int32", "sum", 1.0, timeout_s, here)
    if work is not None:
        work.wait(None)
    return memory.values()


@pytest.mark.parametrize("n", [1, 300_000])
def test_a_killed_rank_is_named_at_once(n):
    def body(group, rank):
        assert json.loads(group.stats())["hosts_by"] == "shared memory"
        for step in range(1000):
            if rank == 2 and step == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            started = time.monotonic()
            try:
                assert _sum(group, rank, n)[0] == 3
            except _core.PeerLost as error:
                # Its last sum may be lost for ranks that had not read it.
                assert error.rank == 2 and step >= 19
                return time.monotonic() - started

    waited = run(body, 3)
    assert waited[2] is None
    assert all(seconds < SOON / 2 for seconds in waited[:2]), "long before the time-out"


def test_a_stopped_rank_is_named_at_the_timeout():
    stopped, given_up = Latch(), Latch()

    def body(group, rank):
        assert _sum(group, rank, 10)[0] == 3
        if rank == 1:
            # A child process continues it when the others have failed.
            parent = os.getpid()
            if os.fork() == 0:
                wait_until(lambda: state_of(parent) == "T")
                stopped.set()
                given_up.wait(2)
                os.kill(parent, signal.SIGCONT)
                os._exit(0)
            os.kill(parent, signal.SIGSTOP)
            return None
        stopped.wait()
        with pytest.raises(_core.OperationTimeout, match=r"rank 1 \(host .*, pid \d+\) was not heard from"):
            _sum(group, rank, 10, timeout_s=1.0)
        given_up.set()
        with pytest.raises(_core.NetsumError, match="since this one failed: allreduce"):
            _sum(group, rank, 10)

    run(body, 3)


def _round(group, rank: int, size: int, memories: dict[str, Memory], step: int) -> None:
    """A message to the next rank and one of the rank before; its values are checked."""
    out, into = memories["out"], memories["in"]
    sent = group.send(out.ptr, 4 * out.numel, (rank + 1) % size, step, SOON)
    group.recv(into.ptr, 4 * into.numel, (rank - 1) % size if step % 2 else None, step, SOON).wait(None)
    sent.wait(None)
    assert set(into.values()) == {(rank - 1) % size}


def _memories(rank: int, n: int) -> dict[str, Memory]:
    return {"out": Memory("int32", [rank] * n), "in": Memory("int32", [-1] * n)}


@pytest.mark.parametrize("n", [1, 5_000, 300_000])
def test_a_rank_killed_between_messages_is_named_at_once(n):
    def body(group, rank):
        memories = _memories(rank, n)
        for step in itertools.count():
            if rank == 2 and step == 20:
                # Most likely in the middle of a message of its own.
                threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGKILL)).start()
            started = time.monotonic()
            try:
                _round(group, rank, 3, memories, step)
            except _core.PeerLost as error:
                assert error.rank == 2 and step >= 19
                return time.monotonic() - started

    waited = run(body, 3)
    assert waited[2] is None
    assert all(seconds < SOON / 2 for seconds in waited[:2]), "long before the time-out"


@pytest.mark.parametrize("n", [1, 300_000])
def test_messages_go_on_when_a_rank_was_stopped(n):
    def body(group, rank):
        memories = _memories(rank, n)
        for step in range(200):
            if rank == 1 and step in (20, 100):
                parent = os.getpid()
                if os.fork() == 0:
                    time.sleep(0.3)
                    os.kill(parent, signal.SIGCONT)
                    os._exit(0)
                os.kill(parent, signal.SIGSTOP)
            _round(group, rank, 3, memories, step)
        return json.loads(group.stats())["host_bytes_rx"]

    assert all(bytes_rx >= 200 * 4 * n for bytes_rx in run(body, 3))


def test_a_message_that_nobody_sends_times_out_and_names_its_rank():
    def body(group, rank):
        into = Memory("int32", [0])
        if rank == 0:
            with pytest.raises(
                _core.OperationTimeout, match=r"receive of 4 bytes from rank 1 \(tag 3\).*rank 1 \(host"
            ):
                group.recv(into.ptr, 4, 1, 3, 0.5).wait(None)
        _sum(group, rank, 10)

    run(body, 2)


def test_an_interrupt_ends_a_wait_on_the_callers_thread():
    interrupted = Latch()

    def body(group, rank):
        _sum(group, rank, 10)
        if rank == 1:
            # It never calls the sum that rank 0 waits for.
            interrupted.wait()
            return
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            _sum(group, rank, 10)
        interrupted.set()

    run(body, 2)


def test_groups_leave_no_memory_or_descriptors_behind():
    def counts() -> tuple[int, int]:
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), sum("memfd:netsum" in line for line in maps)

    def once() -> None:
        groups = [_core.Group(rank, 2, "leak", None, None, SOON, {}) for rank in range(2)]
        addresses = [group.address() for group in groups]

        def member(group, rank: int) -> None:
            group.connect(addresses)
            assert _sum(group, rank, 1000)[0] == 1
            group.close()

        threads = [threading.Thread(target=member, args=(group, rank)) for rank, group in enumerate(groups)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    once()
    before = counts()
    for _ in range(100):
        once()
    assert counts() == before
    assert before[1] == 0
