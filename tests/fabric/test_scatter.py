"""Reduce-scatter and all-gather by switches, eight workers in two racks, every link at 100 Mbit/s."""

from __future__ import annotations

import json
import os
import statistics

import pytest

from fabric import Fabric, Slots, Workers
from network import Network
from test_throughput import write

RATE_BPS = 100_000_000
WORKERS = 8
MIB = int(os.environ.get("NETSUM_FABRIC_SCATTER_MIB", "64"))
ROUNDS = int(os.environ.get("NETSUM_FABRIC_REPEATS", "2"))
COUNTED_ROUNDS = 4
"""Of which bytes are counted."""
BOTH = ["reduce_scatter", "allgather"]


def run(fabric: Fabric, network: Network, **arguments: object) -> dict:
    return Workers(fabric, network.hosts, "scatter_worker.py", json.dumps(arguments)).wait()[0]


# A busy machine resends fragments, so bytes are compared by `make fabric` alone.
@pytest.mark.figures
@pytest.mark.parametrize("trusted", [True, False])
def test_a_rank_sends_its_buffer_and_its_shard_and_receives_a_buffer(trusted):
    with Network(2, 4, 2, RATE_BPS) as network, Fabric(network, slots=Slots(trusted=trusted)) as fabric:
        counted = [network.link_bytes()]
        # First without a round: when ranks connect, they time operations on both paths, for as many bytes as it takes.
        for rounds in (0, COUNTED_ROUNDS):
            found = run(fabric, network, mib=MIB, rounds=rounds, ways=["switches"], operations=BOTH)
            counted.append(network.link_bytes())
        sent = {link: (b + counted[0][link] - 2 * counted[1][link]) / COUNTED_ROUNDS for link, b in counted[2].items()}
    assert found["in_network"]["switches"] == 2 * COUNTED_ROUNDS, found
    buffer = MIB << 20
    up = {host: sent[f"{host}>{network.rack_of[host]}"] / (buffer * (1 + 1 / WORKERS)) for host in network.hosts}
    down = {host: sent[f"{network.rack_of[host]}>{host}"] / (buffer * (1 + 1 / WORKERS)) for host in network.hosts}
    write(
        "scatter_bytes" if trusted else "scatter_bytes_sealed",
        {"buffer_bytes": buffer, "of_bound": {"up": up, "down": down}, "sent": sent},
    )
    assert max(up.values()) < 1.08, up
    assert max(down.values()) < 1.08, down


def test_an_input_may_be_where_its_output_is():
    with Network(2, 2, 2, RATE_BPS) as network, Fabric(network) as fabric:
        found = run(fabric, network, mib=2, rounds=2, ways=["switches", "hosts"], operations=BOTH, in_place=True)
    assert found["in_network"] == {"switches": 4, "hosts": 0}, found


@pytest.mark.figures
def test_both_at_once_are_ahead_of_rings_and_of_the_hosts():
    ways = ["switches", "atp", "hosts", "gloo"]
    slots = Slots(servers=("h0", "h4"), trusted=False)
    with Network(2, 4, 2, RATE_BPS) as network, Fabric(network, slots=slots) as fabric:
        rows = {
            "+".join(operations): run(fabric, network, mib=MIB, rounds=ROUNDS, ways=ways, operations=operations)
            for operations in (BOTH, ["reduce_scatter"], ["allgather"])
        }
    table = {}
    for name, row in rows.items():
        median = {way: statistics.median(times) for way, times in row["times"].items()}
        ratios = {way: median[way] / median["switches"] for way in ("atp", "hosts", "gloo")}
        table[name] = {"seconds": median, "best": {w: min(t) for w, t in row["times"].items()}, "ratios": ratios}
    write("scatter", {"mib": MIB, "operations": table})
    both = table["+".join(BOTH)]["ratios"]
    assert min(both["hosts"], both["gloo"]) >= 1.45, table
