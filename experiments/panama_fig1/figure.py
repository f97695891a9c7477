"""PANAMA Fig. 1: the share of communication in a step, and the speed-up if it is halved."""

from figures import Claim, Figure, Plot

# Images per second and batch of one P100 (TensorFlow's benchmark page, May 2017), gradient bytes as 32-bit floats.
MODELS = {
    "AlexNet": (2987.0, 512, 244_403_360),
    "VGG16": (154.0, 64, 553_000_000),
    "ResNet50": (219.0, 64, 102_000_000),
    "ResNet152": (91.8, 64, 241_000_000),
    "InceptionV3": (142.0, 64, 95_000_000),
}
RATE_BPS = 10e9
# Parameters of the simulated check: workers on one switch, and by how much compute time and gradients are shortened.
WORKERS, SHORTENED = 16, 0.01
# Parameters that the paper does not state and the closed form does not have, varied one at a time on the models with
# the most and the least to gain: table, key, value.
VARIED = [
    ("fabric", "latency", "200ns"),
    ("fabric", "latency", "5us"),
    ("switch", "mark_packets", 40),
    ("switch", "mark_packets", 65),
    ("switch", "queue_packets", 100),
    ("switch", "queue_packets", 1000),
    ("switch", "pause", {"high_packets": 60, "low_packets": 40}),
    ("tcp", "socket", "64KiB"),
    ("tcp", "socket", "256KiB"),
    ("scheme", "window", 128),
    ("scheme", "window", 2048),
    ("scheme", "trees", 1),
    ("jobs", "workers", 4),
    ("jobs", "workers", 64),
    ("jobs", "count", 2),
    ("jobs", "buckets", 4),
    ("jobs", "shortened", 0.1),
]


def shares(model: str) -> tuple[float, float]:
    """Communication / step for a ring (each byte crosses a worker's link twice), and the speed-up if it is halved."""
    images_per_s, batch, gradient_bytes = MODELS[model]
    compute_s, reduce_s = batch / images_per_s, 2 * gradient_bytes * 8 / RATE_BPS
    share = reduce_s / (compute_s + reduce_s)
    return share, 1 / (1 - share / 2)


def make(figure: Figure, tell) -> dict:
    """Closed form, and the same steps through the simulator."""
    closed = {model: shares(model) for model in MODELS}
    varied = [] if figure.scale == "small" else VARIED
    ends = [max(MODELS, key=lambda m: closed[m][0]), min(MODELS, key=lambda m: closed[m][0])]
    configs = {f"{model},{kind}": _config(model, kind) for model in MODELS for kind in ("ring", "panama")} | {
        f"{model},{kind},{_name(change)}": _config(model, kind, change)
        for change in varied
        for model in ends
        for kind in ("ring", "panama")
    }
    runs = figure.run(configs, tell)
    step_us = {name: run.summary["steps"]["duration_us"]["mean"] for name, run in runs.items()}
    simulated = {model: step_us[f"{model},ring"] / step_us[f"{model},panama"] for model in MODELS}
    low, high = min(speed for _, speed in closed.values()), max(speed for _, speed in closed.values())
    worst = max(abs(simulated[model] / closed[model][1] - 1) for model in MODELS)
    claims = [
        Claim(
            "largest share of communication, P100 at 10 Gbit/s",
            0.70,
            round(max(s for s, _ in closed.values()), 3),
            abs(max(s for s, _ in closed.values()) - 0.70) < 0.01,
            "closed form; AlexNet",
        ),
        Claim(
            "speed-up from the least to the most, P100 at 10 Gbit/s",
            "1.15 to 1.53",
            f"{low:.3f} to {high:.3f}",
            abs(low / 1.145 - 1) < 0.01 and abs(high / 1.533 - 1) < 0.01,
            "closed form",
        ),
        Claim(
            "speed-up range, A100 at 100 Gbit/s",
            "1.06 to 1.28",
            "1.060 to 1.280 at shares of 0.113 to 0.4375",
            abs(1 / (1 - 0.113 / 2) - 1.06) < 0.001 and abs(1 / (1 - 0.4375 / 2) - 1.28) < 0.001,
            "the shares that the range implies; the paper's least share of 0.11 agrees. Its A100 times are lost",
        ),
        Claim(
            "the simulator's steps say the same as the closed form, within 7 %",
            0.0,
            round(worst, 3),
            worst < 0.07,
            f"{WORKERS} workers send 2(N-1)/N of the gradients in a ring, not 2; its acknowledgements share the links",
        ),
    ]
    plots = [
        Plot(
            "Speed-up if communication is halved",
            "",
            "models, by their share of communication",
            {
                "closed form": _in_order(closed, {m: s for m, (_, s) in closed.items()}),
                "simulated": _in_order(closed, simulated),
            },
        ),
    ]
    data = {m: {"share": closed[m][0], "speed_up": closed[m][1], "simulated": simulated[m]} for m in MODELS}

    def speed_up(model: str, change: tuple) -> float:
        ring, panama = (step_us[f"{model},{kind},{_name(change)}"] for kind in ("ring", "panama"))
        return ring / panama

    sensitivity = [{"parameter": _name(change)} | {m: speed_up(m, change) for m in ends} for change in varied]
    return figure.write(claims, plots, data | {"sensitivity": sensitivity})


def _in_order(closed: dict, values: dict) -> list[tuple[float, float]]:
    order = sorted(closed, key=lambda model: closed[model][0])
    return [(i + 1, values[model]) for i, model in enumerate(order)]


def _name(change: tuple[str, str, object]) -> str:
    table, key, value = change
    text = "-".join(str(v) for v in value.values()) if isinstance(value, dict) else value
    return f"{table}.{key}={text}"


def _config(model: str, kind: str, change: tuple[str, str, object] | None = None) -> dict:
    """One job, with `change` applied."""
    table, key, value = change or ("", "", None)
    of_jobs = {key: value} if table == "jobs" else {}
    shortened, workers = of_jobs.get("shortened", SHORTENED), of_jobs.get("workers", WORKERS)
    count, buckets = of_jobs.get("count", 1), of_jobs.get("buckets", 1)
    images_per_s, batch, gradient_bytes = MODELS[model]
    job = {
        "compute": f"{round(batch / images_per_s * shortened * 1e9)}ns",
        "bytes": int(gradient_bytes * shortened),
        "buckets": buckets,
        "hosts": list(range(workers)),
        "steps": 3,
    }
    config = {
        "name": f"{model} {kind}",
        "duration": "10s",
        "fabric": {"kind": "single-switch", "hosts": workers},
        "host": {"queue": "fifo"},
        "scheme": {"kind": kind},
        "jobs": [job] * count,
    }
    if table not in ("", "jobs"):
        config.setdefault(table, {})[key] = value
    return config
