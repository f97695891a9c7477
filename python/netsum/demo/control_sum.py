"""Sums whose exact value is known in advance: they detect a contribution that is lost or counted twice.

Each rank contributes a different pattern, which also changes from step to step. A missing or duplicate contribution, a
fragment of another step, or one at a wrong offset changes the sum.
"""

import torch
import torch.distributed as dist

ELEMENTS = 8192
"""32 KiB: many packets, and above the size below which hosts aggregate."""
_VALUES = 1 << 20
"""Patterns stay below this, so that floats hold the sum of 16 ranks exactly."""


def pattern(rank: int, step: int) -> torch.Tensor:
    """The contribution of `rank` at `step`: ELEMENTS whole numbers from 0 to 2^20 - 1, int64."""
    index = torch.arange(ELEMENTS, dtype=torch.int64)
    return (index * 7919 + (rank + 1) * 104_729 + step * 1_299_709 + index * (rank + 1)) % _VALUES


def check(rank: int, size: int, step: int) -> int:
    """Sum the patterns of all ranks through the backend; returns the number of wrong elements.

    Even steps sum int32, odd ones float32, since switches add the two by different means.
    """
    dtype = torch.float32 if step % 2 else torch.int32
    mine = pattern(rank, step).to(dtype)
    dist.all_reduce(mine)
    expected = sum(pattern(peer, step) for peer in range(size))
    return int((mine.to(torch.int64) != expected).sum())
