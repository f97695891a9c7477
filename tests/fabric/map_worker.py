"""One rank: allreduces of several sizes. Argument: a JSON object {"bytes": [...], "repeats": n}. Reports the seconds of
each, by size, on this rank.
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


def main() -> None:
    given = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("netsum", timeout=datetime.timedelta(seconds=120))
    seconds: dict[int, list[float]] = {}
    for size in given["bytes"]:
        gradients = torch.zeros(size // 4)
        # The first ones fill caches, and let windows grow.
        for number in range(given["repeats"] + 2):
            dist.barrier()
            begun = time.perf_counter()
            dist.all_reduce(gradients)
            if number >= 2:
                seconds.setdefault(size, []).append(time.perf_counter() - begun)
    pathlib.Path(os.environ["RESULT"]).write_text(json.dumps({"seconds": seconds}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
