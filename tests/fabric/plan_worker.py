"""One rank of a loop of allreduces as training has them, over a tree plan; every sum is checked.

Arguments: a JSON object {"elements": n, "steps": n, "pause_s": s}. Prints `step N` after each step; writes the times of
the steps and the group's statistics to RESULT.
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


def main() -> None:
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("netsum", timeout=datetime.timedelta(seconds=120))
    rank, size = dist.get_rank(), dist.get_world_size()
    base = torch.arange(arguments["elements"], dtype=torch.int64) % 1021
    times = []
    for step in range(arguments["steps"]):
        time.sleep(arguments["pause_s"])
        gradient = base * (rank + 1) + step
        begun = time.perf_counter()
        dist.all_reduce(gradient)
        times.append(time.perf_counter() - begun)
        expected = base * (size * (size + 1) // 2) + step * size
        if not torch.equal(gradient, expected):
            raise SystemExit(f"rank {rank}, step {step}: {int((gradient != expected).sum())} elements are wrong")
        print(f"step {step + 1}", flush=True)
    result = {"seconds": times, "stats": stats()}
    pathlib.Path(os.environ["RESULT"]).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
