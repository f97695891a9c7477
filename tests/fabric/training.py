"""One rank of a small training run: a linear model under DistributedDataParallel, and a digest of its bits."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

from netsum.torch import stats


def main() -> None:
    steps = json.loads(sys.argv[1])["steps"]
    torch.set_num_threads(1)
    dist.init_process_group("netsum", timeout=datetime.timedelta(seconds=120))
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 64))
    replica = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(100 + rank)
    start = time.monotonic()
    for step in range(steps):
        loss = replica(torch.randn(16, 256, generator=data)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.03)  # Work between the sums, so that a kill hits any part of a step.
        print(f"step {step + 1}", flush=True)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    result = {"digest": digest, "seconds": time.monotonic() - start, "pauses": stats()["pauses"]}
    pathlib.Path(os.environ["RESULT"]).write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
