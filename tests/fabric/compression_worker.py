"""One rank: steps of DistributedDataParallel with gradients as float32, bf16 and 8 bits, alternating, over the same
links.

Argument: a JSON object {"steps": n}. Reports per variant the seconds of each step on the slowest rank, and the bytes
that this host has sent.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from netsum.torch import compressed

WIDTH, LAYERS = 1024, 8
VARIANTS = [("switches", None), ("switches", "bf16"), ("hosts", None), ("hosts", "bf16"), ("hosts", "int8")]


def sent_bytes() -> int:
    """Bytes sent on all interfaces of this host."""
    return sum(int(path.read_text()) for path in pathlib.Path("/sys/class/net").glob("[!l]*/statistics/tx_bytes"))


class Variant:
    def __init__(self, group: dist.ProcessGroup, to: str | None) -> None:
        torch.manual_seed(1)
        layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
        self.model = DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group, bucket_cap_mb=8)
        if to:
            compressed(self.model, to=to)
        self.group = group
        self.seconds: list[float] = []
        self.bytes: list[int] = []

    def step(self, x: torch.Tensor) -> None:
        self.model.zero_grad()
        loss = self.model(x).square().mean()
        dist.barrier()
        before, start = sent_bytes(), time.perf_counter()
        loss.backward()
        elapsed = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        dist.barrier()
        self.bytes.append(sent_bytes() - before)
        dist.all_reduce(elapsed, dist.ReduceOp.MAX)
        self.seconds.append(float(elapsed))

    def gradients(self) -> torch.Tensor:
        return torch.cat([parameter.grad.flatten() for parameter in self.model.parameters()])


def main() -> None:
    steps = json.loads(sys.argv[1])["steps"]
    torch.set_num_threads(1)
    dist.init_process_group("netsum", timeout=datetime.timedelta(seconds=120))
    groups = {"switches": dist.group.WORLD, "hosts": dist.new_group(list(range(dist.get_world_size())))}
    variants = {f"{by} {to or 'float32'}": Variant(groups[by], to) for by, to in VARIANTS}
    data = torch.Generator().manual_seed(dist.get_rank())
    # The first step is excluded: DDP rebuilds its buckets after it.
    for _ in range(steps + 1):
        x = torch.randn(4, WIDTH, generator=data)
        for variant in variants.values():
            variant.step(x)
    exact = variants["hosts float32"].gradients()
    result = {
        name: {
            "seconds": variant.seconds[1:],
            "bytes": variant.bytes[1:],
            "error": float((variant.gradients() - exact).norm() / exact.norm()),
        }
        for name, variant in variants.items()
    }
    result["gradient_bytes"] = exact.numel() * 4
    pathlib.Path(os.environ["RESULT"]).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
