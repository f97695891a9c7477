"""The way that a job takes by itself, beside the best of all ways, by operation and size on shaped links.

The whole comparison takes more than an hour: a run measures the networks that NETSUM_FABRIC_CHOICES names, as
`100:4,1000:2` (Mbit/s of a link, and workers), to NETSUM_FABRIC_CHOICES_BYTES, and the operations of
NETSUM_FABRIC_CHOICES_OF. It reports; what is asserted is only that no choice is far off.
"""

from __future__ import annotations

import json
import os
import statistics

import pytest

from fabric import Fabric, Workers
from network import Network
from test_throughput import write

PARTS = os.environ.get("NETSUM_FABRIC_CHOICES", "100:4")
OPERATIONS = os.environ.get(
    "NETSUM_FABRIC_CHOICES_OF", "allreduce,reduce_scatter,allgather,broadcast,reduce,alltoall,barrier"
).split(",")
MOST_BYTES = int(os.environ.get("NETSUM_FABRIC_CHOICES_BYTES", 2 << 20))
SIZES = [size for size in [*(8 << 3 * k for k in range(8)), 64 << 20] if size <= MOST_BYTES]
GUARD_S = 3600.0
LARGE_BYTES = 256 << 10


def compared(rate_bps: int, workers: int) -> dict:
    """The rows of one network: two racks, with half of the workers each."""
    with Network(2, workers // 2, 2, rate_bps) as network, Fabric(network) as fabric:
        arguments = {"operations": OPERATIONS, "sizes": SIZES, "seconds": 2.0, "rounds": 40}
        ranks = Workers(fabric, network.hosts, "choices_worker.py", json.dumps(arguments))
        found = ranks.wait(timeout_s=GUARD_S)[0]
    rows = []
    for row in found["rows"]:
        times, chosen = row["times"], row["chosen"]
        # The job's own calls take the chosen way, too.
        times[chosen] = times.get(chosen, []) + times.pop("auto")
        medians = {way: statistics.median(each) for way, each in times.items()}
        best = min(medians, key=medians.__getitem__)
        # Of the two paths: the switches, and what the hosts would do.
        costs = {cost["name"]: cost["seconds"] for cost in row["explained"]["costs"] if cost["seconds"] is not None}
        # Ways that are far off were not tried.
        host = min((way for way in medians if way in costs), key=costs.__getitem__, default=None)
        paths = [medians[way] for way in (host, "trees") if way in medians]
        rows.append(
            {
                "operation": row["operation"],
                "bytes": row["bytes"],
                "chosen": chosen,
                "best": best,
                "over": medians[chosen] / medians[best] - 1,
                "over_other_path": medians[chosen] / min(*paths, medians[chosen]) - 1,
                "median_s": medians,
                "best_s": {way: min(each) for way, each in times.items()},
                "calls": {way: len(each) for way, each in times.items()},
                "predicted_s": {cost["name"]: cost["seconds"] for cost in row["explained"]["costs"]},
            }
        )
    costs = {name: found[name] for name in ("link", "switches", "connect_s")}
    return {"rate_bps": rate_bps, "workers": workers, **costs, "rows": rows}


@pytest.mark.figures
@pytest.mark.parametrize("part", PARTS.split(","))
def test_the_choice_beside_the_best(part):
    mbits, workers = map(int, part.split(":"))
    result = compared(mbits * 1_000_000, workers)
    write(f"choices_{mbits}_{workers}", result)
    for row in result["rows"]:
        # A busy machine disturbs small operations by more than ways differ, and a shaper lets its burst pass at once.
        assert row["bytes"] < LARGE_BYTES or row["over"] < 0.5, row
