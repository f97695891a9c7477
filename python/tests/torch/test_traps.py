"""Known pitfalls of a backend written in Python, one test each; the numbers are those of the project's notes on
collectives.

1 errors that C++ does not see · 2 futures completed on the progress thread · 3 waits with a timeout · 4 options that
recurse · 5 forwarding to the base class · 6 the backend's type · 7 batches with messages in them · 8 unrequested
futures · 9 the interpreter lock.
"""

import os
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from processes import Latch
from torch._C import _distributed_c10d as c10d
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.nn.parallel import DistributedDataParallel

import netsum
from netsum.torch import stats


def _sync(x):
    dist.all_reduce(x)


def _async(x):
    dist.all_reduce(x, async_op=True).wait()


def _async_with_timeout(x):
    dist.all_reduce(x, async_op=True).wait(timedelta(seconds=15))


def _future(x):
    dist.all_reduce(x, async_op=True).get_future().wait()


def _future_then(x):
    dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0]).wait()


def _functional(x):
    functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))


PATHS = [_sync, _async, _async_with_timeout, _future, _future_then, _functional]


@pytest.mark.parametrize("shape", ["auto", "backend"])
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_1_a_lost_rank_raises_on_every_path(ranks, path, shape):
    def body(rank, size):
        dist.barrier()
        if rank == 1:
            os._exit(0)
        with pytest.raises(RuntimeError):
            path(torch.ones(4))
        os._exit(0)

    ranks(body, NETSUM_TORCH_SHAPE=shape)


@pytest.mark.parametrize("shape", ["auto", "backend"])
def test_1_a_lost_rank_raises_in_ddp(ranks, shape):
    def body(rank, size):
        model = DistributedDataParallel(torch.nn.Linear(4, 4))
        dist.barrier()
        if rank == 1:
            os._exit(0)
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 4)).sum().backward()
        os._exit(0)

    ranks(body, NETSUM_TORCH_SHAPE=shape)


def test_2_a_callback_that_reduces_does_not_deadlock(ranks):
    def body(rank, size):
        model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 8)))
        state = power.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1)
        model.register_comm_hook(state, power.powerSGD_hook)
        for _ in range(5):
            model(torch.randn(4, 32)).sum().backward()
        done = dist.all_reduce(torch.ones(2), async_op=True).get_future()
        nested = done.then(lambda _: dist.all_reduce(torch.ones(2), async_op=True).get_future().wait())
        assert nested.wait()[0].tolist() == [size, size]

    ranks(body)


def test_3_a_wait_with_a_timeout_ends_and_the_operation_lives_on(ranks):
    given_up = Latch()

    def body(rank, size):
        x = torch.ones(3)
        if rank == 1:
            given_up.wait()
        work = dist.all_reduce(x, async_op=True)
        if rank == 0:
            with pytest.raises(netsum.OperationTimeout):
                work.wait(timedelta(milliseconds=100))
            given_up.set()
        work.wait()
        assert x.tolist() == [2.0] * 3

    ranks(body)


@pytest.mark.parametrize("shape", ["auto", "backend"])
def test_4_options_and_splitting_answer(ranks, shape):
    def body(rank, size):
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        assert backend.options is not None and backend.supports_splitting
        for parts in ([[1, 0], [2, 3]], [[2, 0, 3, 1]]):
            mine = next(part for part in parts if rank in part)
            part = dist.split_group(dist.group.WORLD, parts, timeout=timedelta(seconds=15))
            _is_of(part, mine, rank)
            again = dist.split_group(part, [list(reversed(range(len(mine))))])
            _is_of(again, list(reversed(mine)), rank)

    ranks(body, 4, NETSUM_TORCH_SHAPE=shape)


def _is_of(part: dist.ProcessGroup, members: list[int], rank: int) -> None:
    """Whether a sub-group works, and its ranks are those of the world, in their order."""
    assert part.rank() == members.index(rank) and dist.get_process_group_ranks(part) == members
    x, outs = torch.tensor([rank + 1.0]), [torch.empty(1) for _ in members]
    dist.all_gather(outs, x, group=part)
    assert [int(out) - 1 for out in outs] == members
    dist.all_reduce(x, group=part)
    assert x.item() == sum(members) + len(members)
    assert stats(part)["operations"] >= 2


def test_4_a_part_may_leave_ranks_out(ranks):
    def body(rank, size):
        part = dist.split_group(dist.group.WORLD, [[2, 0]])
        if rank == 1:
            assert part is dist.GroupMember.NON_GROUP_MEMBER
        else:
            assert type(part).__name__ == "NetsumProcessGroup"
            _is_of(part, [2, 0], rank)
        dist.barrier()

    ranks(body, 3)


def test_4_where_torch_would_end_the_process_an_error_says_so(ranks):
    def body(rank, size):
        if rank == 1:
            with pytest.raises(RuntimeError, match="rank 1 is in no part"):
                dist.split_group(dist.group.WORLD, [[0]])
        else:
            assert dist.split_group(dist.group.WORLD, [[0]]).size() == 1

    ranks(body, NETSUM_TORCH_SHAPE="backend")


@pytest.mark.parametrize("shape", ["auto", "backend"])
def test_4_a_group_bound_to_a_device_makes_sub_groups(ranks, shape):
    def body(rank, size):
        store = dist.distributed_c10d._get_default_store()
        dist.destroy_process_group()
        device = torch.device("cpu:0")
        dist.init_process_group("netsum", store=store, rank=rank, world_size=size, device_id=device)
        groups = [dist.new_group([0, 2]), dist.new_group([1])]
        for group in groups:
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                x = torch.ones(1)
                dist.all_reduce(x, group=group)
                assert x.item() == group.size()

    ranks(body, 3, NETSUM_TORCH_SHAPE=shape)


def test_5_an_override_may_forward(ranks):
    def body(rank, size):
        from netsum.torch import NetsumProcessGroup

        calls = []

        class Counting(NetsumProcessGroup):
            def allreduce(self, tensors, opts):
                calls.append(len(tensors))
                return super().allreduce(tensors, opts)

        dist.group.WORLD.__class__ = Counting
        x = torch.ones(2)
        dist.all_reduce(x)
        dist.ProcessGroup.allreduce(dist.group.WORLD, [x], c10d.AllreduceOptions()).wait()
        assert x.tolist() == [4.0, 4.0] and calls == [1, 1]

    ranks(body)


def test_6_the_backend_is_not_taken_for_gloo(ranks):
    def body(rank, size):
        assert dist.Backend.backend_type_map["netsum"] == dist.ProcessGroup.BackendType.CUSTOM
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        assert model._get_ddp_logging_data()["backend_name"] == "netsum"

    ranks(body)


def test_7_the_end_of_a_batch_covers_its_messages(ranks):
    def body(rank, size):
        out, into = torch.full((200_000,), float(rank)), torch.empty(200_000)
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as batch:
            dist.isend(out, 1 - rank)
            dist.irecv(into, 1 - rank)
        assert len(batch.works) == 1
        batch.wait()
        assert (into == 1 - rank).all()

    ranks(body)


def test_8_no_future_is_made_unless_asked_for(ranks):
    def body(rank, size):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        work.wait()
        assert work._future is None
        assert work.get_future() is work.get_future()
        assert work.is_completed() and work.is_success()

    ranks(body)


def test_9_a_wait_leaves_the_interpreter_to_others(ranks):
    counted = Latch()

    def body(rank, size):
        if rank == 1:
            # Rank 0's barrier ends only if its other thread runs meanwhile.
            counted.wait()
            dist.barrier()
            return

        def count():
            for _ in range(100):
                time.sleep(0.001)
            counted.set()

        counter = threading.Thread(target=count)
        counter.start()
        dist.barrier()
        counter.join()

    ranks(body)
