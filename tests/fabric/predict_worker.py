"""One rank: steps of DistributedDataParallel, whose layers compute for a given time without a processor, as on an
accelerator.

Argument: a JSON object {"steps": n, "width": w, "layers": l, "layer_s": s}: a layer's forward pass takes `layer_s`, its
backward pass twice as long; with "folder" recorder files are left there. Reports the seconds of each step on this rank.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import pathlib
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from netsum.recorder import dump


class Computing(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(2 * context.seconds)
        return gradient, None


class Layer(torch.nn.Linear):
    seconds = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Computing.apply(super().forward(x), self.seconds)


def main() -> None:
    given = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("netsum", timeout=datetime.timedelta(seconds=120))
    layers = [Layer(given["width"], given["width"], bias=False) for _ in range(given["layers"])]
    for layer in layers:
        layer.seconds = given["layer_s"]
    megabytes = given["width"] ** 2 * 4 / 1e6
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.9 * megabytes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(2, given["width"])
    ends = []
    # The first two steps make the buckets.
    for _ in range(given["steps"] + 2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        ends.append(time.perf_counter())
    seconds = [after - before for before, after in itertools.pairwise(ends[1:])]
    pathlib.Path(os.environ["RESULT"]).write_text(json.dumps({"seconds": seconds}))
    if given.get("folder"):
        dump(given["folder"])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
