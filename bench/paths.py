"""Crossover of trees and host path: one allreduce by size, on both paths, interleaved, on a local fabric.

    python bench/paths.py [--workers 4] [--controller HOST:PORT]

Four processes on the built-in fabric over loopback, `netsum._core` without torch. Per size: the slowest rank's time,
median and best over the rounds, and the ratio. Writes out/bench/paths.json; the default of `min_bytes` comes from it.
"""

from __future__ import annotations

import argparse
import array
import json
import multiprocessing
import os
import pathlib
import platform
import statistics
import subprocess
import time

from netsum import _core
from netsum.fabric.builtin import demo_description
from netsum.fabric.local import temporary

SIZES = [1 << k for k in range(10, 25, 2)]
ROUNDS = 25
TIMEOUT_S = 60.0


def worker(rank: int, size: int, fabric: dict[str, str], pipes: dict, results) -> None:
    controller, credentials = fabric["NETSUM_CONTROLLER"], fabric.get("NETSUM_CREDENTIALS")
    groups = {}
    for path, min_bytes in (("trees", "0"), ("host", str(1 << 40))):
        options = {"min_bytes": min_bytes} | ({"credentials": credentials} if credentials else {})
        group = _core.Group(rank, size, f"paths-{path}", controller, None, TIMEOUT_S, options)
        pipes[path][0].put((rank, group.address()))
        group.connect(pipes[path][1][rank].get(timeout=TIMEOUT_S))
        groups[path] = group
    for nbytes in SIZES:
        buffer = array.array("f", bytes(nbytes))
        address, numel = buffer.buffer_info()
        times: dict[str, list[float]] = {path: [] for path in groups}
        for _ in range(ROUNDS):
            for path, group in groups.items():
                groups["host"].barrier(TIMEOUT_S).wait(None)
                start = time.perf_counter()
                group.allreduce(address, numel, "float32", "sum", 1.0, TIMEOUT_S).wait(None)
                times[path].append(time.perf_counter() - start)
        results.put((rank, nbytes, times))
    groups["host"].barrier(TIMEOUT_S).wait(None)
    for group in groups.values():
        group.close()


def exchange(size: int, queue, mailboxes) -> None:
    addresses = dict(queue.get(timeout=TIMEOUT_S) for _ in range(size))
    for mailbox in mailboxes:
        mailbox.put([addresses[rank] for rank in range(size)])


def measure(fabric: dict[str, str], size: int) -> dict[int, dict[str, list[float]]]:
    """Seconds of the slowest rank, by bytes and path."""
    context = multiprocessing.get_context("spawn")
    queues = {path: (context.Queue(), [context.Queue() for _ in range(size)]) for path in ("trees", "host")}
    results = context.Queue()
    ranks = [context.Process(target=worker, args=(r, size, fabric, queues, results)) for r in range(size)]
    for process in ranks:
        process.start()
    for path in ("trees", "host"):
        exchange(size, *queues[path])
    slowest: dict[int, dict[str, list[float]]] = {}
    for _ in range(size * len(SIZES)):
        _, nbytes, times = results.get(timeout=10 * TIMEOUT_S)
        known = slowest.setdefault(nbytes, times)
        for path, values in times.items():
            known[path] = [max(pair) for pair in zip(known[path], values, strict=True)]
    for process in ranks:
        process.join(TIMEOUT_S)
    return slowest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--controller", help="of a running fabric; without it the built-in one is started")
    arguments = parser.parse_args()
    if arguments.controller:
        slowest = measure(dict(os.environ, NETSUM_CONTROLLER=arguments.controller), arguments.workers)
    else:
        with temporary(demo_description()) as fabric:
            slowest = measure(fabric.environment(), arguments.workers)
    rows = {}
    print(f"{'bytes':>10}  {'trees µs':>20}  {'hosts µs':>20}  hosts/trees")
    for nbytes, times in sorted(slowest.items()):
        row = {p: {"median": statistics.median(t), "best": min(t)} for p, t in times.items()}
        row["ratio"] = row["host"]["median"] / row["trees"]["median"]
        rows[nbytes] = row
        cells = [f"{row[p]['median'] * 1e6:9.0f} ({row[p]['best'] * 1e6:8.0f})" for p in ("trees", "host")]
        print(f"{nbytes:>10}  {cells[0]:>20}  {cells[1]:>20}  {row['ratio']:.2f}")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    result = {
        "name": "paths",
        "unit": "s per allreduce, slowest rank",
        "higher_is_better": False,
        "sizes": rows,
        "limit": "processes share the cores: wake-ups, not bytes",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "commit": commit,
    }
    path = pathlib.Path("out/bench/paths.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
