"""A report in words: lines for the terminal, and cells that the page and the terminal share."""

from collections.abc import Iterator
from typing import Any

from netsum.dashboard.words import milliseconds


def lead(summary: dict[str, Any]) -> str:
    """What the job was, in a sentence or two."""
    path = {"trees": "by switches", "plan": "by a tree plan between hosts", "host": "by hosts"}[summary["path"]]
    trees = summary["trees"]
    text = f"{summary['size']} ranks, sums {path}"
    if summary["path"] == "trees":
        text += f" on {trees} tree{'s' if trees != 1 else ''}, protocol {summary['protocol']}"
    steps = summary["steps"]
    if steps:
        text += f". {steps['count']:,} steps"
        if steps["looked_at"] < steps["count"]:
            text += f", {steps['looked_at']} of them looked at on all ranks"
    return f"{text}."


def lines(summary: dict[str, Any]) -> Iterator[str]:
    """For the terminal."""
    yield f"job {summary['name']}: {lead(summary)}"
    steps = summary["steps"]
    if steps:
        share = steps["exposed_s"] / steps["seconds"] if steps["seconds"] else 0.0
        many = "operation" if steps["operations"] == 1 else "operations"
        yield (
            f"step {milliseconds(steps['seconds'])}, of it {milliseconds(steps['exposed_s'])} ({share:.0%}) "
            f"communication that no computing hides; {steps['operations']} {many}, {amount(steps['bytes'])}"
        )
    if summary["ring"]:
        yield f"round a ring the step would take {milliseconds(summary['ring']['step_s'])}"
    late = summary["stragglers"]
    if any(each["key"] == "straggler" for each in summary["advice"]):
        yield f"all wait for rank {late['rank']}: {milliseconds(late['late_s'])} in each step"
    for pause in summary["recoveries"]["pauses"]:
        yield f"pause of {milliseconds(pause['seconds'])}: {pause['what'].rstrip('; ')}"
    worth = [each for each in summary["advice"] if each["worth"]]
    for each in worth:
        yield f"{each['what']}: step {milliseconds(each['step_s'])}, {each['gain']:.0%} less; {each['how']}"
    if steps and not worth:
        yield "nothing that this report knows of makes the step shorter by 3 % or more"
    for note in summary["notes"]:
        yield f"note: {note}"


def advice_rows(summary: dict[str, Any]) -> list[tuple[str, ...]]:
    """What would help, first what helps most; then what would not."""
    return [
        (each["what"], each["how"], each["why"], milliseconds(each["step_s"]), percent(each["gain"]))
        for each in summary["advice"]
    ]


def call_rows(summary: dict[str, Any]) -> list[tuple[str, ...]]:
    """The kinds of calls, those that took most first."""
    return [
        (call["call"], f"{call['bytes']:,}", f"{call['count']:,}", milliseconds(call["seconds"]), call["by"])
        for call in summary["calls"][:32]
    ]


def link_rows(summary: dict[str, Any]) -> list[tuple[str, ...]]:
    """Links with their bytes, the busiest first."""
    ordered = sorted(summary["links"] or (), key=lambda link: -(link["busy"] or 0.0))
    return [
        (
            f"{link['a']} – {link['b']}",
            amount(link["bytes_ab"] + link["bytes_ba"]),
            amount(link["ring_bytes"]) if link["ring_bytes"] is not None else "–",
            f"{link['busy']:.0%}" if link["busy"] is not None and link["rate_bps"] else "–",
        )
        for link in ordered
        if link["bytes_ab"] or link["bytes_ba"] or link["ring_bytes"]
    ]


def percent(share: float) -> str:
    """A share in whole per cent, without a sign at 0."""
    return f"{round(100 * share) or 0}%"


def amount(count: float) -> str:
    """Bytes with a unit that suits them."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"
