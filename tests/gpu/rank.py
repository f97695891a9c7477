"""A rank of `run.py`: sums of tensors on a device to the bit, times, and models that train alike at all ranks.

The environment has torchrun's RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Rank 0 prints a JSON object.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SIZES = [1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26]
"""Bytes of sums."""
TYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int32]
REPEATS = 10


def synchronize(device: torch.device) -> None:
    torch.accelerator.synchronize(device)


def check_sums(device: torch.device, rank: int, size: int) -> int:
    """Sums, extremes, parts and copies of whole numbers, which are exact in every type; returns how many."""
    checked = 0
    for dtype in TYPES:
        for count in (1, 1000, 100_000):
            base = torch.arange(count, device="cpu") % 7
            mine = (base + rank).to(dtype).to(device)
            everyone = [(base + other).to(dtype) for other in range(size)]
            for op, expected in ((dist.ReduceOp.SUM, sum(everyone)), (dist.ReduceOp.MAX, everyone[-1])):
                x = mine.clone()
                dist.all_reduce(x, op)
                if not torch.equal(x.cpu(), expected):
                    raise SystemExit(f"rank {rank}: {op} of {count} {dtype} differs from the sum on the host")
                checked += 1
            whole = torch.empty(count * size, dtype=dtype, device=device)
            dist.all_gather_single(whole, mine)
            part = torch.empty(count, dtype=dtype, device=device)
            dist.reduce_scatter_single(part, whole)
            if not torch.equal(whole.cpu(), torch.cat(everyone)) or not torch.equal(part.cpu(), everyone[rank] * size):
                raise SystemExit(f"rank {rank}: a gathered or scattered tensor of {count} {dtype} differs")
            checked += 2
    return checked


def times(device: torch.device) -> dict[int, float]:
    """Median seconds of an allreduce by its bytes."""
    found = {}
    for nbytes in SIZES:
        x = torch.ones(nbytes // 4, device=device)
        seconds = []
        for _ in range(REPEATS):
            synchronize(device)
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(x)
            synchronize(device)
            seconds.append(time.perf_counter() - begin)
        found[nbytes] = statistics.median(seconds)
    return found


def overlap(device: torch.device) -> float:
    """Seconds of 8 sums of 4 MiB that are called together, per second of the same one after the other."""
    xs = [torch.ones(1 << 20, device=device) for _ in range(8)]
    seconds = {}
    for together in (False, True):
        synchronize(device)
        dist.barrier()
        begin = time.perf_counter()
        works = []
        for x in xs:
            work = dist.all_reduce(x, async_op=True)
            works.append(work)
            if not together:
                work.wait()
                synchronize(device)
        for work in works:
            work.wait()
        synchronize(device)
        seconds[together] = time.perf_counter() - begin
    return seconds[True] / seconds[False]


def train(device: torch.device, rank: int, sharded: bool) -> float:
    """A few steps of DDP or FSDP2; returns the last loss. All ranks must have the same parameters."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8)).to(device)
    if sharded:
        from torch.distributed.fsdp import fully_shard

        model: torch.nn.Module = fully_shard(net)
    else:
        model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    batch = torch.randn(16, 32, generator=torch.Generator().manual_seed(2 + rank)).to(device)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if not losses[-1] < losses[0]:
        raise SystemExit(f"rank {rank}: the loss went from {losses[0]} to {losses[-1]}")
    full = [each.full_tensor() if sharded else each for each in model.parameters()]
    digest = torch.stack([each.detach().double().sum() for each in full]).cpu()
    digests: list[torch.Tensor | None] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, digest)
    if not all(torch.equal(other, digest) for other in digests if other is not None):
        raise SystemExit(f"rank {rank}: the ranks' parameters differ")
    return losses[-1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", required=True)
    parser.add_argument("--device", required=True, help="cuda, simulated or cpu")
    parser.add_argument("--simulated", type=Path, help="the library of the simulated accelerator")
    parser.add_argument("--quick", action="store_true", help="no times, no FSDP")
    options = parser.parse_args()
    if options.simulated:
        sys.path.insert(0, str(Path(__file__).parents[2] / "python/tests/torch"))
        import accelerator

        accelerator.load(options.simulated)
    if options.backend == "netsum":
        import netsum.torch  # noqa: F401 (registers the backend)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(options.device, 0) if options.device != "cpu" else torch.device("cpu")
    if options.device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(options.backend)
    result = {"sums": check_sums(device, rank, size), "ddp_loss": train(device, rank, sharded=False)}
    if not options.quick:
        result["fsdp_loss"] = train(device, rank, sharded=True)
        result["overlap"] = overlap(device)
        result["seconds"] = times(device)
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
