"""Gradients of embeddings over slow links: rows that switches add, rows that hosts gather, and dense tables, whole and
without blocks of zeros."""

from __future__ import annotations

import json
import os
import statistics

import pytest

from fabric import Fabric, Workers
from network import Network
from test_throughput import write

NETWORKS = os.environ.get("NETSUM_FABRIC_SPARSE", "100:1:4,100:2:8")
"""Mbit/s of a link, racks and workers."""
WORDS = [2_000, 30_000]
STEPS = 5


@pytest.mark.figures
@pytest.mark.parametrize("part", NETWORKS.split(","))
def test_switches_add_rows_of_embeddings(part):
    mbits, racks, workers = map(int, part.split(":"))
    rate_bps = mbits * 1_000_000
    given = {"NETSUM_LINK_LATENCY_S": "1e-4", "NETSUM_LINK_BYTES_PER_S": str(rate_bps / 8)}
    result = {"rate_bps": rate_bps, "racks": racks, "ranks": workers, "tables": {}}
    with Network(racks, workers // racks, 1, rate_bps) as network, Fabric(network) as fabric:
        for words in WORDS:
            arguments = json.dumps({"steps": STEPS, "words": words})
            found = Workers(fabric, network.hosts, "sparse_worker.py", arguments, **given).wait()[0]
            facts = {"words": words} | {key: found.pop(key) for key in ("row_bytes", "rows", "union")}
            facts["rows"], facts["union"] = statistics.median(facts["rows"]), statistics.median(facts["union"])
            result["tables"][words] = facts | {
                name: {
                    "seconds": {"median": statistics.median(row["seconds"]), "best": min(row["seconds"])},
                    "sent": statistics.median(row["sent"]),
                    "received": statistics.median(row["received"]),
                }
                for name, row in found.items()
            }
    write(f"sparse_{mbits}_{racks}_{workers}", result)
    for facts in result["tables"].values():
        received = {name: row["received"] for name, row in facts.items() if isinstance(row, dict)}
        # The union's rows once, with headers; indices, of 8 bytes, from all others.
        allowed = 1.1 * facts["union"] * facts["row_bytes"] + 2 * 8 * workers * facts["rows"] + 100_000
        assert received["switches sparse"] < allowed, (received, allowed)
        # Rare words are at one rank alone: the union of four ranks has nearly as many rows as three others.
        assert received["switches sparse"] < 1.02 * received["hosts gather"], received
        # A byte for each row of the table, up and down; from 0.75 of the rows, all of them.
        rows = facts["union"] if facts["union"] < 0.75 * facts["words"] else facts["words"]
        assert received["switches blocks"] < 1.1 * rows * facts["row_bytes"] + 4 * facts["words"] + 100_000, received
