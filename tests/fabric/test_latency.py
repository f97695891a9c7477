"""Latency of small operations through one switch, beside netsum's host path and Open MPI over the same links.

All libraries run as `netsum bench` runs them, and take turns. A call's time is that of its slowest rank, from a barrier
of the same library on. Links of 1 Gbit/s, whose shapers let packets of this size pass at once: what is measured are
system calls, wake-ups and the round trips of each way. On a machine with fewer cores than ranks it is mostly
processor time.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from pathlib import Path

import pytest

import mpi
from fabric import Fabric
from netsum.bench.cases import Case
from netsum.bench.libraries import World
from netsum.bench.ranks import Command
from network import Network
from test_throughput import write

RATE_BPS = 1_000_000_000
ROUNDS = int(os.environ.get("NETSUM_FABRIC_LATENCY_ROUNDS", "9"))
CALLS = 100
CASES = [
    Case("allreduce", "float32", "sum", 8),
    Case("allreduce", "float32", "sum", 1024),
    Case("barrier", "int8", "sum", 0),
]
SWITCHES = {"NETSUM_COLLECTIVES": "all", "NETSUM_MIN_BYTES": "0"}


def netsum(network: Network, name: str, port: int, environment: dict[str, str]) -> World:
    """netsum on every host, without a framework. port: on which its ranks meet."""
    enter = 'exec ip netns exec "$NETSUM_SPACE" "$0" -m netsum.bench.ranks netsum'
    ranks = [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(network.hosts)),
            "MASTER_ADDR": network.address[network.hosts[0]],
            "MASTER_PORT": str(port),
            "NETSUM_TOKEN": "none",
            "NETSUM_HOST": host if "NETSUM_CONTROLLER" in environment else network.address[host],
            "NETSUM_SPACE": network.inside(host)[-1],
            **environment,
        }
        for rank, host in enumerate(network.hosts)
    ]
    return World(name, ["sh", "-c", enter, sys.executable], ranks)


def compared(workers: int, folder: Path, rounds: int) -> dict:
    """By case and way, the median and the best of a call in microseconds."""
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network(1, workers, 1, RATE_BPS))
        fabric = stack.enter_context(Fabric(network))
        starts = {
            "switches": lambda: netsum(network, "switches", 29501, SWITCHES | {"NETSUM_CONTROLLER": fabric.controller}),
            "hosts": lambda: netsum(network, "hosts", 29502, {}),
        }
        if mpi.why_no_mpi() is None:
            starts["openmpi"] = lambda: mpi.openmpi(network, folder)
        libraries = {}
        for name, start in starts.items():
            libraries[name] = start()
            stack.callback(libraries[name].stop)
            libraries[name].wait_ready()
        times: dict[str, dict[str, list[float]]] = {}
        for number in range(rounds):
            for case in CASES:
                order = list(libraries)[number % len(libraries) :] + list(libraries)[: number % len(libraries)]
                for name in order:
                    wrong, seconds = libraries[name].measure(Command(case, 5, CALLS, number == 0))
                    assert wrong == 0, (name, case)
                    times.setdefault(f"{case.operation} {case.nbytes}", {}).setdefault(name, []).extend(seconds)
        jobs = fabric.status()["jobs"]
    table = {
        case: {name: {"median": 1e6 * statistics.median(t), "best": 1e6 * min(t)} for name, t in row.items()}
        for case, row in times.items()
    }
    return {"workers": workers, "unit": "µs", "cases": table, "jobs": len(jobs)}


@pytest.mark.figures
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_small_operations_through_one_switch(workers, tmp_path):
    result = compared(workers, tmp_path, ROUNDS)
    write(f"latency_{workers}", result)
    if workers == 8:
        for case, row in result["cases"].items():
            peers = [way["median"] for name, way in row.items() if name != "switches"]
            assert row["switches"]["median"] < min(peers), (case, row)
