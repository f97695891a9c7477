"""One rank: steps of DistributedDataParallel with gradients as float32, bf16 and 8 bits, alternating, over the same
links.

Argument: a JSON object {"steps": n}, and optionally "variants" ([way, to or null] each), "width" and "layers" of the
model. Reports per variant the seconds of each step on the slowest rank, the bytes that this host has sent and received,
and whether all ranks had the same gradients.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import sys
import time
import zlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from netsum.torch import compressed

VARIANTS = [("switches", None), ("switches", "bf16"), ("hosts", None), ("hosts", "bf16"), ("hosts", "int8")]


def moved_bytes(way: str) -> int:
    """Bytes sent ("tx") or received ("rx") on all interfaces of this host."""
    return sum(int(path.read_text()) for path in pathlib.Path("/sys/class/net").glob(f"[!l]*/statistics/{way}_bytes"))


class Variant:
    def __init__(self, group: dist.ProcessGroup, to: str | None, width: int, layers: int) -> None:
        torch.manual_seed(1)
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
        self.model = DistributedDataParallel(model, process_group=group, bucket_cap_mb=8)
        if to:
            compressed(self.model, to=to)
        self.group = group
        self.seconds: list[float] = []
        self.bytes: list[int] = []
        self.received: list[int] = []
        self.alike = True

    def step(self, x: torch.Tensor) -> None:
        self.model.zero_grad()
        loss = self.model(x).square().mean()
        dist.barrier()
        before, start = (moved_bytes("tx"), moved_bytes("rx")), time.perf_counter()
        loss.backward()
        elapsed = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        dist.barrier()
        self.bytes.append(moved_bytes("tx") - before[0])
        self.received.append(moved_bytes("rx") - before[1])
        dist.all_reduce(elapsed, dist.ReduceOp.MAX)
        self.seconds.append(float(elapsed))
        digest = torch.tensor([zlib.crc32(self.gradients().numpy().tobytes())])
        digests = [torch.empty_like(digest) for _ in range(dist.get_world_size())]
        dist.all_gather(digests, digest)
        self.alike = self.alike and len({int(each) for each in digests}) == 1

    def gradients(self) -> torch.Tensor:
        return torch.cat([parameter.grad.flatten() for parameter in self.model.parameters()])


def main() -> None:
    given = json.loads(sys.argv[1])
    steps, width, layers = given["steps"], given.get("width", 1024), given.get("layers", 8)
    chosen = [(by, to) for by, to in given.get("variants", VARIANTS)]
    torch.set_num_threads(1)
    dist.init_process_group("netsum", timeout=datetime.timedelta(seconds=120))
    groups = {"switches": dist.group.WORLD, "hosts": dist.new_group(list(range(dist.get_world_size())))}
    variants = {f"{by} {to or 'float32'}": Variant(groups[by], to, width, layers) for by, to in chosen}
    data = torch.Generator().manual_seed(dist.get_rank())
    # The first step is excluded: DDP rebuilds its buckets after it.
    for _ in range(steps + 1):
        x = torch.randn(4, width, generator=data)
        for variant in variants.values():
            variant.step(x)
    exact = next(iter(variants.values())).gradients()
    result = {
        name: {
            "seconds": variant.seconds[1:],
            "bytes": variant.bytes[1:],
            "received": variant.received[1:],
            "alike": variant.alike,
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
