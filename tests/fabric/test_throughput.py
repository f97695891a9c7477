"""Eight workers in two racks, every link at 100 Mbit/s: allreduce at line rate, and the links' traffic."""

from __future__ import annotations

import json
import os
import pathlib
import statistics

import pytest

from fabric import REPOSITORY, Fabric, Workers
from network import Network

RATE_BPS = 100_000_000
WORKERS = 8
# Limited by CI's time: 256 MiB takes 22 s per allreduce at line rate and 38 s on a ring.
SIZES_MIB = [int(s) for s in os.environ.get("NETSUM_FABRIC_SIZES_MIB", "16,64").split(",")]
REPEATS = int(os.environ.get("NETSUM_FABRIC_REPEATS", "2"))


def write(name: str, result: dict) -> None:
    folder = pathlib.Path(REPOSITORY / "out" / "fabric")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result))


@pytest.mark.figures
def test_allreduce_runs_at_line_rate_and_ahead_of_a_ring():
    with Network(2, 4, 2, RATE_BPS) as network, Fabric(network) as fabric:
        arguments = {"sizes_mib": SIZES_MIB, "repeats": REPEATS, "gloo": True}
        workers = Workers(fabric, network.hosts, "worker.py", json.dumps(arguments))
        ranks = workers.wait()
    rows = {}
    for mib in map(str, SIZES_MIB):
        bits = int(mib) * 8 * (1 << 20)
        rates = {who: [bits / s / RATE_BPS for s in ranks[0][who][mib]] for who in ("netsum", "gloo")}
        rows[mib] = {who: {"median": statistics.median(r), "best": max(r)} for who, r in rates.items()}
        rows[mib]["ratio"] = rows[mib]["netsum"]["median"] / rows[mib]["gloo"]["median"]
    write("throughput", {"unit": "algbw / line rate", "limit_ratio": 1.75, "sizes_mib": rows})
    for mib, row in rows.items():
        assert row["netsum"]["median"] >= 0.90, f"{mib} MiB: {row}"
        assert row["ratio"] >= 1.6, f"{mib} MiB: {row}"


# Whether the most is compared, too: a busy machine resends fragments.
BRIEF = pytest.param(False, id="brief")
THOROUGH = pytest.param(True, marks=pytest.mark.figures, id="thorough")


@pytest.mark.parametrize("thorough", [BRIEF, THOROUGH])
def test_a_rack_uplink_carries_one_stream_per_tree(thorough):
    with Network(2, 4, 2, RATE_BPS) as network, Fabric(network) as fabric:
        before = network.link_bytes()
        arguments = {"sizes_mib": [16], "repeats": 1, "gloo": False}
        # Configured, so that ranks do not send bytes to measure them.
        given = {"NETSUM_LINK_LATENCY_S": "1e-4", "NETSUM_LINK_BYTES_PER_S": str(RATE_BPS / 8)}
        Workers(fabric, network.hosts, "worker.py", json.dumps(arguments), **given).wait()
        sent = {link: b - before[link] for link, b in network.link_bytes().items()}
    buffer = 17 << 20  # With the warm-up of 1 MiB.
    write("uplinks", {"buffer_bytes": buffer, "sent": sent})
    for rack in network.racks:
        for spine in network.spines:
            # Half of the fragments each, with 6 % of headers, and some control traffic.
            for direction in (f"{rack}>{spine}", f"{spine}>{rack}"):
                assert sent[direction] > 0.5 * buffer, f"{direction}: {sent[direction]}"
                assert not thorough or sent[direction] < 0.56 * buffer, f"{direction}: {sent[direction]}"
    for host in network.hosts:
        up = sent[f"{host}>{network.rack_of[host]}"]
        assert up > buffer and (not thorough or up < 1.15 * buffer), f"{host}: {up}"
