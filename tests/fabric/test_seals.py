"""What tags and encryption cost an allreduce on shaped links: one fabric without keys, with them, and encrypted."""

from __future__ import annotations

import json
import os
import statistics

import pytest

from fabric import Fabric, Slots, Workers
from network import Network
from test_throughput import write

MIB = 16
ROUNDS = int(os.environ.get("NETSUM_FABRIC_REPEATS", "3"))
# One allreduce of 16 MiB takes 1.3 s at 100 Mbit/s.
CALLS = {100: 5, 1000: 20}
TENANT = '[[tenant]]\nname = "secret"\nencrypt = true'
KINDS = {"trusted": Slots(), "sealed": Slots(trusted=False), "encrypted": Slots(trusted=False, tenants=TENANT)}


def times(network: Network, slots: Slots, calls: int) -> list[float]:
    """Seconds of each call of one job, each of its slowest rank."""
    with Fabric(network, slots=slots) as fabric:
        arguments = {"sizes_mib": [MIB], "repeats": calls, "gloo": False}
        tenant = {"NETSUM_TENANT": "secret"} if slots.tenants else {}
        ranks = Workers(fabric, network.hosts, "worker.py", json.dumps(arguments), **tenant).wait()
    return ranks[0]["netsum"][str(MIB)]


@pytest.mark.figures
@pytest.mark.parametrize("mbits", CALLS)
def test_seals_cost_no_time_where_links_are_the_limit(mbits):
    rounds: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    with Network(2, 2, 2, mbits * 1_000_000) as network:
        for _ in range(ROUNDS):
            for kind, slots in KINDS.items():
                rounds[kind].append(times(network, slots, CALLS[mbits]))
    figures = {}
    for kind, each in rounds.items():
        calls = [seconds for round in each for seconds in round]
        figures[kind] = {
            "median_s": statistics.median(calls),
            "best_s": min(calls),
            "medians_of_rounds_s": [statistics.median(round) for round in each],
        }
    write(f"seals_{mbits}", {"mib": MIB, "rate_mbits": mbits, "kinds": figures})
    slowest = max(figures[kind]["median_s"] for kind in ("sealed", "encrypted"))
    assert slowest < 1.1 * figures["trusted"]["median_s"], figures
