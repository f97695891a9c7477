"""Tensors on an accelerator: CUDA's if available, and a simulated one with delayed streams and memory that the host
cannot access (`accelerator/simulated.cpp`)."""

import time
from datetime import timedelta

import accelerator
import pytest
import torch
import torch.distributed as dist
from processes import Latch
from torch.nn.parallel import DistributedDataParallel

import netsum
import netsum.torch


@pytest.fixture(scope="session")
def library(pytestconfig):
    if accelerator.why_not():
        pytest.skip(accelerator.why_not())
    return accelerator.build(pytestconfig.cache.mkdir("accelerator"))


@pytest.fixture(params=["simulated", "cuda"])
def on(request, ranks):
    """`on(body, …)`: as `ranks`, with torch.get_default_device() on the accelerator."""
    before = []
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    if request.param == "simulated":
        library = request.getfixturevalue("library")
        before.append(lambda: accelerator.load(library))

    def run(body, size: int = 2, **options) -> None:
        def on_device(rank: int, size: int) -> None:
            torch.set_default_device(f"{request.param}:0")
            body(rank, size)

        ranks(on_device, size, before=lambda: [each() for each in before], **options)

    return run


def values(rank: int, count: int = 1000) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32) * (rank + 1)


def total(size: int, count: int = 1000) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32, device="cpu") * sum(range(1, size + 1))


def busy(copies: int = 20) -> None:
    """Queue work on the current stream, which then is later than all others."""
    x = torch.zeros(1 << 16)
    for _ in range(copies):
        torch.empty_like(x).copy_(x, non_blocking=True)


@pytest.mark.parametrize("shape", ["auto", "backend"])
def test_sums_wait_for_the_stream_and_the_stream_for_sums(on, shape):
    def body(rank, size):
        for asynchronous in (False, True):
            x, y, mine = torch.zeros(1000), torch.zeros(1000), values(rank)
            busy()
            # Queued, not completed: the sum must follow it, and later work must follow the sum.
            x.copy_(mine, non_blocking=True)
            work = dist.all_reduce(x, async_op=asynchronous)
            if work is not None:
                work.wait()
            y.copy_(x, non_blocking=True)
            assert torch.equal(y.cpu(), total(size))

    on(body, size=3, NETSUM_TORCH_SHAPE=shape)


def test_a_sum_begins_on_the_callers_stream(on):
    def body(rank, size):
        x, mine = torch.zeros(1000), values(rank)
        stream = torch.Stream(device=x.device)
        stream.wait_stream(torch.accelerator.current_stream())
        with stream:
            busy()
            x.copy_(mine, non_blocking=True)
            work = dist.all_reduce(x, async_op=True)
            work.wait()
            y = x + 1
        stream.synchronize()
        assert torch.equal(y.cpu(), total(size) + 1)

    on(body)


def test_a_second_waiter_follows_the_first(on):
    def body(rank, size):
        x = values(rank)
        work = dist.all_reduce(x, async_op=True)
        busy()
        work.wait()
        stream = torch.Stream(device=x.device)
        with stream:
            work.wait()
            y = torch.empty(x.shape, device="cpu", pin_memory=True)
            y.copy_(x, non_blocking=True)
        stream.synchronize()
        assert torch.equal(y, total(size))

    on(body)


def test_the_caller_goes_on_while_the_stream_is_busy(on):
    def body(rank, size):
        x = values(rank)
        busy(40)
        queued = torch.Event(device=x.device)
        queued.record()
        work = dist.all_reduce(x, async_op=True)
        assert not work.is_completed() or queued.query()
        work.wait()
        assert torch.equal(x.cpu(), total(size))

    on(body)


def test_sums_of_host_and_device_keep_their_order(on):
    """Ranks match operations by order: one in host memory must not overtake one that waits for its copy."""

    def body(rank, size):
        inputs = []
        for count in range(10, 20):
            inputs += [torch.ones(2 * count), total(1, 2 * count + 1)]
        sums = [size * x.cpu() for x in inputs]
        works = []
        if rank == 0:
            busy()
        for x in inputs:
            works.append(dist.all_reduce(x, async_op=True))
            if rank == 1:
                # Ensures that this rank's copies have completed before it continues, unlike the other's.
                time.sleep(0.01)
        y = total(1, 7)
        dist.all_reduce(y)
        assert torch.equal(y, size * total(1, 7))
        for work, x, expected in zip(works, inputs, sums, strict=True):
            work.wait()
            assert torch.equal(x.cpu(), expected)

    on(body)


def test_every_operation(on):
    def body(rank, size):
        mine = values(rank, 6)
        everyone = [(torch.arange(6.0, device="cpu") * (r + 1)) for r in range(size)]
        x = mine.clone()
        dist.broadcast(x, 1)
        assert torch.equal(x.cpu(), everyone[1])
        x = mine.clone()
        dist.reduce(x, 1, dist.ReduceOp.MAX)
        assert rank != 1 or torch.equal(x.cpu(), everyone[size - 1])
        outs = [torch.empty(6) for _ in range(size)]
        dist.all_gather(outs, mine)
        assert all(torch.equal(out.cpu(), each) for out, each in zip(outs, everyone, strict=True))
        whole = torch.empty(6 * size)
        dist.all_gather_single(whole, mine)
        assert torch.equal(whole.cpu(), torch.cat(everyone))
        dist.gather(mine, outs if rank == 0 else None)
        part = torch.empty(6 // size)
        dist.reduce_scatter_single(part, mine)
        assert torch.equal(part.cpu(), sum(everyone).chunk(size)[rank])
        dist.scatter(x, [mine * r for r in range(size)] if rank == 0 else None)
        assert torch.equal(x.cpu(), everyone[0] * rank)
        dist.all_to_all_single(x, mine)
        assert torch.equal(x.cpu(), torch.cat([each.chunk(size)[rank] for each in everyone]))
        dist.barrier()
        # Not dense, and of other types.
        y = torch.ones(4, 6, dtype=torch.bfloat16).t()
        dist.all_reduce(y)
        assert torch.equal(y.cpu(), torch.full((6, 4), size, dtype=torch.bfloat16, device="cpu"))
        z = torch.ones(0)
        dist.all_reduce(z)
        objects = [{"rank": rank}] if rank == 0 else [None]
        dist.broadcast_object_list(objects)
        assert objects == [{"rank": 0}]

    on(body)


def test_messages(on):
    def body(rank, size):
        mine, other = values(rank), torch.empty(1000)
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
        )
        for work in works:
            work.wait()
        assert torch.equal(other.cpu(), values(1 - rank).cpu())
        if rank == 0:
            dist.send(mine, 1, tag=3)
        else:
            assert dist.recv(other, None, tag=3) == 0
            assert torch.equal(other.cpu(), values(0).cpu())

    on(body)


def test_a_future_yields_what_is_on_the_device(on):
    def body(rank, size):
        x = values(rank)
        half = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] / 2)
        assert torch.equal(half.wait().cpu(), total(size) / 2)

    on(body)


@pytest.mark.parametrize(("kind", "shape"), [(None, "auto"), (None, "backend"), ("bf16", "auto"), ("int8", "auto")])
def test_a_model_is_trained_as_by_one_process(on, kind, shape):
    def body(rank, size):
        torch.manual_seed(1)
        shapes = ((6, 16), (16, 3))
        initial = [torch.randn(out, into, device="cpu") for into, out in shapes]
        batch = torch.randn(8, 6, device="cpu")
        device = torch.get_default_device()

        def model() -> torch.nn.Module:
            layers = [torch.nn.Linear(into, out, bias=False, device="cpu") for into, out in shapes]
            for layer, weight in zip(layers, initial, strict=True):
                layer.weight.data.copy_(weight)
            return torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1])

        def train(net, inputs) -> list[torch.Tensor]:
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
            for _ in range(4):
                optimizer.zero_grad()
                net(inputs).square().mean().backward()
                optimizer.step()
            return [parameter.detach().cpu() for parameter in net.parameters()]

        alone = train(model(), batch)
        # Several buckets, so that sums run during the backward pass.
        together = DistributedDataParallel(model().to(device), bucket_cap_mb=0.0001)
        if kind is not None:
            netsum.torch.compressed(together, to=kind)
        near = {"rtol": 1e-5, "atol": 1e-6} if kind is None else {"rtol": 0, "atol": 5e-3}
        for found, expected in zip(train(together, batch.chunk(size)[rank].to(device)), alone, strict=True):
            torch.testing.assert_close(found, expected, **near)

    on(body, NETSUM_TORCH_SHAPE=shape)


def test_a_rank_that_is_lost_is_named(on):
    def body(rank, size):
        x = values(rank)
        dist.all_reduce(x)
        if rank == 1:
            return
        works = [dist.all_reduce(values(rank), async_op=True) for _ in range(3)]
        with pytest.raises(netsum.NetsumError, match="rank 1"):
            works[0].wait(timedelta(seconds=15))
        for work in works:
            with pytest.raises(netsum.NetsumError):
                work.wait(timedelta(seconds=15))
            assert work.exception() is not None
        with pytest.raises(RuntimeError, match="rank 1"):
            works[0].get_future().wait()

    on(body)


def test_a_wait_may_end_before_the_stream_does(on):
    given_up = Latch()

    def body(rank, size):
        x = values(rank)
        dist.barrier()
        if rank == 1:
            given_up.wait()
        work = dist.all_reduce(x, async_op=True)
        if rank == 0:
            with pytest.raises(netsum.OperationTimeout):
                work.wait(timedelta(milliseconds=100))
            given_up.set()
        work.wait()
        assert torch.equal(x.cpu(), total(size))

    on(body)
