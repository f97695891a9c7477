"""Steps of DistributedDataParallel over slow links: float32, bf16 and 8 bits compared in one run."""

from __future__ import annotations

import json
import statistics

import pytest

from fabric import Fabric, Workers
from network import Network
from test_throughput import write

RATE_BPS = 200_000_000
WORKERS = 4
STEPS = 5


@pytest.mark.figures
def test_fewer_bits_take_less_of_the_links_and_less_time():
    given = {"NETSUM_LINK_LATENCY_S": "1e-4", "NETSUM_LINK_BYTES_PER_S": str(RATE_BPS / 8)}
    with Network(1, WORKERS, 1, RATE_BPS) as network, Fabric(network) as fabric:
        workers = Workers(fabric, network.hosts, "compression_worker.py", json.dumps({"steps": STEPS}), **given)
        found = workers.wait()[0]
    size = found.pop("gradient_bytes")
    rows = {
        name: {
            "seconds": {"median": statistics.median(row["seconds"]), "best": min(row["seconds"])},
            "bytes": statistics.median(row["bytes"]),
            "error": row["error"],
        }
        for name, row in found.items()
    }
    write("compression", {"rate_bps": RATE_BPS, "ranks": WORKERS, "gradient_bytes": size, "rows": rows})
    sent = {name: row["bytes"] / size for name, row in rows.items()}
    # 2 (N - 1) / N over the hosts and 1 through switches, with headers; 8 bits with a scale per 1,024 of them.
    assert 1.5 < sent["hosts float32"] < 1.65 and 0.75 < sent["hosts bf16"] < 0.84, sent
    assert 0.37 < sent["hosts int8"] < 0.42 and sent["switches bf16"] < 0.6, sent
    seconds = {name: row["seconds"]["median"] for name, row in rows.items()}
    assert seconds["hosts float32"] > 1.5 * seconds["hosts bf16"] > 1.5 * 1.3 * seconds["hosts int8"], seconds
    assert all(row["error"] < 0.02 for row in rows.values()), rows
