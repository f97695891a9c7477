"""One rank of the job into which `why_faults.py` plants faults.

Each step loads a batch, computes, and sums two buffers of different sizes. The fault is a file, with
a JSON object {"kind": …, "rank": …, "fifo": …}; it acts in the step after next of the rank that it names.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import re
import sys
import time

import numpy
import torch
import torch.distributed as dist

FIRST, SECOND = 300_000, 120_000
COMPUTE_S = 0.02


def load_batch(fault: dict, step: int) -> numpy.ndarray:
    if fault.get("kind") == "sleep in the loader":
        time.sleep(1.0)
    if fault.get("kind") == "disk stall":
        with open(fault["fifo"], "rb") as stalled:
            stalled.read(1)
    return numpy.full((64, 64), float(step % 7))


def compute(batch: numpy.ndarray, fault: dict) -> None:
    if fault.get("kind") == "endless computation":
        while True:
            batch = batch @ batch % 7.0
    if fault.get("kind") == "loop in C":
        # Backtracks for ever without giving up the interpreter's lock.
        re.match(r"(?:a|a|aa)+$", "a" * 64 + "b")
    until = time.monotonic() + COMPUTE_S
    while time.monotonic() < until:
        batch @ batch


def exchange(fault: dict, first: torch.Tensor, second: torch.Tensor, groups: list) -> None:
    kind = fault.get("kind")
    if kind == "skipped call":
        dist.all_reduce(second)
        return
    if kind == "reordered calls":
        dist.all_reduce(second)
        dist.all_reduce(first)
        return
    if kind == "mismatched call":
        dist.all_reduce(first[:-1000])
        dist.all_reduce(second)
        return
    if kind == "deadlock of two groups":
        one, other = groups
        mine = (one, other) if fault["rank"] == dist.get_rank() else (other, one)
        for group in mine:
            dist.all_reduce(second, group=group)
    dist.all_reduce(first)
    dist.all_reduce(second)


def train(path: pathlib.Path, groups: list, rank: int) -> None:
    first, second = torch.ones(FIRST), torch.ones(SECOND)
    fault: dict = {}
    step = 0
    while not path.with_name("finish").exists():
        if not fault and path.exists():
            planted = json.loads(path.read_text())
            both = planted["kind"] == "deadlock of two groups" and rank == planted["other"]
            if rank == planted["rank"] or both:
                fault = planted
        if fault.get("kind") == "exception":
            raise ValueError("the loss is not a number")
        if fault.get("kind") == "other operation":
            dist.recv(torch.zeros(10), src=fault["other"])
        batch = load_batch(fault, step)
        compute(batch, fault)
        exchange(fault, first, second, groups)
        first.fill_(1.0)
        second.fill_(1.0)
        step += 1
        print(f"step {step}", flush=True)


def save_what_is_left() -> None:
    """As programs do on their way out, while the exception is being handled."""
    time.sleep(60)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("netsum", timeout=datetime.timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(list(range(size))), dist.new_group(list(range(size)))]
    try:
        train(pathlib.Path(sys.argv[1]), groups, rank)
    except BaseException:
        save_what_is_left()
        raise
    os._exit(0)


if __name__ == "__main__":
    main()
