"""One rank of a step with many small gradients: summed together, one by one, between hosts and by Gloo, in turn.

Arguments: a JSON object {"gradients": n, "most": elements of the longest, "rounds": n}. The slowest rank's time counts.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import random
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from netsum.torch import Options, stats

TIMEOUT = datetime.timedelta(seconds=120)
Way = Callable[[list[torch.Tensor]], None]


def one_by_one(group: dist.ProcessGroup) -> Way:
    def run(gradients: list[torch.Tensor]) -> None:
        for work in [dist.all_reduce(each, group=group, async_op=True) for each in gradients]:
            work.wait()

    return run


def together(group: dist.ProcessGroup) -> Way:
    def run(gradients: list[torch.Tensor]) -> None:
        with _coalescing_manager(group):
            for each in gradients:
                dist.all_reduce(each, group=group)

    return run


def main() -> None:
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("netsum", timeout=TIMEOUT)
    rank, size = dist.get_rank(), dist.get_world_size()
    world = dist.group.WORLD
    hosts = dist.new_group(backend="netsum", timeout=TIMEOUT, pg_options=Options(in_network=False))
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    ways = {
        "together": together(world),
        "one by one": one_by_one(world),
        "hosts, together": together(hosts),
        "hosts, one by one": one_by_one(hosts),
        "gloo, together": together(gloo),
        "gloo, one by one": one_by_one(gloo),
    }
    lengths = random.Random(7).choices(range(1, arguments["most"] + 1), k=arguments["gradients"])
    whole = [torch.arange(n, dtype=torch.float32) % 1021 for n in lengths]
    times: dict[str, list[float]] = {way: [] for way in ways}
    packets: dict[str, int] = {}
    for number in range(arguments["rounds"]):
        names = list(ways)
        for way in [*names[number % len(names) :], *names[: number % len(names)]]:
            gradients = [each + rank for each in whole]
            before = sum(tree["results"] for tree in stats()["trees"])
            dist.barrier()
            start = time.perf_counter()
            ways[way](gradients)
            slowest = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
            packets[way] = sum(tree["results"] for tree in stats()["trees"]) - before
            for given, found in zip(whole, gradients, strict=True):
                if not torch.equal(found, given * size + size * (size - 1) / 2):
                    raise SystemExit(f"rank {rank}: {way} has given a wrong sum of {len(given)} elements")
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            times[way].append(float(slowest))
    result = {"elements": sum(lengths), "times": times, "results": packets}
    pathlib.Path(os.environ["RESULT"]).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
