"""Benefit of not waiting: a small sum behind a large one, and steps with a straggler; medians and best.

    python bench/waiting.py

Processes of this machine, through `netsum.communicator`. Priorities: 2 ranks call a sum of 64 MiB and then one of 64
KiB; the time until the small one and until both are complete, in call order and with `PriorityQueue`, alternating.
Partial sums: 3 ranks of 256 KiB, each of which is 30 ms late in every tenth step; seconds per step of the median rank
with `allreduce` and with `PartialAllreduce`, alternating.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import random
import statistics
import time
from array import array

from netsum.communicator import connect
from netsum.fabric.reservations import free_port
from netsum.partial import PartialAllreduce
from netsum.priority import PriorityQueue

LARGE, SMALL = 64 << 20, 64 << 10
ROUNDS = 9
STEPS, WORK_S, LATE_S = 60, 0.004, 0.03


def priorities(rank: int) -> dict[str, list[float]]:
    world = connect(name="priorities")
    queue = PriorityQueue(world.split(range(world.size)))
    plain = world.split(range(world.size))
    large, small = array("f", bytes(LARGE)), array("f", bytes(SMALL))
    times: dict[str, list[float]] = {
        "small in order": [],
        "both in order": [],
        "small first": [],
        "both, small first": [],
    }
    for _ in range(ROUNDS):
        for first, second in (("small in order", "both in order"), ("small first", "both, small first")):
            world.barrier()
            start = time.perf_counter()
            if first == "small in order":
                pending = [plain.allreduce(large, wait=False), plain.allreduce(small, wait=False)]
            else:
                pending = [queue.allreduce(large, priority=1), queue.allreduce(small, priority=0)]
            pending[1].wait()
            times[first].append(time.perf_counter() - start)
            pending[0].wait()
            times[second].append(time.perf_counter() - start)
    queue.close()
    world.close()
    return times


def stragglers(rank: int) -> dict[str, list[float]]:
    world = connect(name="stragglers")
    values, draw = array("f", bytes(SMALL * 4)), random.Random(rank)
    times: dict[str, list[float]] = {"all": [], "partial": []}
    for _ in range(7):
        for kind in times:
            partial = PartialAllreduce(world.split(range(world.size)), len(values), bound_s=0.002)
            world.barrier()
            start = time.perf_counter()
            for _ in range(STEPS):
                time.sleep(WORK_S + (LATE_S if draw.random() < 0.1 else 0.0))
                if kind == "all":
                    world.allreduce(values)
                else:
                    partial.exchange(values)
            times[kind].append((time.perf_counter() - start) / STEPS)
            partial.close()
    world.close()
    return times


def run(body, size: int) -> dict[str, list[float]]:
    """Results of the median rank."""
    port = free_port()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=_rank, args=(body, rank, size, port, results)) for rank in range(size)]
    for process in ranks:
        process.start()
    answers = [results.get(timeout=300) for _ in ranks]
    for process in ranks:
        process.join()
    return {
        key: [statistics.median(each) for each in zip(*(a[key] for a in answers), strict=True)] for key in answers[0]
    }


def _rank(body, rank: int, size: int, port: int, results) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    os.environ.update(NETSUM_MEETING=f"127.0.0.1:{port}", NETSUM_TOKEN="none")
    results.put(body(rank))


def main() -> None:
    found = {**run(priorities, 2), **run(stragglers, 3)}
    table = {name: {"median": statistics.median(times), "best": min(times)} for name, times in found.items()}
    for name, row in table.items():
        print(f"{name:20} {row['median'] * 1e3:8.2f} ms  (best {row['best'] * 1e3:.2f})")
    path = pathlib.Path("out/bench/waiting.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": "waiting", "unit": "s", "higher_is_better": False, "rows": table}, indent=1))


if __name__ == "__main__":
    main()
