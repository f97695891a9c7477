"""One rank that sums a buffer repeatedly, checks every element, and records the path of each sum.

Arguments: a JSON object {"numel": n, "timeout_s": s}. The ranks end together once the file FINISH exists. RESULT with
the suffix `.line` has a JSON array per sum: clock at its end, whether the switches summed it, trees, epoch, reason.
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

from netsum.torch import stats


def values(rank: int, step: int, numel: int) -> torch.Tensor:
    return torch.arange(numel, dtype=torch.int32) % 1021 + (rank + 1) * (step % 1000)


def expected(size: int, step: int, numel: int) -> torch.Tensor:
    return torch.arange(numel, dtype=torch.int32) % 1021 * size + size * (size + 1) // 2 * (step % 1000)


def finished(finish: pathlib.Path) -> bool:
    """Whether rank 0 has been told to end; the same answer at all ranks."""
    flags = torch.full((1,), int(dist.get_rank() == 0 and finish.exists()), dtype=torch.int32)
    dist.broadcast(flags, 0)
    return bool(flags[0])


def main() -> None:
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("netsum", timeout=datetime.timedelta(seconds=arguments["timeout_s"]))
    rank, size, numel = dist.get_rank(), dist.get_world_size(), arguments["numel"]
    finish, result = pathlib.Path(os.environ["FINISH"]), pathlib.Path(os.environ["RESULT"])
    step, on_network = 0, 0
    with result.with_suffix(".line").open("w", buffering=1) as line:
        while not finished(finish):
            tensor = values(rank, step, numel)
            dist.all_reduce(tensor)
            wrong = int((tensor != expected(size, step, numel)).sum())
            if wrong:
                raise SystemExit(f"rank {rank}, step {step}: {wrong} of {numel} elements are wrong")
            step += 1
            found = stats()
            by_switches = found["network_operations"] > on_network
            on_network = found["network_operations"]
            trees = len(found["trees"]) if found["path"] == "trees" else 0
            line.write(json.dumps([time.time(), by_switches, trees, found["epoch"], found["reason"]]) + "\n")
            print(f"step {step}", flush=True)
            time.sleep(0.01)
    result.write_text(json.dumps({"steps": step, "stats": stats()}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
