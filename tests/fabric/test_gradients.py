"""A step with 300 small gradients: together, one by one, between hosts and by Gloo."""

from __future__ import annotations

import json
import os
import statistics

import pytest

from fabric import Fabric, Workers
from network import Network
from test_throughput import write

PER_PACKET = 300
"""Elements that a packet has at least, except for the last."""
ROUNDS = int(os.environ.get("NETSUM_FABRIC_GRADIENTS_ROUNDS", "12"))


def compared(rate_bps: int, per_rack: int, rounds: int) -> dict:
    """Seconds by way, and the results of each on trees in the last round."""
    with Network(2, per_rack, 2, rate_bps) as network, Fabric(network) as fabric:
        arguments = {"gradients": 300, "most": 1000, "rounds": rounds}
        everything = {"NETSUM_MIN_BYTES": "0"}
        ranks = Workers(fabric, network.hosts, "gradients_worker.py", json.dumps(arguments), **everything)
        return ranks.wait()[0]


def test_small_gradients_share_packets():
    found = compared(1_000_000_000, 1, 2)
    assert found["results"]["one by one"] >= 300, found
    assert found["results"]["together"] <= found["elements"] / PER_PACKET + 2, found
    assert found["results"]["hosts, together"] == 0, found


@pytest.mark.figures
@pytest.mark.parametrize("mbits", [100, 1000])
def test_small_gradients_beside_gloo(mbits):
    found = compared(mbits * 1_000_000, 2, ROUNDS)
    times = {way: {"median": statistics.median(each), "best": min(each)} for way, each in found["times"].items()}
    write(f"gradients_{mbits}", {"elements": found["elements"], "seconds": times, "results": found["results"]})
    median = {way: row["median"] for way, row in times.items()}
    peers = ("one by one", "hosts, one by one", "gloo, together", "gloo, one by one")
    assert all(median["together"] < median[peer] for peer in peers), median
