"""Some steps of the demo's training on one rank, with the sums that the accelerator supports: float32 and bfloat16.

    train.py OUT --steps N

Torchrun starts it once per worker. The demo's control sums are those of its odd steps, float32: the accelerator does
not support int32. Writes OUT/rank-R.json as the demo does, and the bits of some sums beside it.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import torch
import torch.distributed as dist

from netsum.demo import control_sum, train

SIZES = [16_384, 20_001]
"""Elements of the sums: whole fragments, and a partial one."""


def sums(rank: int) -> str:
    """SHA-256 over sums of numbers of very different magnitude, in both formats."""
    sha = hashlib.sha256()
    generator = torch.Generator().manual_seed(7 + rank)
    for dtype in (torch.float32, torch.bfloat16):
        for size in SIZES:
            values = torch.randn(size, generator=generator) * 10.0 ** torch.randint(-6, 6, (size,), generator=generator)
            mine = values.to(dtype)
            dist.all_reduce(mine)
            sha.update(mine.view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def main() -> None:
    """One rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("netsum")
    rank = dist.get_rank()
    (arguments.out / f"sums-{rank}").write_text(sums(rank))
    check = control_sum.check
    train.control_sum.check = lambda rank, size, step: check(rank, size, 2 * step + 1)
    training = train.Training(arguments.out, seed=1, epochs=1)
    training.steps_per_epoch = lambda: arguments.steps
    training.run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
