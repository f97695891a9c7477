"""The demo's report: one self-contained HTML file, for light and dark screens."""

from html import escape
from typing import Any

from netsum.demo.result import placement
from netsum.demo.runner import Record
from netsum.demo.session import Outcome
from netsum.demo.show import collectives, megabytes
from netsum.demo.workloads import WORKLOADS
from netsum.pages import cards, figure, page, table
from netsum.pages.curves import chart
from netsum.pages.fabric import draw


def render(outcome: Outcome, result: dict[str, Any], complaints: list[str]) -> str:
    """The page of an outcome. complaints: violated expectations."""
    return page(
        "netsum demo",
        [
            "<h1>Training through a network that adds</h1>",
            f'<p class="lead">{_lead(result)}</p>',
            *[f'<p class="bad">{escape(text)}</p>' for text in complaints],
            _cards(result),
            "<h2>The fabric and its load</h2>",
            _fabric(outcome, result),
            "<h2>Training</h2>",
            _curves(outcome),
            *([_killed(outcome, result)] if outcome.killed else []),
            "<h2>Collectives of the last steps</h2>",
            table(("operation", "calls", "mean size", "by"), collectives(result)),
            "<h2>Bytes per link</h2>",
            _link_table(result),
        ],
    )


def _lead(result: dict[str, Any]) -> str:
    workload = WORKLOADS[result["workload"]]
    return (
        f"{workload.title} ({result['parameters']:,} parameters) on {escape(workload.data)}, {result['ranks']} "
        f"workers, {result['epochs']} epochs, {result['steps']} steps, {escape(workload.method)}. "
        f"Every process ran on one machine with {result['machine']['cpus']} cores, over loopback."
    )


def _cards(result: dict[str, Any]) -> str:
    uplink = result["uplink_bytes"]
    step = result["step_time_s"]
    sums = result["control_sums"]
    saved = uplink["netsum"] / uplink["ring"] if uplink["ring"] else 0.0
    by_hosts = any(each["by"] == "hosts" for each in result["collectives"])
    aside = f"; {megabytes(result['host_path_bytes'])} more went between hosts" if result["pauses"] or by_hosts else ""
    workload = WORKLOADS[result["workload"]]
    score = {side: workload.words(value) for side, value in result[workload.score].items()}
    return cards(
        [
            (score["netsum"], f"{workload.score_name}; Gloo {score['gloo']}"),
            (f"{step['netsum'] * 1e3:.1f} ms", f"median step; Gloo {step['gloo'] * 1e3:.1f} ms"),
            (f"{saved:.0%}", f"of a ring's bytes on the rack uplinks{aside}"),
            ("identical" if result["bit_identical"] else "DIFFERENT", "bits of the parameters on all ranks"),
            (f"{sums['wrong_elements']} wrong", f"elements in {sums['checked']} control sums of known value"),
        ]
    )


def _fabric(outcome: Outcome, result: dict[str, Any]) -> str:
    killed = {kill.switch for kill in outcome.kills}
    picture = draw(outcome.fabric, result["link_bytes"], placement(outcome.fabric), killed)
    return (
        f"<figure>{picture}<figcaption>"
        '<span class="key" style="background:var(--ours)"></span>netsum, counted by the switches &nbsp; '
        '<span class="key" style="background:var(--ring)"></span>a ring, computed for the same buffers. '
        "Width by bytes in both directions.</figcaption></figure>"
    )


def _curves(outcome: Outcome) -> str:
    both = {"netsum": outcome.shown, "gloo": outcome.gloo}
    loss = {name: [(e["epoch"] + 1, e["loss"]) for e in record.epochs] for name, record in both.items()}
    workload = outcome.workload
    factor, unit = (1, "") if workload.less_is_better else (100, " %")
    score = {name: [(e["epoch"] + 1, factor * e["score"]) for e in record.epochs] for name, record in both.items()}
    charts = [
        chart("loss of rank 0", "", "epoch", loss),
        chart(workload.score_name, unit, "epoch", score),
        _progress_chart(outcome.shown, outcome),
    ]
    return "<br>".join(figure(svg) for svg in charts)


def _progress_chart(record: Record, outcome: Outcome) -> str:
    """Steps over time: a pause shows as a flat stretch."""
    begin = record.steps[0]["at_unix_s"]
    line = [(step["at_unix_s"] - begin, step["step"]) for step in record.steps]
    marks = [(kill.at_unix_s - begin, f"{kill.switch} killed") for kill in outcome.kills]
    return chart("steps done", "", "seconds", {"netsum": line}, marks)


def _killed(outcome: Outcome, result: dict[str, Any]) -> str:
    rows = [(p["what"], f"{p['seconds']:.2f} s") for p in result["pauses"]]
    first = outcome.kills[0].at_unix_s
    plans = [(plan["at_unix_s"], f"rank 0: {plan['what'].rstrip('; ')}") for plan in result["plans"]]
    fault_events = sorted([*outcome.fault_events, *plans])
    story = "".join(f"<li>{at - first:+.2f} s: {escape(text)}</li>" for at, text in fault_events)
    verdict = (
        "The parameters equal those of a run in which nothing was killed, to the bit, and every control sum is exact: "
        "nothing was lost, nothing counted twice."
        if result["equals_run_without_kills"] and not result["control_sums"]["wrong_elements"]
        else '<span class="bad">The result differs from a run in which nothing was killed.</span>'
    )
    return (
        f"<h2>What was killed</h2>{table(('what', 'longest step after it, beyond the usual'), rows)}"
        f"<ul>{story}</ul><p>{verdict}</p>"
    )


def _link_table(result: dict[str, Any]) -> str:
    rows = [
        (name, megabytes(c["netsum"]), megabytes(c["ring"]), f"{c['netsum'] / c['ring']:.2f}")
        for name, c in result["link_bytes"].items()
    ]
    return (
        f"{table(('link', 'netsum', 'ring', 'ratio'), rows)}"
        f'<p class="lead">Both directions together. Hosts also sent each other {megabytes(result["host_path_bytes"])} '
        "directly in these steps, which no switch counts: what hosts do according to the table above, and sums made "
        f"while a tree was away. Before the first step it was {megabytes(result['host_path_bytes_before'])}: ranks "
        "measure both ways when they connect. "
        f"The ring's column is {escape(result['ring_is'])}.</p>"
    )
