"""Simulate a training job beside web traffic on 128 servers, with the shipped protocol code.

    python examples/simulate_cluster.py

You see the time of a training step, for switches that add and for a ring, and what each does to the other traffic.
"""

import tempfile

import netsum.sim

for scheme in ("panama", "ring"):
    config = {
        "duration": "10ms",
        "fabric": {"kind": "fat-tree", "k": 8},
        "switch": {"mark_packets": 85},
        "scheme": {"kind": scheme},
        "flows": [{"kind": "poisson", "load": 0.3, "sizes": "web-search"}],
        "jobs": [{"model": "resnet50", "compute": "1ms", "bytes": 1_000_000, "workers": 8, "steps": 4}],
    }
    result = netsum.sim.run(config, tempfile.mkdtemp())
    steps = [float(step["end_us"]) - float(step["start_us"]) for step in result.rows("steps")]
    p99 = result.summary["short_flows"]["fct_us"]["p99"]
    print(f"{scheme}: a step takes {sum(steps) / len(steps) / 1e3:.2f} ms; flows' p99 {p99 / 1e3:.2f} ms")
