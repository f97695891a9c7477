"""One rank of a job whose steps compute and sum, for reports: its own clock says what a step takes.

Arguments: a JSON object {"steps": n, "compute_s": s, "sums": [elements…], "dtype": "float32", "overlap": bool}.
Computing is a sleep: ranks that computed on the few processors of a small machine would make each other late. With
`overlap` the sums begin while the rank computes, evenly spread.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist


def step(tensors: list[torch.Tensor], compute_s: float, overlap: bool) -> None:
    if not overlap:
        time.sleep(compute_s)
        for tensor in tensors:
            dist.all_reduce(tensor)
        return
    works = []
    for tensor in tensors:
        time.sleep(compute_s / len(tensors))
        works.append(dist.all_reduce(tensor, async_op=True))
    for work in works:
        work.wait()


def main() -> None:
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("netsum", timeout=datetime.timedelta(seconds=120))
    dtype = getattr(torch, arguments["dtype"])
    tensors = [torch.zeros(numel, dtype=dtype) for numel in arguments["sums"]]
    times = []
    for _ in range(arguments["steps"]):
        began = time.perf_counter()
        step(tensors, arguments["compute_s"], arguments["overlap"])
        times.append(time.perf_counter() - began)
    # The first steps open windows.
    result = {"step_s": statistics.median(times[len(times) // 4 :])}
    pathlib.Path(os.environ["RESULT"]).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
