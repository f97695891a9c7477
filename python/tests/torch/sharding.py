"""A small model, and its training in one process with the additions in the order that netsum promises."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

STEPS = 3
WIDTH = 16
HIDDEN = 38


class Block(nn.Module):
    """Parameters whose rows 2 and 4 ranks share evenly, unevenly, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.down(torch.tanh(self.up(x)))


def blocks(count: int = 3) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(Block() for _ in range(count)), nn.Linear(WIDTH, 4))


def sharded(model: nn.Sequential, **options) -> nn.Sequential:
    """Each block on its own, and the last layer with the root."""
    for block in model[:-1]:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def batch(rank: int, number: int) -> torch.Tensor:
    """The input of a rank in its n-th forward pass."""
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1000 * number + rank))


def loss_of(model: nn.Module, rank: int, number: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return model(batch(rank, number).to(dtype)).float().pow(2).mean()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def summed(parts: list[torch.Tensor]) -> torch.Tensor:
    """The sum in the order of netsum's hosts: a balanced tree over ranks."""
    if len(parts) == 1:
        return parts[0]
    half = 1 << (len(parts) - 1).bit_length() - 1
    return summed(parts[:half]) + summed(parts[half:])


def trained_alone(
    size: int,
    micro: int = 1,
    parameters: torch.dtype = torch.float32,
    reduced: torch.dtype = torch.float32,
    sync_every: bool = False,
    copies: int = 1,
) -> list[torch.Tensor]:
    """The parameters after the training that `size` ranks do, computed by one process.

    micro: forward passes per step. sync_every: gradients of each are summed over ranks, not of all together.
    parameters, reduced: types of the computation and of the sums. copies: with hybrid sharding, groups of ranks whose
    means are averaged.
    """
    model = blocks()
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        of_ranks = [_gradients(model, rank, step, micro, parameters, reduced) for rank in range(size)]
        rounds = [[passes[number] for passes in of_ranks] for number in range(micro)]
        if not sync_every:
            rounds = [[_total(each) for each in of_ranks]]
        means = [[_mean(each, copies) for each in zip(*one, strict=True)] for one in rounds]
        for parameter, mean in zip(model.parameters(), _total(means), strict=True):
            parameter.grad = mean.to(parameter.dtype)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def _gradients(
    model: nn.Sequential, rank: int, step: int, micro: int, dtype: torch.dtype, reduced: torch.dtype
) -> list[list[torch.Tensor]]:
    """By forward pass the gradients of one rank, in the type of the sums."""
    own = blocks()
    own.load_state_dict(model.state_dict())
    own.to(dtype)
    found = []
    for number in range(micro):
        own.zero_grad()
        loss_of(own, rank, step * micro + number, dtype).backward()
        found.append([parameter.grad.to(reduced) for parameter in own.parameters()])
    return found


def _total(passes: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    """Sums of several passes, in their order."""
    total = passes[0]
    for each in passes[1:]:
        total = [a + b for a, b in zip(total, each, strict=True)]
    return total


def _mean(parts: tuple[torch.Tensor, ...], copies: int) -> torch.Tensor:
    shards = len(parts) // copies
    groups = [summed(list(parts[first : first + shards])) / shards for first in range(0, len(parts), shards)]
    return summed(groups) / copies


def whole(model: nn.Module) -> Iterator[torch.Tensor]:
    for parameter in model.parameters():
        yield parameter.full_tensor()


def same_bits(model: nn.Module, expected: list[torch.Tensor]) -> None:
    for found, other in zip(whole(model), expected, strict=True):
        assert torch.equal(found, other), (found - other).abs().max()
