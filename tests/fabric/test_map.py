"""Cells of the map of what to use when (`experiments/what_to_use_when`), measured: an allreduce through switches and
between the hosts, on emulated fabrics with full uplinks and with a quarter, beside the simulator's fluids.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from fabric import Fabric, Workers
from netsum.sim.runner import run
from network import Network
from test_throughput import write

RATE_BPS = 100_000_000
REPEATS = 7
BYTES = (100_000, 1_000_000, 10_000_000)
WAYS = {"panama": {"NETSUM_MIN_BYTES": "0"}, "shares": {"NETSUM_MIN_BYTES": "1073741824"}}
"""By the simulator's name of the scheme: the environment of a job that sums so."""


def measured_ms(network: Network, environment: dict[str, str]) -> dict[int, float]:
    """The median over allreduces of the slowest rank's time, by bytes."""
    arguments = json.dumps({"bytes": BYTES, "repeats": REPEATS})
    with Fabric(network) as fabric:
        ranks = Workers(fabric, network.hosts, "map_worker.py", arguments, **environment).wait()
    slowest = {
        size: [max(times) for times in zip(*(rank["seconds"][str(size)] for rank in ranks), strict=True)]
        for size in BYTES
    }
    return {size: 1e3 * statistics.median(times) for size, times in slowest.items()}


def simulated_ms(workers: int, uplink_bps: int, scheme: str, size: int, out: Path) -> float:
    config = {
        "duration": "1000s",
        "stop_with_jobs": True,
        "fabric": {
            "kind": "leaf-spine",
            "racks": 2,
            "hosts_per_rack": workers // 2,
            "spines": 1,
            "rate": f"{RATE_BPS}bit/s",
            "uplink_rate": f"{uplink_bps}bit/s",
        },
        "scheme": {"kind": "fluid"},
        "jobs": [
            {
                "compute": "1us",
                "bytes": size,
                "hosts": list(range(workers)),
                "steps": 2,
                "scheme": {"kind": scheme},
            }
        ],
    }
    return run(config, out).summary["steps"]["reduce_us"]["mean"] / 1e3


@pytest.mark.figures
def test_the_map_names_the_faster_way(tmp_path: Path) -> None:
    cells = []
    for workers in (4, 8):
        for over in (1, 4):
            uplink_bps = workers // 2 * RATE_BPS // over
            with Network(2, workers // 2, 1, RATE_BPS, uplink_bps=uplink_bps) as network:
                times = {way: measured_ms(network, environment) for way, environment in WAYS.items()}
            for size in BYTES:
                cell = {"workers": workers, "over": over, "bytes": size}
                for way in WAYS:
                    name = f"{workers}-{over}-{size}-{way}"
                    expected = simulated_ms(workers, uplink_bps, way, size, tmp_path / name)
                    cell[way] = {"measured_ms": times[way][size], "simulated_ms": expected}
                for kind in ("measured_ms", "simulated_ms"):
                    cell[f"gain, {kind[:-3]}"] = cell["shares"][kind] / cell["panama"][kind]
                cells.append(cell)
    write("map", {"rate_bps": RATE_BPS, "cells": cells})
    for cell in cells:
        gains = cell["gain, measured"], cell["gain, simulated"]
        clear = min(abs(gain - 1) for gain in gains) > 0.1
        assert not clear or (gains[0] > 1) == (gains[1] > 1), cell
