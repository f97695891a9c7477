"""The torch backend: `torch.distributed.init_process_group("netsum")`, with no import needed (torch 2.14 or later).

Start reading at `create`, then `backend`. Operations are in `reductions`, `movements` and `points`; their return types
are in `work`. Gradient compression to 8 or 16 bits is in `compression`, gradients that are mostly zero in `blocks`,
FSDP2 of models in host memory in `fsdp`.
"""

import json

import torch.distributed as dist

from netsum.reports import GroupStats
from netsum.torch.backend import NetsumBackend, NetsumProcessGroup, Options
from netsum.torch.blocks import BlockSparseState, block_sparse, block_sparse_hook
from netsum.torch.compression import CompressionState, compressed, compression_hook
from netsum.torch.create import BACKENDS, create
from netsum.torch.device import accelerator

__all__ = [
    "BlockSparseState",
    "CompressionState",
    "NetsumBackend",
    "NetsumProcessGroup",
    "Options",
    "block_sparse",
    "block_sparse_hook",
    "compressed",
    "compression_hook",
    "register",
    "stats",
]


def register() -> None:
    """Register the backend "netsum" with torch, for the CPU and this process's accelerator.

    torch calls this through the entry point; further calls have no effect.
    """
    kind = accelerator()
    devices = ["cpu"] if kind is None else ["cpu", kind]
    dist.Backend.register_backend("netsum", create, extended_api=True, devices=devices)


def stats(group: dist.ProcessGroup | None = None) -> GroupStats:
    """Counters of a group since it was created: path, trees, bytes, pauses; see `netsum.Group.stats`.

    group: the world if None. Raises ValueError for a group of another backend.
    """
    name = (group or dist.group.WORLD).group_name
    backend = BACKENDS.get(name)
    if backend is None:
        raise ValueError(f"netsum: group '{name}' is not made by backend netsum")
    found: GroupStats = json.loads(backend.engine.core.stats())
    return found
