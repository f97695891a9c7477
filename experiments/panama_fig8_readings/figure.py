"""PANAMA Fig. 8 over what the paper leaves open: one reading at a time, each with a prediction from before its runs.

A reading changes the setting of some schemes; all others have the base's. A run that several readings have in common
is made once.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from figures import Claim, Figure, Plot
from panama_fig8.figure import Point, config_of, training

# What the paper compares, and which of our schemes that is.
ROLES = {"ring": "ring", "panama": "panama", "none": "switchml*", "alone": "panama"}
# Simulated milliseconds with new flows, those after them, and seeds.
SCALES = {"small": (60, 20, [1]), "medium": (200, 67, [1, 2, 3, 4, 5]), "full": (200, 67, [1])}
LOAD = 0.8
TOLERANCE = 0.25


@dataclass(frozen=True)
class Reading:
    """What is set for all, and beyond that for some roles, by dotted key.

    `prediction` is what was expected before the runs, and `expected` its numbers in the order of NUMBERS; None where
    the reading changes nothing, or the prediction says nothing.
    """

    name: str
    prediction: str
    expected: tuple[float | None, ...]
    common: dict[str, object] = field(default_factory=dict)
    of: dict[str, dict[str, object]] = field(default_factory=dict)

    def changes(self, role: str) -> dict[str, object]:
        """What a role's runs change; flows alone have neither jobs nor their scheme."""
        all_changes = self.common | self.of.get(role, {})
        if role != "alone":
            return all_changes
        return {key: value for key, value in all_changes.items() if key.partition(".")[0] not in ("scheme", "mix")}


@dataclass(frozen=True)
class Number:
    """A number of the paper: a ratio of two roles; r: ring, p: panama, i: ideal, n: no control."""

    claim: str
    short: str
    paper: float
    ratio: Callable[[Point, Point], float]
    over: str
    under: str


def _p99(over: Point, under: Point) -> float:
    return over.p99_us / under.p99_us


def _mean(over: Point, under: Point) -> float:
    return over.mean_us / under.mean_us


def _long(over: Point, under: Point) -> float:
    return over.long_gbps / under.long_gbps


NUMBERS = [
    Number("8a: p99 FCT of short flows, ring / panama", "p99 r/p", 4.5, _p99, "ring", "panama"),
    Number("8a: mean FCT of short flows, ring / panama", "mean r/p", 2.0, _mean, "ring", "panama"),
    Number("8a: p99 FCT of short flows, panama / ideal", "p99 p/i", 1.0, _p99, "panama", "alone"),
    Number("8a: p99 FCT of short flows, no congestion control / panama", "p99 n/p", 3.5, _p99, "none", "panama"),
    Number("8b: throughput of long flows, panama / ring", "long p/r", 1.33, _long, "panama", "ring"),
    Number("8c: training time, ring / panama", "training r/p", 1.34, training, "ring", "panama"),
    Number("8c: training time, panama / no congestion control", "training p/n", 1.05, training, "panama", "none"),
]

# Predictions name the seven numbers in this order.
READINGS = [
    Reading(
        "base",
        "Known from panama_fig8, but for the shorter run: 1.0, 1.0, 2.2, 3, 1.0, 2.1, 1.2. Only the last is the "
        "paper's.",
        (1.0, 1.0, 2.2, 3, 1.0, 2.1, 1.2),
    ),
    Reading(
        "hosts mark, for panama",
        "Known at three seeds: 1.5, 1.6, 1.4, -, -, 1.7, -. New: without control the p99 is 5 times panama's, long "
        "flows get 1.4 times the ring's, and panama's steps take 1.5 times those without control, which is too much.",
        (1.5, 1.6, 1.4, 5, 1.4, 1.7, 1.5),
        of={"panama": {"host.ce_threshold": "100us"}},
    ),
    Reading(
        "hosts mark",
        "As for panama alone; the ring trains faster (training 1.5), and flows beside fixed windows yield more, so "
        "that the p99 without control is 6 times panama's.",
        (1.5, 1.6, 1.4, 6, 1.4, 1.5, 1.5),
        {"host.ce_threshold": "100us"},
    ),
    Reading(
        "queue per flow",
        "A flow has half of its host's link beside any job: 1.1, 1.1, 1.6, 2, 1.1, 2, 1.1. Ring and panama are alike.",
        (1.1, 1.1, 1.6, 2, 1.1, 2, 1.1),
        {"host.queue": "fq-codel"},
    ),
    Reading(
        "window 8",
        "A window of 8 per tree still fills an idle link and hardly fills the host's queue: 1.8, 2, 1.3, 5, 1.5, 1.4, "
        "1.6. All directions, and too slow beside no control.",
        (1.8, 2, 1.3, 5, 1.5, 1.4, 1.6),
        of={"panama": {"scheme.window": 8}},
    ),
    Reading(
        "window 16",
        "Between 8 and 32: 1.6, 1.7, 1.5, 5, 1.4, 1.6, 1.4.",
        (1.6, 1.7, 1.5, 5, 1.4, 1.6, 1.4),
        of={"panama": {"scheme.window": 16}},
    ),
    Reading(
        "window 32",
        "Nearly the base: 1.3, 1.3, 1.7, 4, 1.2, 1.8, 1.3.",
        (1.3, 1.3, 1.7, 4, 1.2, 1.8, 1.3),
        of={"panama": {"scheme.window": 32}},
    ),
    Reading(
        "coupled windows",
        "Known at 600 ms: p99 1.3, mean 1.3, long 1.3, training 1.8. New: panama / ideal 1.7, without control / panama "
        "4, panama / no control 1.5.",
        (1.3, 1.3, 1.7, 4, 1.3, 1.8, 1.5),
        of={"panama": {"scheme.kind": "panama-coupled"}},
    ),
    Reading(
        "ring ignores marks",
        "Known at 600 ms: 2.0, 1.8, -, -, 1.5, 1.7, -; in the shorter run the p99 is 1.7. The rest is the base's.",
        (1.7, 1.8, None, None, 1.5, 1.7, None),
        of={"ring": {"scheme.kind": "ring-no-ecn"}},
    ),
    Reading(
        "sockets 64 MiB",
        "Flows fill their host's queue, where nothing marks, and wait behind each other: 1.4, 1.3, 2.2, 2, 1.2, 2, "
        "1.1.",
        (1.4, 1.3, 2.2, 2, 1.2, 2, 1.1),
        {"tcp.socket": "64MiB"},
    ),
    Reading(
        "ring ignores marks, sockets 64 MiB",
        "Such a ring fills all queues up to PAUSE: 5, 4, 2.2, 2, 3, 1.1, 1.1. 8a comes out, 8b is too much.",
        (5, 4, 2.2, 2, 3, 1.1, 1.1),
        {"tcp.socket": "64MiB"},
        {"ring": {"scheme.kind": "ring-no-ecn"}},
    ),
    Reading(
        "workers at random",
        "A ring's every hop goes between pods, a tree sums in racks first less often: 1.3, 1.3, 2.5, 3, 1.2, 2.5, 1.3.",
        (1.3, 1.3, 2.5, 3, 1.2, 2.5, 1.3),
        {"mix.placement": "random"},
    ),
    Reading(
        "ring in random order",
        "Hops between racks and pods of the job's row collide on uplinks: 1.2, 1.2, -, -, 1.1, 2.5, -.",
        (1.2, 1.2, None, None, 1.1, 2.5, None),
        of={"ring": {"mix.order": "random"}},
    ),
    Reading(
        "four rings",
        "Four connections take four shares of a host's link, as four trees do: 1.4, 1.4, -, -, 1.3, 1.7, -.",
        (1.4, 1.4, None, None, 1.3, 1.7, None),
        of={"ring": {"scheme.rings": 4}},
    ),
    Reading(
        "load of panama's bytes",
        "Paced jobs, twice as many: rings, which cannot keep up, never rest, and panama does: 1.5, 1.5, 1.8, 3, 1.3, "
        "3, 1.3.",
        (1.5, 1.5, 1.8, 3, 1.3, 3, 1.3),
        {"mix.pace": 2.0},
    ),
    Reading(
        "sockets 1 MiB",
        "Between 256 KiB and 64 MiB: 1.1, 1.1, 2.2, 3, 1.1, 2.1, 1.2.",
        (1.1, 1.1, 2.2, 3, 1.1, 2.1, 1.2),
        {"tcp.socket": "1MiB"},
    ),
    Reading(
        "shared memory of 2 MB in place of PAUSE",
        "Marks keep ring and panama below losses: as the base; without control flows lose packets and wait for "
        "time-outs of 10 ms: p99 4 times panama's.",
        (1.0, 1.0, 2.2, 4, 1.0, 2.1, 1.2),
        {"switch.pause": None, "switch.queue_packets": 100_000, "switch.shared": {"bytes": "2MB"}},
    ),
    Reading(
        "queues of 250 packets in place of PAUSE",
        "As with shared memory, with more losses: p99 without control 5 times panama's.",
        (1.0, 1.0, 2.2, 5, 1.0, 2.1, 1.2),
        {"switch.pause": None},
    ),
    Reading(
        "hosts mark for panama, window 16",
        "Two that let panama yield; together a little more than each: 1.9, 1.8, 1.3, 5, 1.8, 1.4, 1.8.",
        (1.9, 1.8, 1.3, 5, 1.8, 1.4, 1.8),
        of={"panama": {"host.ce_threshold": "100us", "scheme.window": 16}},
    ),
    Reading(
        "ring ignores marks, hosts mark for panama",
        "Of seed 1 all runs are there, which give 2.9, 2.9, 1.5, 3.9, 2.7, 1.2, 1.5; other seeds come near. The mean "
        "and long flows gain too much, the p99 too little.",
        (2.9, 2.9, 1.5, 3.9, 2.7, 1.2, 1.5),
        of={"ring": {"scheme.kind": "ring-no-ecn"}, "panama": {"host.ce_threshold": "100us"}},
    ),
    Reading(
        "ring ignores marks, window 16",
        "The same: seed 1 gives 2.8, 2.7, 1.5, 3.8, 2.6, 1.3, 1.5.",
        (2.8, 2.7, 1.5, 3.8, 2.6, 1.3, 1.5),
        of={"ring": {"scheme.kind": "ring-no-ecn"}, "panama": {"scheme.window": 16}},
    ),
    Reading(
        "four rings, window 16",
        "The same: seed 1 gives 1.8, 1.8, 1.5, 3.8, 1.9, 1.5, 1.5.",
        (1.8, 1.8, 1.5, 3.8, 1.9, 1.5, 1.5),
        of={"ring": {"scheme.rings": 4}, "panama": {"scheme.window": 16}},
    ),
    Reading(
        "ring ignores marks, hosts mark for panama, sockets 64 MiB",
        "The p99 comes within a quarter, and the mean with it, which is then too much: 3.6, 3.6, 1.4, 4.3, 3.2, "
        "1.3, 1.5.",
        (3.6, 3.6, 1.4, 4.3, 3.2, 1.3, 1.5),
        {"tcp.socket": "64MiB"},
        {"ring": {"scheme.kind": "ring-no-ecn"}, "panama": {"host.ce_threshold": "100us"}},
    ),
]
# Those that also run on 1,024 servers, with what was expected there. The base is in panama_fig8.
OF_FULL = {
    "hosts mark, for panama": (1.4, 1.4, 1.25, 3.2, 1.4, 1.65, 1.6),
    "ring ignores marks, hosts mark for panama": (2.0, 2.0, 1.25, 3.2, 1.9, 1.3, 1.6),
}


def make(figure: Figure, tell) -> dict:
    """All readings over their seeds; runs of the first seed come first."""
    new_ms, drain_ms, seeds = SCALES[figure.scale]
    readings, roles = READINGS, list(ROLES)
    if figure.scale == "full":
        roles.remove("none")
        readings = [replace(each, expected=OF_FULL[each.name]) for each in READINGS if each.name in OF_FULL]
    configs = {
        _name(reading, role, seed): _config(figure.scale, reading, role, seed)
        for seed in seeds
        for reading in readings
        for role in roles
    }
    runs = figure.run(configs, tell)
    end_us = (new_ms + drain_ms) * 1e3
    points = {name: Point([result], end_us) for name, result in runs.items()}
    rows = [_row(reading, points, seeds, roles) for reading in readings]
    claims = [
        Claim(
            f"{number.claim}: {row['reading']}",
            number.paper,
            cell["median"],
            cell["holds"],
            f"predicted: {row['prediction']}",
            cell["samples"] if len(cell["samples"]) > 1 else [],
        )
        for number in NUMBERS
        for row in rows
        for cell in row["numbers"]
        if cell["number"] == number.short
    ]
    all_at_once = [row["reading"] for row in rows if all(cell["holds"] for cell in row["numbers"])]
    claims.append(
        Claim(
            "8: a reading gives all numbers at once",
            "all",
            ", ".join(all_at_once) or "none",
            bool(all_at_once),
            f"within a quarter, of {len(rows)} readings; README.md has all numbers",
        )
    )
    lines = {
        number.short: [
            (float(at), cell["median"] / number.paper)
            for at, row in enumerate(rows, 1)
            for cell in row["numbers"]
            if cell["number"] == number.short and cell["median"] is not None
        ]
        for number in NUMBERS
        if number.over in roles and number.under in roles
    }
    plot = Plot("ours, as a multiple of the paper's", "", "reading, in README.md's order", lines)
    result = figure.write(claims, [plot], {"readings": rows, "points": {n: p.figures() for n, p in points.items()}})
    (figure.out / "readings.md").write_text(_table(rows))
    return result


def _name(reading: Reading, role: str, seed: int) -> str:
    """Names a run by all that its configuration depends on."""
    changes = dict(reading.changes(role))
    kind = "alone" if role == "alone" else changes.pop("scheme.kind", ROLES[role])
    text = [f"{key}={_text(value)}" for key, value in sorted(changes.items())]
    return ",".join([str(kind), *text, f"seed={seed}"])


def _text(value: object) -> str:
    return "-".join(f"{v}" for v in value.values()) if isinstance(value, dict) else f"{value}"


def _config(scale: str, reading: Reading, role: str, seed: int) -> dict:
    new_ms, drain_ms, _ = SCALES[scale]
    config = config_of(scale, ROLES[role], LOAD, seed, "greedy")
    config |= {
        "name": _name(reading, role, seed),
        "duration": f"{new_ms}ms",
        "drain": f"{drain_ms}ms",
    }
    if role == "alone":
        del config["mix"], config["scheme"]
    for key, value in reading.changes(role).items():
        table, _, name = key.partition(".")
        config[table][name] = value
        if value is None:
            del config[table][name]
    return config


def _row(reading: Reading, points: dict[str, Point], seeds: list[int], roles: list[str]) -> dict:
    """The numbers of a reading that its roles have: the median over the seeds, and all of them."""
    of_seeds = [{role: points[_name(reading, role, seed)] for role in roles} for seed in seeds]
    numbers = []
    for number, expected in zip(NUMBERS, reading.expected, strict=True):
        if number.over not in roles or number.under not in roles:
            continue
        samples = [value for at in of_seeds if (value := number.ratio(at[number.over], at[number.under])) == value]
        median = statistics.median(samples) if samples else None
        holds = median is not None and abs(median / number.paper - 1) <= TOLERANCE
        numbers.append(
            {
                "number": number.short,
                "paper": number.paper,
                "expected": expected,
                "median": None if median is None else round(median, 2),
                "samples": [round(sample, 2) for sample in samples],
                "holds": holds,
            }
        )
    return {"reading": reading.name, "prediction": reading.prediction, "numbers": numbers}


def _table(rows: list[dict]) -> str:
    """README.md's table: medians, the paper's within a quarter bold; the least and the most; what was expected.

    A reading of one seed has no least and most. A crossed expectation is off by more than a quarter.
    """
    numbers = rows[0]["numbers"]
    lines = [f"| reading | {' | '.join(number['number'] for number in numbers)} |", f"|---|{'---|' * len(numbers)}"]
    lines.append(f"| *the paper* | {' | '.join('*' + str(number['paper']) + '*' for number in numbers)} |")
    for row in rows:
        several = any(len(number["samples"]) > 1 for number in row["numbers"])
        spread = [("least to most", _spread)] if several else []
        for title, cell in [(row["reading"], _median), *spread, ("expected", _expected)]:
            lines.append(f"| {title} | {' | '.join(cell(number) for number in row['numbers'])} |")
    return "\n".join(lines) + "\n"


def _median(number: dict) -> str:
    if number["median"] is None:
        return "–"
    return f"**{number['median']:.2f}**" if number["holds"] else f"{number['median']:.2f}"


def _spread(number: dict) -> str:
    samples = number["samples"]
    return f"{min(samples):.2f}–{max(samples):.2f}" if len(samples) > 1 else "–"


def _expected(number: dict) -> str:
    expected, median = number["expected"], number["median"]
    if expected is None:
        return "–"
    wrong = median is not None and abs(median / expected - 1) > TOLERANCE
    return f"~~{expected:g}~~" if wrong else f"{expected:g}"
