"""What differs between two jobs: `netsum report A B`."""

from collections.abc import Iterator
from html import escape
from typing import Any

from netsum.dashboard.words import milliseconds
from netsum.pages import cards, figure, page, table
from netsum.report import drawing
from netsum.report.words import amount, lead

ALIKE = 0.02
"""Figures that differ by no more are called equal."""


def compare(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The differences of two summaries. `step`: how much longer the second one's step is, as a share; by what."""
    figures = [
        {"what": what, "unit": unit, "a": a, "b": b, "change": _change(a, b)}
        for what, unit, a, b in _figures(one, other)
        if a is not None or b is not None
    ]
    return {
        "a": one["folder"],
        "b": other["folder"],
        "step": _change(*(each["steps"]["seconds"] if each["steps"] else None for each in (one, other))),
        "figures": figures,
        "settings": _settings(one, other),
        "calls": _calls(one, other),
        "words": list(_words(one, other)),
    }


def _figures(one: dict[str, Any], other: dict[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    def pair(path: tuple[str, ...]) -> tuple[Any, Any]:
        found = []
        for value in (one, other):
            for key in path:
                value = value[key] if value is not None else None
            found.append(value)
        return found[0], found[1]

    yield "ranks", "", *pair(("size",))
    yield "trees", "", *pair(("trees",))
    yield "step", "s", *pair(("steps", "seconds"))
    yield "computing", "s", _computing(one), _computing(other)
    yield "communication that no computing hides", "s", *pair(("steps", "exposed_s"))
    yield "communication", "s", *pair(("steps", "communicating_s"))
    yield "operations per step", "", *pair(("steps", "operations"))
    yield "bytes per step", "B", *pair(("steps", "bytes"))
    yield "step round a ring", "s", *pair(("ring", "step_s"))
    yield "later than the others, the latest rank", "s", *pair(("stragglers", "late_s"))
    yield "pauses of the trees", "s", *pair(("recoveries", "paused_s"))
    yield "bytes on the fullest link", "B", _fullest(one), _fullest(other)


def _computing(summary: dict[str, Any]) -> float | None:
    steps = summary["steps"]
    return steps["seconds"] - steps["exposed_s"] if steps else None


def _fullest(summary: dict[str, Any]) -> int | None:
    links = summary["links"]
    return max((max(link["bytes_ab"], link["bytes_ba"]) for link in links), default=None) if links else None


def _change(a: float | None, b: float | None) -> float | None:
    return b / a - 1 if a and b is not None else None


def _settings(one: dict[str, Any], other: dict[str, Any]) -> list[dict[str, Any]]:
    names = sorted({*one["settings"], *other["settings"]})
    pairs = [(name, one["settings"].get(name), other["settings"].get(name)) for name in names]
    pairs += [("hosts", _hosts(one), _hosts(other)), ("path of sums", one["path"], other["path"])]
    pairs.append(("protocol", one["protocol"], other["protocol"]))
    return [{"setting": name, "a": a, "b": b} for name, a, b in pairs if a != b]


def _hosts(summary: dict[str, Any]) -> str:
    """The hosts of the ranks, without what differs from run to run."""
    return ", ".join(place.partition(", pid ")[0].removeprefix("host ") for place in summary["placement"].values())


def _calls(one: dict[str, Any], other: dict[str, Any]) -> list[dict[str, Any]]:
    """Kinds of calls that one of them lacks, or that take another time or way."""
    a, b = ({(call["call"], call["bytes"]): call for call in each["calls"]} for each in (one, other))
    found = []
    for key in dict.fromkeys((*a, *b)):
        first, second = a.get(key), b.get(key)
        change = _change(first["seconds"] if first else None, second["seconds"] if second else None)
        moved = first is not None and second is not None and first["by"] != second["by"]
        if first is None or second is None or moved or (change is not None and abs(change) > ALIKE):
            found.append({"call": key[0], "bytes": key[1], "a": first, "b": second, "change": change})
    return found


def _words(one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    a, b = one["steps"], other["steps"]
    if a is None or b is None:
        yield "the steps of one of them are not known, so their times are not compared"
    else:
        change = b["seconds"] / a["seconds"] - 1
        times = f"{milliseconds(a['seconds'])} before, {milliseconds(b['seconds'])} now"
        if abs(change) <= ALIKE:
            yield f"the step takes the same time: {times}"
        else:
            parts = {
                "communication that no computing hides": b["exposed_s"] - a["exposed_s"],
                "computing": (b["seconds"] - b["exposed_s"]) - (a["seconds"] - a["exposed_s"]),
            }
            cause = max(parts, key=lambda part: abs(parts[part]))
            sign = "more" if parts[cause] > 0 else "less"
            word = "longer" if change > 0 else "shorter"
            yield (
                f"the step is {abs(change):.0%} {word} ({times}), mostly by {milliseconds(abs(parts[cause]))} {sign} "
                f"{cause}"
            )
        if (a["operations"], a["bytes"]) != (b["operations"], b["bytes"]):
            yield (
                f"a step sums {amount(b['bytes'])} in {b['operations']} operations, not {amount(a['bytes'])} in "
                f"{a['operations']}"
            )
    for each in _settings(one, other):
        yield f"{each['setting']}: {each['a'] or 'not set'} before, {each['b'] or 'not set'} now"
    late = [any(each["key"] == "straggler" for each in summary["advice"]) for summary in (one, other)]
    if late[0] != late[1]:
        rank = (other if late[1] else one)["stragglers"]["rank"]
        yield f"all wait for rank {rank} now" if late[1] else f"nobody waits for rank {rank} any more"
    pauses = [len(summary["recoveries"]["pauses"]) for summary in (one, other)]
    if pauses[0] != pauses[1]:
        yield f"pauses of the trees: {pauses[0]} before, {pauses[1]} now"


def render(found: dict[str, Any], one: dict[str, Any], other: dict[str, Any]) -> str:
    """The page of a comparison and the two summaries."""
    rows = [(name, each["steps"]["seconds"]) for name, each in (("A", one), ("B", other)) if each["steps"]]
    bars = [(name, seconds, "bar-other" if name == "A" else "bar-ours") for name, seconds in rows]
    parts = [
        "<h1>What changed</h1>",
        f'<p class="lead">A: {escape(found["a"])}: {escape(lead(one))}<br>B: {escape(found["b"])}: '
        f"{escape(lead(other))}</p>",
        f"<ul>{''.join(f'<li>{escape(words)}</li>' for words in found['words'])}</ul>",
    ]
    if len(rows) == 2:
        parts += [
            cards([(_signed(found["step"]), "time of a step")]),
            "<br>",
            figure(drawing.bars("the median step", bars)),
        ]
    parts += ["<h2>Figures</h2>", table(("", "A", "B", "change"), figure_rows(found))]
    if found["settings"]:
        settings = [(each["setting"], each["a"] or "not set", each["b"] or "not set") for each in found["settings"]]
        parts += ["<h2>Settings and hosts</h2>", table(("", "A", "B"), settings, text=3)]
    if found["calls"]:
        headings = ("call", "A, mean", "by", "B, mean", "by", "change")
        parts += ["<h2>Calls</h2>", table(headings, [_call_row(each) for each in found["calls"][:32]])]
    return page("netsum report: what changed", parts)


def figure_rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """The figures of both, with their change."""
    return [
        (
            each["what"],
            _shown(each["a"], each["unit"]),
            _shown(each["b"], each["unit"]),
            _signed(each["change"]),
        )
        for each in found["figures"]
    ]


def _call_row(each: dict[str, Any]) -> tuple[str, ...]:
    cells = []
    for call in (each["a"], each["b"]):
        cells += [milliseconds(call["seconds"]), call["by"]] if call else ["–", ""]
    return (each["call"], *cells, _signed(each["change"]))


def _signed(change: float | None) -> str:
    if change is None:
        return ""
    return f"{round(100 * change):+d}%" if round(100 * change) else "0%"


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "s":
        return milliseconds(value)
    return amount(value) if unit == "B" else f"{value:,}"
