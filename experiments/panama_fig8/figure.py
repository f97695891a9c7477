"""PANAMA Fig. 8: a shared cluster under load. a) p99 of short flows, b) throughput of long flows, c) training time.

Two variants: jobs that do the same work per second under every scheme ("paced": a step begins no sooner than an
undisturbed ring could; the load is the ring's traffic), and jobs that train at full speed ("greedy": a faster scheme
makes further steps).
"""

import statistics
from collections import defaultdict
from dataclasses import replace

from figures import Claim, Figure, Plot

SCHEMES = [
    "ideal",
    "ring",
    "ring-no-ecn",
    "switchml*",
    "panama",
    "panama-0.88",
    "panama-0.94",
    "panama-per-branch",
    "panama-coupled",
]
# k of the fat tree, workers of a job, scaling of the models, simulated milliseconds, loads, seeds per load.
SCALES = {
    "small": (4, [4, 12], 0.004, 60, [0.4, 0.8], [1, 1]),
    "medium": (8, [8, 48], 0.02, 600, [0.4, 0.8], [3, 3]),
    "full": (16, [16, 96], 0.02, 600, [0.2, 0.4, 0.6, 0.8], [1, 1, 1, 5]),
}
BACKGROUND = 0.2
# Flows that have started get a third of the time in addition; the jobs continue meanwhile.
DRAIN = 3
# Parameters that the paper does not state, varied one at a time at the highest load, for the pairs below.
VARIED = {
    "latency": [("fabric", "latency", "200ns"), ("fabric", "latency", "5us")],
    "threshold": [("switch", "mark_packets", 40), ("switch", "mark_packets", 65)],
    "PAUSE": [("switch", "pause", {"high_packets": 60, "low_packets": 40})],
    "sockets": [("tcp", "socket", "64KiB"), ("tcp", "socket", "4MiB")],
    "spraying of flows": [("switch", "paths", "packet")],
    "trees": [("scheme", "trees", 1), ("scheme", "trees", 8)],
    "window without control": [("scheme", "window", 128), ("scheme", "window", 2048)],
    "length of the models": [("mix", "scale", "half")],
}
PAIRS = [("ring", "panama"), ("ring-no-ecn", "panama-coupled")]
PAIRS_OF = {"window without control": [("ring", "switchml*")], "trees": PAIRS[:1]}
SHORT_BYTES = 40_000_000


def make(figure: Figure, tell) -> dict:
    """All schemes at all loads; then the sensitivity to parameters."""
    *_, loads, counts = SCALES[figure.scale]
    seeds = {load: range(1, count + 1) for load, count in zip(loads, counts, strict=True)}
    modes = {"greedy": SCHEMES, "paced": [kind for kind in SCHEMES if not kind.startswith("panama-0")]}
    names = {
        (mode, kind, load): [_name(kind, load, seed, mode) for seed in seeds[load]]
        for mode, kinds in modes.items()
        for kind in kinds
        for load in loads
    }
    # Those of the first seed come first: a figure that was interrupted can be read without the others.
    configs = {
        _name(kind, load, seed, mode): config_of(figure.scale, kind, load, seed, mode)
        for seed in range(1, max(counts) + 1)
        for mode, kind, load in names
        if seed in seeds[load]
    }
    varied = {} if figure.scale == "full" else _variations(figure.scale, loads[-1])
    runs = figure.run(configs | varied, tell)
    end_us = _end_us(figure.scale)
    points = {key: Point([runs[name] for name in group], end_us) for key, group in names.items()}
    at_top = {(mode, kind): names[mode, kind, loads[-1]] for mode, kinds in modes.items() for kind in kinds}
    top = {key: points[*key, loads[-1]] for key in at_top}
    by_seed = [{key: Point([runs[group[at]]], end_us) for key, group in at_top.items()} for at in range(counts[-1])]
    claims = [claim for mode in ("paced", "greedy") for claim in _sampled(mode, top, by_seed)]
    lines = {
        "a) p99 FCT of short flows": (" ms", lambda p: p.p99_us / 1e3),
        "b) throughput of long flows": (" Gbit/s", lambda p: p.long_gbps),
        "c) duration of a step, against the ideal": ("", None),
    }
    plots = [
        plot
        for mode in ("paced", "greedy")
        for title, (unit, value) in lines.items()
        if (plot := _plot(mode, title, unit, value, points, loads))
    ]
    data = {
        "points": {f"{mode},{kind},load={load}": point.figures() for (mode, kind, load), point in points.items()},
        "by_seed": _by_seed(runs, loads[-1], seeds[loads[-1]], modes, end_us),
        "sensitivity": _sensitivity(runs, varied, loads[-1], end_us),
    }
    return figure.write(claims, plots, data)


def _sampled(mode: str, top: dict, by_seed: list[dict]) -> list[Claim]:
    """The paper's statements over all seeds together, each with its ratio by seed."""
    each = [_claims(mode, points) for points in by_seed] if len(by_seed) > 1 else []
    return [
        replace(claim, samples=[c.ours for c in of_seeds if isinstance(c.ours, float)])
        for claim, *of_seeds in zip(_claims(mode, top), *each, strict=True)
    ]


def _claims(mode: str, top: dict) -> list[Claim]:
    """The paper's statements at 80 % load."""
    ring, unmarked, panama, free, ideal, branch, coupled = (
        top[mode, kind]
        for kind in ("ring", "ring-no-ecn", "panama", "switchml*", "ideal", "panama-per-branch", "panama-coupled")
    )
    claims = [
        _ratio("8a: p99 FCT of short flows, ring / panama", 4.5, ring.p99_us / panama.p99_us),
        _ratio("8a: p99 FCT of short flows, no congestion control / panama", 3.5, free.p99_us / panama.p99_us),
        _ratio("8a: mean FCT of short flows, ring / panama", 2.0, ring.mean_us / panama.mean_us),
        _ratio("8a: median FCT of short flows, ring / panama (not in the paper)", None, ring.p50_us / panama.p50_us),
        _ratio("8a: p99 FCT of short flows, panama / ideal (it follows)", 1.0, panama.p99_us / ideal.p99_us),
        _ratio("8b: throughput of long flows, panama / ring", 1.33, panama.long_gbps / ring.long_gbps),
        _ratio("8a: p99 FCT of short flows, ring / panama, windows coupled", 4.5, ring.p99_us / coupled.p99_us),
        _ratio("8a: mean FCT of short flows, ring / panama, windows coupled", 2.0, ring.mean_us / coupled.mean_us),
        _ratio(
            "8b: throughput of long flows, panama / ring, windows coupled", 1.33, coupled.long_gbps / ring.long_gbps
        ),
        _ratio("8c: training time, ring / panama, windows coupled", 1.34, training(ring, coupled)),
        _ratio("8c: training time, ring / panama", 1.34, training(ring, panama)),
        *(
            claim
            for name, other in (("panama", panama), ("panama, windows coupled", coupled))
            for claim in (
                _ratio(f"8a: p99 FCT of short flows, ring without ECN / {name}", 4.5, unmarked.p99_us / other.p99_us),
                _ratio(
                    f"8a: mean FCT of short flows, ring without ECN / {name}", 2.0, unmarked.mean_us / other.mean_us
                ),
                _ratio(
                    f"8b: throughput of long flows, {name} / ring without ECN",
                    1.33,
                    other.long_gbps / unmarked.long_gbps,
                ),
                _ratio(f"8c: training time, ring without ECN / {name}", 1.34, training(unmarked, other)),
            )
        ),
        _ratio("8c: training time, panama / no congestion control", 1.05, training(panama, free)),
        _ratio("8c: training time, panama / panama per branch (not in the paper)", None, training(panama, branch)),
    ]
    if mode == "greedy":
        early = [top[mode, kind].p99_us / panama.p99_us for kind in ("panama-0.88", "panama-0.94")]
        claims.append(
            Claim(
                "8a: p99 FCT with panama-0.88 and -0.94 is near that without congestion control",
                "near",
                f"{early[0]:.2f} and {early[1]:.2f} times panama's",
                early[0] > 1.5,
                "a switch with fewer than eight children never releases early, with -0.94 fewer than sixteen",
            )
        )
    return [replace(claim, claim=f"{mode}: {claim.claim}") for claim in claims]


def _plot(mode: str, title: str, unit: str, value, points: dict, loads: list[float]) -> Plot | None:
    series = {}
    for kind in (kind for kind in SCHEMES if not kind.startswith("panama-0")):
        at = [points[mode, kind, load] for load in loads]
        ideal = [points[mode, "ideal", load] for load in loads]
        values = [value(p) if value else training(p, i) for p, i in zip(at, ideal, strict=True)]
        line = [(100 * load, y) for load, y in zip(loads, values, strict=True) if y == y]
        if line:
            series[kind] = line
    return Plot(f"{title}, {mode}", unit, "load, per cent", series) if series else None


class Point:
    """One scheme at one load: all seeds together."""

    def __init__(self, results, end_us: float) -> None:
        flows = [row for result in results for row in result.rows("flows")]
        # An incomplete short flow counts with its elapsed time: leaving it out would be favourable.
        short = [r for r in flows if r["bytes"] < SHORT_BYTES]
        self.short_us = sorted(end_us - r["start_us"] if r["fct_us"] is None else r["fct_us"] for r in short)
        self.p50_us = statistics.median(self.short_us) if self.short_us else float("nan")
        self.mean_us = statistics.mean(self.short_us) if self.short_us else float("nan")
        self.unfinished = sum(r["fct_us"] is None for r in flows)
        self.p99_us = self.short_us[-(-99 * len(self.short_us) // 100) - 1] if self.short_us else float("nan")
        gbps = [g for result in results for g in [result.summary["long_flows"]["throughput_gbps"]] if g["count"]]
        count = sum(g["count"] for g in gbps)
        self.long_gbps = sum(g["mean"] * g["count"] for g in gbps) / count if count else float("nan")
        self.long_count = count
        self.step_us = {}
        for seed, result in enumerate(results):
            by_job = defaultdict(list)
            for row in result.rows("steps"):
                by_job[row["job"]].append(row["end_us"] - row["start_us"])
            self.step_us |= {(seed, job): statistics.mean(steps) for job, steps in by_job.items()}

    def figures(self) -> dict:
        """The figures for result.json."""
        return {
            "p99_fct_us": _or_none(self.p99_us),
            "p50_fct_us": _or_none(self.p50_us),
            "mean_fct_us": _or_none(self.mean_us),
            "short_flows": len(self.short_us),
            "unfinished_flows": self.unfinished,
            "long_gbps": _or_none(self.long_gbps),
            "long_flows": self.long_count,
            "jobs_with_steps": len(self.step_us),
        }


def _or_none(value: float) -> float | None:
    return value if value == value else None


def training(slow: Point, fast: Point) -> float:
    """Mean over the jobs of the ratio of their steps' durations; jobs without a step in either run are left out."""
    both = slow.step_us.keys() & fast.step_us.keys()
    return statistics.mean(slow.step_us[job] / fast.step_us[job] for job in both) if both else float("nan")


def _ratio(claim: str, paper: float | None, ours: float) -> Claim:
    """Ratios of two simulations with unknown parameters: within a quarter counts as equal."""
    holds = ours == ours and (paper is None or abs(ours / paper - 1) <= 0.25)
    return Claim(claim, paper, round(ours, 2) if ours == ours else None, holds, _WHY)


_WHY = (
    "latency, buffers, PAUSE thresholds, model weights, sizes of the flows and duration are not stated in the paper; "
    "see the sensitivity table and README.md"
)


def _name(kind: str, load: float, seed: int, mode: str) -> str:
    return f"{kind},load={load},seed={seed},{mode}"


def config_of(scale: str, kind: str, load: float, seed: int, mode: str) -> dict:
    k, workers, shortened, duration_ms, *_ = SCALES[scale]
    config = {
        "name": f"fig 8, {kind}, load {load}",
        "seed": seed,
        "duration": f"{duration_ms}ms",
        "drain": f"{duration_ms // DRAIN}ms",
        "fabric": {"kind": "fat-tree", "k": k, "latency": "1us"},
        "switch": {"mark_packets": 85, "pause": {"high_packets": 200, "low_packets": 150}, "memory": "64MB"},
        "host": {"queue": "fifo"},
        "tcp": {"socket": "256KiB"},
        "scheme": {"kind": kind},
        "flows": [
            {"kind": "poisson", "load": BACKGROUND / 2, "sizes": sizes} for sizes in ("web-search", "data-mining")
        ],
    }
    if load > BACKGROUND:
        config["mix"] = {"load": round(load - BACKGROUND, 3), "workers": workers, "scale": shortened}
        if mode == "paced":
            # A ring sends everything twice; the load is the ring's traffic.
            config["mix"] |= {"load": round((load - BACKGROUND) / 2, 3), "pace": 2}
    return config


def _end_us(scale: str) -> float:
    duration_ms = SCALES[scale][3]
    return (duration_ms + duration_ms // DRAIN) * 1e3


def _variations(scale: str, load: float) -> dict[str, dict]:
    runs = {}
    for parameter, changes in VARIED.items():
        for table, key, value in changes:
            for kind in {kind: None for pair in PAIRS_OF.get(parameter, PAIRS) for kind in pair}:
                config = config_of(scale, kind, load, 1, "greedy")
                changed = config["mix"]["scale"] / 2 if value == "half" else value
                config[table][key] = changed
                runs[_varied_name(kind, table, key, value)] = config
    return runs


def _varied_name(kind: str, table: str, key: str, value) -> str:
    text = "-".join(str(v) for v in value.values()) if isinstance(value, dict) else value
    return f"{kind},{table}.{key}={text}"


def _by_seed(runs, load: float, seeds: range, modes: dict, end_us: float) -> list[dict]:
    """The paper's comparisons for each seed: a different draw of flows and jobs."""
    rows = []
    for mode in modes if len(seeds) > 1 else []:
        for seed in seeds:
            for slow, fast in [*PAIRS, ("ring-no-ecn", "panama"), ("switchml*", "panama")]:
                pair = [Point([runs[_name(kind, load, seed, mode)]], end_us) for kind in (slow, fast)]
                rows.append(_row(f"{mode}, seed {seed}", slow, fast, *pair))
    return rows


def _sensitivity(runs, varied, load: float, end_us: float) -> list[dict]:
    """Hosts against the network, pair by pair and parameter by parameter; each pair's first row is the default.

    All of seed 1.
    """
    rows = []
    for slow, fast in PAIRS if varied else []:
        pair = [Point([runs[_name(kind, load, 1, "greedy")]], end_us) for kind in (slow, fast)]
        rows.append(_row("default", slow, fast, *pair))
    for parameter, changes in VARIED.items() if varied else []:
        for table, key, value in changes:
            for slow, fast in PAIRS_OF.get(parameter, PAIRS):
                pair = [Point([runs[_varied_name(kind, table, key, value)]], end_us) for kind in (slow, fast)]
                rows.append(_row(_varied_name("", table, key, value).lstrip(","), slow, fast, *pair))
    return rows


def _row(parameter: str, slow: str, fast: str, of_slow: Point, of_fast: Point) -> dict:
    return {
        "parameter": parameter,
        "pair": f"{slow} / {fast}",
        "p99": _or_none(of_slow.p99_us / of_fast.p99_us),
        "mean": _or_none(of_slow.mean_us / of_fast.mean_us),
        "long": _or_none(of_fast.long_gbps / of_slow.long_gbps),
        "training": _or_none(training(of_slow, of_fast)),
    }
