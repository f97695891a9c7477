"""One rank of a small sharded training: FSDP2 with overlap, a replicated table, and digests of all parameters.

Arguments: a JSON object {"steps": n, "pause_s": s, "width": n, "backend": name}, the last two optional. Blocks are
sharded over all ranks. The table of the inputs is kept whole by every rank, and its gradients are summed, large enough
for switches.
"""

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
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from netsum.torch import stats
from netsum.torch.fsdp import overlap

WORDS, BLOCKS = 512, 3
KEPT = ("pauses", "epoch", "operations", "network_operations")
POLICY = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def main() -> None:
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    backend, width = arguments.get("backend", "netsum"), arguments.get("width", 64)
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=120))
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    table = nn.Embedding(WORDS, width)
    model = nn.Sequential(*(Block(width) for _ in range(BLOCKS)), nn.Linear(width, WORDS))
    mesh = init_device_mesh("cpu", (size,))
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=POLICY)
    overlap(fully_shard(model, mesh=mesh, mp_policy=POLICY))
    optimizer = torch.optim.AdamW([*table.parameters(), *model.parameters()], lr=1e-2)
    data = torch.Generator().manual_seed(100 + rank)
    start, times = time.monotonic(), []
    for step in range(arguments["steps"]):
        begun = time.monotonic()
        text = torch.randint(WORDS, (64,), generator=data)
        loss = nn.functional.cross_entropy(model(table(text)).float(), (7 * text + 1) % WORDS)
        optimizer.zero_grad()
        loss.backward()
        dist.all_reduce(table.weight.grad, dist.ReduceOp.AVG)
        optimizer.step()
        times.append(time.monotonic() - begun)
        time.sleep(arguments["pause_s"])  # Work between the sums, so that a kill hits any part of a step.
        print(f"step {step + 1}", flush=True)
    whole = [table.weight, *(parameter.full_tensor() for parameter in model.parameters())]
    bits = b"".join(parameter.detach().numpy().tobytes() for parameter in whole)
    found = stats() if backend == "netsum" else dict.fromkeys(KEPT)
    result = {
        "digest": hashlib.sha256(bits).hexdigest(),
        "loss": loss.item(),
        "seconds": time.monotonic() - start,
        "steps": times,
        **{name: found[name] for name in KEPT},
    }
    pathlib.Path(os.environ["RESULT"]).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
