"""The cost model against the executor on emulated links: calibrated by the ranks' measurements, then by size."""

from __future__ import annotations

import statistics

import pytest

from fragment import PROGRAM, Fragment
from netsum.plan import calibrated, estimate, pack
from test_plans import fragment
from test_throughput import write

# `cargo test` builds it.
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="no plan_rank: cargo test --workspace --no-run")

SIZES = [4 << 10, 32 << 10, 256 << 10, 2 << 20, 8 << 20]


@pytest.mark.figures
@pytest.mark.parametrize("gpus", ["0,2,3", "0,1,2,3"])
def test_times_are_as_predicted(gpus, tmp_path):
    graph = fragment(gpus)
    rows, links = {}, {}
    with Fragment(graph) as fabric:
        for method in ("exact", "rings"):
            plan = pack(graph, method=method)["plan"]
            times, found = fabric.times(plan, SIZES, tmp_path, repeats=3, measure=True)
            rows[method] = [statistics.median(each) for each in times]
            links |= found
    measured, count = calibrated(graph, links)
    assert count == len(graph["link"])
    result = {}
    for method, seconds in rows.items():
        predicted = estimate(measured, [float(size) for size in SIZES], method)
        result[method] = [
            {"bytes": b, "predicted_s": p, "measured_s": m, "error": p / m - 1}
            for b, p, m in zip(SIZES, predicted, seconds, strict=True)
        ]
    shapes = {"–".join(link["ends"]): [link["rate"], link["latency"]] for link in measured["link"]}
    write(f"plan_costs_{gpus.replace(',', '')}", {"links": shapes, "times": result})
    # Buffers below a shaper's burst are faster than the emulated link.
    for method, points in result.items():
        assert all(abs(point["error"]) < 0.25 for point in points if point["bytes"] >= 256 << 10), (method, points)
