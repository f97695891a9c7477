"""Asynchronous sums that complete within their call, as for the last rank to call, and those that do not."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

NUMELS = [0, 1, 2000, 4000, 61_706, 1 << 18, (1 << 18) + 1]


@pytest.mark.parametrize("shape", ["auto", "backend"])
@pytest.mark.parametrize("late", [None, 0, 1])
def test_every_way_to_ask_a_work_answers_alike(ranks, shape, late):
    def body(rank, size):
        for numel in NUMELS:
            x = torch.ones(numel)
            dist.barrier()
            if rank == late:
                time.sleep(0.01)
            work = dist.all_reduce(x, async_op=True)
            future = work.get_future()
            seen = future.then(lambda done, x=x: (done.value()[0].data_ptr() == x.data_ptr(), bool((x == 2).all())))
            assert work.wait(timedelta(seconds=10)) and work.wait()
            assert (x == 2).all()
            # torch's wrapper of a backend's work does not forward the query.
            assert work.is_completed() or shape == "backend"
            assert future.wait()[0].data_ptr() == x.data_ptr() and future.done()
            assert seen.wait() == (True, True)

    ranks(body, NETSUM_TORCH_SHAPE=shape)


def test_sums_that_are_asked_for_late_keep_their_order(ranks):
    def body(rank, size):
        tensors = [torch.full((numel,), float(turn)) for turn, numel in enumerate(NUMELS * 6)]
        works = []
        for turn, tensor in enumerate(tensors):
            if turn % 3 == rank:
                time.sleep(0.0002 * (turn % 4))
            works.append(dist.all_reduce(tensor, async_op=True))
        for turn, (work, tensor) in reversed(list(enumerate(zip(works, tensors, strict=True)))):
            work.wait()
            assert (tensor == size * turn).all()

    ranks(body)


def test_a_batch_takes_what_has_ended(ranks):
    def body(rank, size):
        tensors = [torch.ones(numel) for numel in NUMELS]
        dist.barrier()
        if rank == 1:
            time.sleep(0.05)
        with dist._coalescing_manager(async_ops=True) as batch:
            for tensor in tensors:
                dist.all_reduce(tensor)
        batch.wait()
        assert all((tensor == size).all() for tensor in tensors)

    ranks(body)


@pytest.mark.parametrize("shape", ["auto", "backend"])
def test_ddp_sums_small_buckets_whoever_is_late(ranks, shape):
    def body(rank, size):
        torch.manual_seed(1)
        layers = [layer for _ in range(6) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh())]
        alone = torch.nn.Sequential(*layers)
        model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.02)
        batches = torch.randn(5, size, 8, 64)
        for turn, inputs in enumerate(batches):
            model.zero_grad()
            if turn % 2 == rank:
                time.sleep(0.01)
            model(inputs[rank]).square().mean().backward()
            summed = [each.grad.clone() for each in model.parameters()]
            model.zero_grad()
            alone(inputs.view(-1, 64)).square().mean().backward()
            for ours, right in zip(summed, alone.parameters(), strict=True):
                torch.testing.assert_close(ours, right.grad)

    ranks(body, NETSUM_TORCH_SHAPE=shape)


def test_who_waits_finds_its_event_in_the_profile(ranks):
    def body(rank, size):
        end = torch.autograd._record_function_with_args_exit

        def end_late(handle):
            time.sleep(0.01)
            end(handle)

        torch.autograd._record_function_with_args_exit = end_late
        for _ in range(5):
            dist.barrier()
            with torch.autograd.profiler.profile() as profile:
                if rank == 1:
                    time.sleep(0.001)
                dist.all_reduce(torch.ones(3), async_op=True).wait()
            events = [each for each in profile.function_events if each.name == "netsum:all_reduce"]
            assert [each.time_range.elapsed_us() >= 10_000 for each in events] == [True]

    ranks(body)
