"""PANAMA Fig. 9: duration of one iteration's aggregation in the presence of long flows: four trees, single trees,
ring."""

import random
import statistics

from figures import Claim, Figure, Plot

# The paper's Fig. 3 is not available; this is a leaf-spine whose four spines are the roots. Eight workers, two per
# rack; the other hosts send long flows to other racks.
RACKS, HOSTS, SPINES = 4, 8, 4
WORKERS = [rack * HOSTS + i for rack in range(RACKS) for i in (0, 1)]
OTHERS = [rack * HOSTS + i for rack in range(RACKS) for i in range(2, HOSTS)]
# Senders, gradient bytes, draws of the senders, and the duration of the flows before the job begins.
SCALES = {
    "small": ([0, 16], 20_000_000, 2, 5),
    "medium": ([0, 4, 8, 12, 16, 20, 24], 40_000_000, 5, 10),
    "full": ([0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24], 100_000_000, 10, 20),
}
SCHEMES = {
    "panama, 4 trees": {"kind": "panama", "trees": 4},
    **{f"tree {i + 1} alone": {"kind": "panama", "trees": 1, "roots": [f"spine{i}"]} for i in range(SPINES)},
    "ring": {"kind": "ring"},
    "per branch, 4 trees": {"kind": "panama-per-branch", "trees": 4},
    "coupled, 4 trees": {"kind": "panama-coupled", "trees": 4},
}
# What the paper does not state, tried one after the other with all senders: table, key, value. "jobs" are gradients of
# other sizes, other numbers of workers and a second job on the same hosts; without PAUSE, queues of 250 packets drop.
VARIED = [
    ("fabric", "latency", "200ns"),
    ("fabric", "latency", "5us"),
    ("switch", "mark_packets", 40),
    ("switch", "mark_packets", 65),
    ("switch", "pause", {"high_packets": 60, "low_packets": 40}),
    ("switch", "pause", None),
    ("tcp", "socket", "64KiB"),
    ("tcp", "socket", "4MiB"),
    ("scheme", "window", 128),
    ("scheme", "window", 2048),
    ("jobs", "bytes", 5_000_000),
    ("jobs", "bytes", 80_000_000),
    ("jobs", "workers", 4),
    ("jobs", "count", 2),
]
VARIED_BYTES, VARIED_DRAWS = 20_000_000, 3


def _name(change: tuple[str, str, object] | None) -> str:
    if change is None:
        return "default"
    table, key, value = change
    text = "-".join(str(v) for v in value.values()) if isinstance(value, dict) else value
    return f"{table}.{key}={text}"


def make(figure: Figure, tell) -> dict:
    """Aggregation latency of one iteration by number of senders, the mean over several draws of senders and
    receivers."""
    counts, gradient_bytes, draws, warm_ms = SCALES[figure.scale]
    configs = {
        f"{name},senders={count},draw={draw}": _config(scheme, count, draw, gradient_bytes, warm_ms)
        for name, scheme in SCHEMES.items()
        for count in counts
        for draw in range(draws)
    }
    varied = [] if figure.scale == "small" else [None, *VARIED]
    configs |= {
        f"{name},{_name(change)},draw={draw}": _config(scheme, counts[-1], draw, VARIED_BYTES, warm_ms, change)
        for change in varied
        for name, scheme in SCHEMES.items()
        for draw in range(VARIED_DRAWS)
    }
    runs = figure.run(configs, tell)

    def latency_ms(name: str, count: int, draw: int) -> float:
        return runs[f"{name},senders={count},draw={draw}"].summary["steps"]["reduce_us"]["mean"] / 1e3

    mean = {
        name: [(count, statistics.mean(latency_ms(name, count, draw) for draw in range(draws))) for count in counts]
        for name in SCHEMES
    }
    at_most = {name: line[-1][1] for name, line in mean.items()}
    singles = [name for name in SCHEMES if name.endswith("alone")]
    worse = [
        (count, draw, name)
        for count in counts[1:]
        for draw in range(draws)
        for name in singles
        if latency_ms(name, count, draw) > latency_ms("ring", count, draw)
    ]
    single = statistics.mean(at_most[name] for name in singles)
    four, branch = at_most["panama, 4 trees"], at_most["per branch, 4 trees"]
    tries = len(counts[1:]) * draws * len(singles)
    claims = [
        Claim(
            f"four trees beat every single tree at {counts[-1]} senders",
            "best of six",
            f"{four:.2f} ms against {min(at_most[n] for n in singles):.2f} ms and more",
            all(four < at_most[name] for name in singles),
            "fragments go to the trees in turn, so four trees wait for the slowest of four; see the table in README.md",
        ),
        Claim(
            f"four trees beat the ring at {counts[-1]} senders",
            "best of six",
            f"{four:.2f} against {at_most['ring']:.2f} ms",
            four < at_most["ring"],
            f"marks of all branches count as one (see panama_fig8); with a window per branch: {branch:.2f} ms",
        ),
        Claim(
            "a single tree can be worse than the ring",
            "yes",
            f"{len(worse)} of {tries} draws",
            bool(worse),
            "where long flows share its links; the ring crosses each rack's uplinks once, on paths of its own",
        ),
        Claim(
            "with nobody else there, a tree takes half as long as the ring (2(N-1)/N)",
            1.75,
            round(mean["ring"][0][1] / mean[singles[0]][0][1], 2),
            abs(mean["ring"][0][1] / mean[singles[0]][0][1] / 1.75 - 1) < 0.1,
            "tolerance 10 %; a ring's flows begin with small windows, which counts the more the shorter the chunks are",
        ),
    ]
    return figure.write(
        claims,
        [Plot("Aggregation of one iteration", " ms", "long-flow senders", mean)],
        {
            "mean_ms": mean,
            "single_tree_mean_ms": single,
            "draws": draws,
            "gradient_bytes": gradient_bytes,
            "sensitivity": [_sensitivity(runs, change, singles) for change in varied],
        },
    )


def _sensitivity(runs: dict, change: tuple[str, str, object] | None, singles: list[str]) -> dict:
    """Means over the draws, in ms, and the number of draws in which a single tree was slower than the ring."""
    draws = range(VARIED_DRAWS)

    def ms(name: str, draw: int) -> float:
        return runs[f"{name},{_name(change)},draw={draw}"].summary["steps"]["reduce_us"]["mean"] / 1e3

    mean = {name: statistics.mean(ms(name, draw) for draw in draws) for name in SCHEMES}
    return {
        "parameter": _name(change),
        "four_ms": mean["panama, 4 trees"],
        "coupled_ms": mean["coupled, 4 trees"],
        "best_single_ms": min(mean[name] for name in singles),
        "worst_single_ms": max(mean[name] for name in singles),
        "ring_ms": mean["ring"],
        "single_worse_than_ring": sum(ms(name, draw) > ms("ring", draw) for name in singles for draw in draws),
        "of": len(singles) * len(draws),
    }


def _config(
    scheme: dict,
    count: int,
    draw: int,
    gradient_bytes: int,
    warm_ms: int,
    change: tuple[str, str, object] | None = None,
) -> dict:
    table, key, value = change or ("", "", None)
    of_jobs = {key: value} if table == "jobs" else {}
    chance = random.Random(draw)
    senders = chance.sample(OTHERS, len(OTHERS))[:count]
    flows = []
    for src in senders:
        dst = chance.choice([host for host in OTHERS if host // HOSTS != src // HOSTS])
        flows.append({"kind": "one", "src": src, "dst": dst, "bytes": 1 << 40})
    job = {
        "compute": "0ns",
        "bytes": of_jobs.get("bytes", gradient_bytes),
        "hosts": WORKERS[:: len(WORKERS) // of_jobs.get("workers", len(WORKERS))],
        "start": f"{warm_ms}ms",
    }
    config = {
        "name": "fig 9",
        "seed": draw + 1,
        "duration": "10s",
        "fabric": {"kind": "leaf-spine", "racks": RACKS, "hosts_per_rack": HOSTS, "spines": SPINES, "latency": "1us"},
        "switch": {"pause": {"high_packets": 200, "low_packets": 150}},
        "host": {"queue": "fifo"},
        "tcp": {"socket": "256KiB"},
        "stop_with_jobs": True,
        "scheme": dict(scheme),
        "flows": flows,
        "jobs": [job] * of_jobs.get("count", 1),
    }
    if change and table != "jobs":
        config[table][key] = value
    config["switch"] = {name: of for name, of in config["switch"].items() if of is not None}
    return config
