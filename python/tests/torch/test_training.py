"""Typical training: DDP with its options and hooks, FSDP2, tensor parallelism, functional collectives."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


def small_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def batch(rank: int) -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(rank))


def train_alone(size: int, steps: int) -> nn.Module:
    """The same training in one process: the mean of the ranks' gradients."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        for rank in range(size):
            (model(batch(rank)).pow(2).mean() / size).backward()
        optimizer.step()
    return model


def train(model: nn.Module, rank: int, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch(rank)).pow(2).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("shape", ["auto", "backend"])
@pytest.mark.parametrize(
    "options", [{}, {"static_graph": True}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01}]
)
def test_ddp_trains_as_one_process_would(ranks, options, shape):
    def body(rank, size):
        model = DistributedDataParallel(small_model(), **options)
        train(model, rank, 4)
        for ours, alone in zip(model.module.parameters(), train_alone(size, 4).parameters(), strict=True):
            torch.testing.assert_close(ours, alone, rtol=1e-4, atol=1e-6)

    ranks(body, 3, NETSUM_TORCH_SHAPE=shape)


@pytest.mark.parametrize(
    "hook", [default_hooks.allreduce_hook, default_hooks.fp16_compress_hook, default_hooks.bf16_compress_hook]
)
def test_ddp_python_hooks(ranks, hook):
    def body(rank, size):
        model = DistributedDataParallel(small_model())
        model.register_comm_hook(None, hook)
        train(model, rank, 3)
        mine = torch.cat([p.detach().flatten() for p in model.parameters()])
        other = mine.clone()
        dist.broadcast(other, 0)
        assert torch.equal(mine, other)

    ranks(body)


def test_ddp_no_sync_and_join(ranks):
    def body(rank, size):
        model = DistributedDataParallel(small_model())
        with model.no_sync():
            model(batch(rank)).sum().backward()
        model(batch(rank)).sum().backward()
        with model.join():
            for _ in range(2 + rank):
                model(batch(rank)).sum().backward()

    ranks(body)


def test_fsdp2_trains_as_one_process_would(ranks):
    def body(rank, size):
        model = copy.deepcopy(small_model())
        mesh = init_device_mesh("cpu", (size,))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        train(model, rank, 3)
        for ours, alone in zip(model.parameters(), train_alone(size, 3).parameters(), strict=True):
            torch.testing.assert_close(ours.full_tensor(), alone, rtol=1e-4, atol=1e-6)

    ranks(body)


def test_tensor_parallel_layers(ranks):
    def body(rank, size):
        model = small_model()
        expected = model(batch(0))
        mesh = init_device_mesh("cpu", (size,))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        torch.testing.assert_close(model(batch(0)), expected, rtol=1e-4, atol=1e-6)

    ranks(body)


def test_functional_collectives(ranks):
    def body(rank, size):
        group = dist.group.WORLD
        x = torch.full((4,), rank + 1.0)
        assert functional.all_reduce(x, "sum", group).tolist() == [3.0] * 4
        assert functional.all_gather_tensor(x, 0, group).tolist() == [1.0] * 4 + [2.0] * 4
        assert functional.reduce_scatter_tensor(x, "avg", 0, group).tolist() == [1.5, 1.5]
        assert functional.all_to_all_single(x, None, None, group).tolist() == [1.0, 1.0, 2.0, 2.0]
        assert functional.broadcast(x, 1, group).tolist() == [2.0] * 4
        gathered = functional.all_gather_into_tensor_coalesced([x, x + 1], group)
        assert gathered[1].tolist() == [2.0] * 4 + [3.0] * 4

    ranks(body)
