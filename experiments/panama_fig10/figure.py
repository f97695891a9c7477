"""PANAMA Fig. 10: a DCTCP flow and aggregation through one bottleneck, with congestion control and without."""

from itertools import pairwise

from figures import Claim, Figure, Plot

# The flow alone, then both; in milliseconds, with the sampling interval in microseconds.
TIMES = {"small": (20, 100, 1000), "medium": (100, 250, 2000), "full": (250, 500, 5000)}
BOTTLENECK, FLOW = "rack0>spine0", "rack1>h4"
# Parameters that the paper does not state, and their ranges.
VARIED = {
    "latency": ["1us", "2us", "5us", "10us", "20us"],
    "mark_packets": [40, 65, 85, 120],
    "fragment_bytes": [1024, 1408],
    "socket": ["128KiB", "512KiB", "4MiB"],
}


def make(figure: Figure, tell) -> dict:
    """The three schemes at the defaults, then panama with one parameter varied at a time."""
    schemes = ("panama", "panama-per-branch", "switchml*")
    configs = {kind: _config(figure.scale, kind) for kind in schemes}
    varied = {
        f"panama,{key}={value}": _config("small", "panama", **{key: value})
        for key, values in VARIED.items()
        for value in values
    }
    runs = figure.run(configs | varied, tell)
    rates = {kind: _rates(figure.scale, runs[kind]) for kind in schemes}
    shares = {kind: _share(figure.scale, runs[kind]) for kind in schemes}
    sensitivity = {name: round(_share("small", runs[name]), 3) for name in varied}
    claims = [
        Claim(
            "with congestion control both have an equal share",
            0.5,
            round(shares["panama"], 3),
            abs(shares["panama"] - 0.5) <= 0.05,
            "the job's share of the bottleneck while both run; tolerance 10 %",
        ),
        Claim(
            "a window per branch shares as equally: one branch is congested",
            0.5,
            round(shares["panama-per-branch"], 3),
            abs(shares["panama-per-branch"] - 0.5) <= 0.05,
            "not in the paper",
        ),
        Claim(
            "without congestion control the flow starves: below 5 % of the link",
            "starves",
            round(1 - shares["switchml*"], 3),
            1 - shares["switchml*"] < 0.05,
            "the flow's share",
        ),
        Claim(
            "the equal share does not hang on what the paper does not state",
            "not said",
            f"{min(sensitivity.values())} to {max(sensitivity.values())}",
            all(0.4 <= share <= 0.6 for share in sensitivity.values()),
            "at 20 µs per link propagation outweighs the queue, and the job's way, to the spine and back, is half as "
            "long as the flow's: DCTCP is not fair between round trips. See data.sensitivity",
        ),
    ]
    names = {"panama": "With congestion control", "switchml*": "Without"}
    plots = [Plot(names[kind], " Gbit/s", "milliseconds", rates[kind]) for kind in names]
    return figure.write(claims, plots, {"job_share": shares, "sensitivity": sensitivity})


def _config(scale: str, kind: str, latency="5us", mark_packets=85, fragment_bytes=1408, socket="256KiB") -> dict:
    start_ms, end_ms, every_us = TIMES[scale]
    return {
        "name": f"fig 10, {kind}",
        "duration": f"{end_ms}ms",
        "fabric": {"kind": "leaf-spine", "racks": 2, "hosts_per_rack": 4, "spines": 1, "latency": latency},
        "switch": {"mark_packets": mark_packets, "queue_packets": 10_000},
        "host": {"queue": "fifo"},
        "tcp": {"socket": socket},
        "scheme": {"kind": kind, "trees": 1, "window": 600, "fragment_bytes": fragment_bytes},
        "flows": [{"kind": "one", "src": 0, "dst": 4, "bytes": 1 << 40}],
        "jobs": [{"compute": "0ns", "bytes": 1 << 38, "hosts": [1, 2, 3, 5, 6, 7], "start": f"{start_ms}ms"}],
        "samples": {"every": f"{every_us}us", "links": [BOTTLENECK, FLOW]},
    }


def _carried(run) -> list[tuple[float, int, int]]:
    """Time in milliseconds, bytes over the bottleneck and bytes of the flow until then."""
    rows = run.rows("samples")
    by_link = {name: [r for r in rows if f"{r['from']}>{r['to']}" == name] for name in (BOTTLENECK, FLOW)}
    pairs = zip(by_link[BOTTLENECK], by_link[FLOW], strict=True)
    return [(both["time_us"] / 1e3, both["carried_bytes"], flow["carried_bytes"]) for both, flow in pairs]


def _rates(scale: str, run) -> dict[str, list[tuple[float, float]]]:
    lines = {"job": [], "DCTCP flow": []}
    carried = _carried(run)
    for (t0, both0, flow0), (t1, both1, flow1) in pairwise(carried):
        gbps = 8 / ((t1 - t0) * 1e6)
        lines["DCTCP flow"].append((t1, (flow1 - flow0) * gbps))
        # Samples divide packets in transmission, which would show as a slightly negative rate.
        lines["job"].append((t1, max((both1 - both0 - flow1 + flow0) * gbps, 0.0)))
    return lines


def _share(scale: str, run) -> float:
    """The job's share of the bottleneck over the second half of the period in which both run."""
    start_ms, end_ms, _ = TIMES[scale]
    inside = [row for row in _carried(run) if row[0] >= start_ms + (end_ms - start_ms) / 2]
    both, flow = inside[-1][1] - inside[0][1], inside[-1][2] - inside[0][2]
    return (both - flow) / both
