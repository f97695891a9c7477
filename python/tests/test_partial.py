"""Partial sums: nothing is lost or counted twice with any straggler, all ranks have the same rounds, the bound
holds."""

import random
import time
from array import array

import pytest
from processes import BOUND_S, Latch, run_ranks

import netsum
from netsum.communicator import connect
from netsum.partial import PartialAllreduce


def _partial(world, count, **options) -> PartialAllreduce:
    return PartialAllreduce(world.split(range(world.size)), count, **options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shared_memory", ["on", "off"])
def test_every_contribution_is_in_exactly_one_round(dtype, shared_memory):
    code = {"float32": "f", "float64": "d"}[dtype]

    def body(rank):
        world = connect(timeout_s=30.0)
        partial = _partial(world, 3, dtype=dtype, bound_s=0.002, backlog=3)
        draw, rounds, given = random.Random(rank), [], 0
        for step in range(10 + 10 * rank):
            time.sleep(draw.choice([0, 0, 0.001, 0.01]))
            # A digit per rank: sums show how often each rank contributed.
            new = partial.exchange(array(code, [16.0**rank, step, 1.0]))
            assert sum(rank in each.ranks for each in new) == 1
            rounds += new
            given += step
        rounds += partial.close()
        world.close()
        return [(r.number, list(r.values), r.ranks) for r in rounds], given

    answers = run_ranks(body, 3, NETSUM_SHARED_MEMORY=shared_memory)
    rounds = answers[0][0]
    assert all(each == rounds for each, _ in answers)
    assert [number for number, *_ in rounds] == sorted({number for number, *_ in rounds})
    for _, (digits, _, count), ranks in rounds:
        assert digits == sum(16.0**rank for rank in ranks) and count == len(ranks)
    assert [sum(rank in ranks for *_, ranks in rounds) for rank in range(3)] == [10, 20, 30]
    assert sum(values[1] for _, values, _ in rounds) == sum(given for _, given in answers)


def test_the_others_do_not_wait_for_a_straggler_but_all_have_its_values_later():
    done = Latch()

    def body(rank):
        world = connect(timeout_s=BOUND_S)
        partial = _partial(world, 1, bound_s=0.02)
        if rank == 2:
            # The others end five rounds before it begins: if they waited for it, the test would deadlock.
            done.wait(2)
            rounds = partial.exchange(array("f", [100.0]))
        else:
            rounds = []
            for _ in range(5):
                rounds += partial.exchange(array("f", [1.0]))
            done.set()
        rounds += partial.close()
        world.close()
        return [(list(r.values), r.ranks) for r in rounds]

    first, second, late = run_ranks(body, 3)
    assert first == second == late
    assert first[-1] == ([100.0], (2,))
    assert sum(values[0] for values, _ in first) == 110.0
    assert all(2 not in ranks for _, ranks in first[:-1])


def test_a_rank_that_is_far_behind_holds_the_others_up():
    late, ahead_by = Latch(), Latch()

    def body(rank):
        world = connect(timeout_s=BOUND_S)
        partial = _partial(world, 1, bound_s=0.001, backlog=2)
        if rank == 1:
            # Rank 0 proceeds as far as the backlog allows, and waits there however long this rank takes.
            ahead_by.wait()
            time.sleep(0.5)
            late.set()
            rounds = partial.exchange(array("f", [1.0]))
        else:
            rounds = []
            for _ in range(6):
                ahead_by.set()
                rounds += partial.exchange(array("f", [1.0]))
            assert late.count() == 1, "six rounds ended before rank 1 had begun"
        rounds += partial.close()
        world.close()
        return len(rounds)

    ahead, behind = run_ranks(body, 2)
    assert ahead == behind


def test_a_lost_rank_ends_it_with_its_name():
    def body(rank):
        import os

        world = connect(timeout_s=10.0)
        partial = _partial(world, 1, bound_s=0.01)
        if rank == 1:
            os._exit(0)
        with pytest.raises(netsum.PeerLost, match="rank 1"):
            for _ in range(1000):
                partial.exchange(array("f", [1.0]))
        world.abort("over")

    run_ranks(body, 3)


def test_wrong_arguments_are_named():
    def body(rank):
        world = connect()
        with pytest.raises(ValueError, match="int32"):
            PartialAllreduce(world, 1, "int32")
        with pytest.raises(ValueError, match="backlog 0"):
            PartialAllreduce(world, 1, backlog=0)
        partial = _partial(world, 2)
        with pytest.raises(ValueError, match="1 elements of float64"):
            partial.exchange(array("d", [1.0]))
        (only,) = partial.exchange(array("f", [1.0, 2.0]))
        assert (only.number, list(only.values), only.ranks) == (0, [1.0, 2.0], (0,))
        assert partial.close() == []
        with pytest.raises(netsum.NetsumError, match="closed"):
            partial.exchange(array("f", [1.0, 2.0]))

    run_ranks(body, 1)
