"""Which of a training's collectives go through switches, and which between hosts."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from netsum.torch import stats
from netsum.torch.create import BACKENDS

_ELEMENT = 4


def collectives() -> list[dict[str, Any]]:
    """The collectives of the world's last steps by kind and size, each with `by`: "switches" or "hosts". Collective.

    calls: among the last operations of rank 0, which its recorder keeps. Every kind is called once more, and the
    counter of operations in the network tells its way: the choice depends on kind, type and size alone.
    """
    found: list[Any] = [None]
    if dist.get_rank() == 0:
        core = BACKENDS[dist.group.WORLD.group_name].engine.core
        operations = json.loads(core.recorded())["operations"]
        kinds = Counter((each["call"].split()[0], each["bytes"]) for each in operations if each["number"] is not None)
        found = [[(*kind, calls) for kind, calls in sorted(kinds.items()) if kind[0] in _AGAIN]]
    dist.broadcast_object_list(found)
    return [
        {"operation": name, "bytes": size, "calls": calls, "by": _way(_AGAIN[name], size)}
        for name, size, calls in found[0]
    ]


def _way(again: Callable[[int], object], size: int) -> str:
    before = stats()["network_operations"]
    again(size // _ELEMENT)
    return "switches" if stats()["network_operations"] > before else "hosts"


def _gather(numel: int) -> None:
    dist.all_gather_into_tensor(torch.empty(numel), torch.zeros(numel // dist.get_world_size()))


def _scatter(numel: int) -> None:
    dist.reduce_scatter_tensor(torch.empty(numel // dist.get_world_size()), torch.zeros(numel))


_AGAIN: dict[str, Callable[[int], object]] = {
    "allreduce": lambda numel: dist.all_reduce(torch.zeros(numel)),
    "allgather": _gather,
    "reduce_scatter": _scatter,
    "broadcast": lambda numel: dist.broadcast(torch.zeros(numel), 0),
}
"""By the core's name of a collective, how to call it with so many elements."""
