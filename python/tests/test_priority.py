"""The priority queue: the same sums as without it, later ones overtake, errors reach all ranks."""

import os
from array import array

import pytest
from processes import Latch, run_ranks

import netsum
from netsum.communicator import connect
from netsum.priority import PriorityQueue

SOON = 60.0
"""Time limit of operations that succeed: a guard against hanging tests."""


def _queue(world, **options) -> PriorityQueue:
    return PriorityQueue(world.split(range(world.size)), **options)


@pytest.mark.parametrize("shared_memory", ["on", "off"])
def test_sums_are_those_of_the_communicator_to_the_bit(shared_memory):
    def body(rank):
        world = connect(timeout_s=SOON)
        queue = _queue(world, slice_bytes=100)
        arrays = [array("f", [0.1 * (rank + 1) + i * 1e-3 for i in range(n)]) for n in (0, 1, 24, 25, 26, 1000)]
        expected = [array("f", each) for each in arrays]
        for each in expected:
            world.allreduce(each)
        sums = [queue.allreduce(each, priority=-at) for at, each in enumerate(arrays)]
        other = queue.allreduce(array("q", [rank, -rank]), "max")
        assert [list(each.wait(SOON)) for each in sums] == [list(each) for each in expected]
        assert list(other.wait(SOON)) == [world.size - 1, 0]
        queue.close()
        with pytest.raises(netsum.NetsumError, match="closed"):
            queue.allreduce(array("f", [1.0]))
        world.close()

    run_ranks(body, 3, NETSUM_SHARED_MEMORY=shared_memory)


def test_a_later_sum_overtakes_an_earlier_one_at_all_ranks():
    asked = Latch()

    def body(rank):
        world = connect(timeout_s=SOON)
        queue = _queue(world, slice_bytes=1 << 16)
        world.barrier()
        if rank == 1:
            # The order is rank 0's, independent of the others' calls.
            asked.wait()
        large = queue.allreduce(bytearray(64 << 20), priority=5)
        small = queue.allreduce(array("f", [1.0]), priority=0)
        asked.set()
        assert list(small.wait(SOON)) == [2.0]
        overtaken = not large.done()
        large.wait(SOON)
        queue.close()
        world.close()
        return overtaken

    assert run_ranks(body, 2) == [True, True]


def test_a_lost_rank_fails_what_waits_and_what_comes():
    def body(rank):
        world = connect(timeout_s=SOON)
        queue = _queue(world)
        waiting = queue.allreduce(array("f", [1.0])) if rank != 1 else None
        world.barrier()
        if rank == 1:
            os._exit(0)
        with pytest.raises(netsum.PeerLost, match="rank 1"):
            waiting.wait(SOON)
        with pytest.raises(netsum.PeerLost):
            queue.close()
        with pytest.raises(netsum.PeerLost):
            queue.allreduce(array("f", [1.0]))
        world.abort("over")

    run_ranks(body, 3)


def test_a_mismatch_of_sizes_is_named():
    def body(rank):
        world = connect(timeout_s=SOON)
        queue = _queue(world)
        with pytest.raises(netsum.Mismatch, match="allreduce"):
            queue.allreduce(array("f", [1.0] * (rank + 1))).wait(SOON)
        world.abort("over")

    run_ranks(body, 2)
