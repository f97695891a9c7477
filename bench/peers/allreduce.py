"""Times torch.distributed.all_reduce of float32 sums, for `make bench NAME=host_allreduce`: seconds per call by size.

    python bench/peers/allreduce.py BACKEND RANK RANKS PORT BLOCKS SECONDS SIZE...

Blocks and the output of rank 0 are those of `mpi sums` (`mpi.c`).
"""

from __future__ import annotations

import sys
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist


def block(tensor: torch.Tensor, calls: int) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor)
    slowest = torch.tensor([(time.perf_counter() - start) / calls], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def main() -> None:
    backend, rank, ranks, port, blocks, seconds = sys.argv[1:7]
    sizes = [int(size) for size in sys.argv[7:]]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    store = dist.TCPStore("127.0.0.1", int(port), int(ranks), rank == "0", timedelta(seconds=120))
    dist.init_process_group(backend, store=store, rank=int(rank), world_size=int(ranks))
    for nbytes in sizes:
        tensor = torch.arange(nbytes // 4, dtype=torch.float32) % 1000 + int(rank)
        dist.all_reduce(tensor)
        size = int(ranks)
        expected = torch.arange(nbytes // 4, dtype=torch.float32) % 1000 * size + size * (size - 1) // 2
        assert torch.equal(tensor, expected), f"the sum of {nbytes} bytes is wrong"
        tensor.zero_()
        calls = min(max(int(float(seconds) / block(tensor, 2)), 3), 100_000)
        times = [block(tensor, calls) for _ in range(int(blocks))]
        if rank == "0":
            print(nbytes, *(f"{each:.9g}" for each in times), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
