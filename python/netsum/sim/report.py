"""The report of a run: one self-contained HTML file."""

import math
import re
from collections import defaultdict
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from netsum.pages import figure, page, scrolling
from netsum.pages.curves import chart
from netsum.sim.animation import animation
from netsum.sim.picture import heat_map
from netsum.sim.result import Result
from netsum.sim.runner import REPORT

# PANAMA's border between short and long flows is 40 MB; the borders below it follow the importance of latency.
_SIZES = ((0, 1e5, "below 100 kB"), (1e5, 4e7, "100 kB to 40 MB"), (4e7, math.inf, "40 MB and more"))
_POINTS = 200
# More lines than this cannot be distinguished.
_LINES = 6
# More names than this say nothing.
_NAMED = 20


def write(result: Result) -> Path:
    """Write REPORT beside the tables; returns its path."""
    path = result.folder / REPORT
    path.write_text(render(result), encoding="utf-8")
    return path


def render(result: Result) -> str:
    """The report as HTML."""
    summary = result.summary
    packets = summary["packets"]
    lead = (
        f"{summary['packet_hops']:,} packet-hops; {packets['sent']:,} packets sent, {packets['dropped']:,} dropped; "
        f"{summary['unfinished_flows']:,} flows were not complete when the run ended"
    )
    lead += f", and {unfinished(result)}." if result.unfinished_jobs else "."
    notes = "".join(f"<li>{escape(note)}</li>" for note in [*summary["notes"], *summary["refused"]])
    return page(
        summary["name"],
        [
            f"<h1>{escape(summary['name'])}</h1>",
            f'<p class="lead">{lead}</p><ul>{notes}</ul>',
            *_flows(result),
            *_steps(result),
            *_samples(result),
            *_links(result),
            "<h2>Configuration</h2>",
            f"<pre>{escape((result.folder / 'effective.toml').read_text())}</pre>",
        ],
    )


def unfinished(result: Result) -> str:
    """A sentence with the number of incomplete jobs."""
    count = result.unfinished_jobs
    return f"{count:,} job{'s' if count > 1 else ''} had not completed {'their' if count > 1 else 'its'} steps"


def _flows(result: Result) -> list[str]:
    flows = [row for row in result.rows("flows") if row["fct_us"] is not None]
    if not flows and not result.summary["long_flows"]["throughput_gbps"]["count"]:
        return []
    series = {}
    for low, high, name in _SIZES:
        times = sorted(math.log10(row["fct_us"]) for row in flows if low <= row["bytes"] < high)
        if len(times) > 1:
            series[name] = _cumulative(times)
    picture = []
    if series:
        picture = [
            figure(
                chart("Flow completion times", "", "log10 of microseconds", series),
                "Share of the flows that took no longer, by size.",
            )
        ]
    return [
        "<h2>Flows</h2>",
        *picture,
        _table(result.summary["short_flows"]["fct_us"], "FCT of flows below 40 MB, µs"),
        _table(result.summary["long_flows"]["throughput_gbps"], "throughput of longer flows, Gbit/s"),
    ]


def _steps(result: Result) -> list[str]:
    steps = result.rows("steps")
    if not steps and not result.unfinished_jobs:
        return []
    by_job = defaultdict(list)
    for row in steps:
        by_job[row["job"]].append((row["end_us"] / 1e3, (row["end_us"] - row["reduce_start_us"]) / 1e3))
    # The jobs with the most steps.
    most = sorted(by_job, key=lambda job: -len(by_job[job]))[:_LINES]
    series = {f"job {job}": sorted(by_job[job]) for job in sorted(most) if len(by_job[job]) > 1}
    picture = []
    if series:
        picture = [
            figure(chart("Reducing, per step", " ms", "milliseconds", series), "From first gradient to last sum.")
        ]
    return [
        "<h2>Training jobs</h2>",
        *([f"<p>{unfinished(result)} when the run ended.</p>"] if result.unfinished_jobs else []),
        *picture,
        _table(result.summary["steps"]["duration_us"], "step, µs"),
        _table(result.summary["steps"]["reduce_us"], "of it, reducing, µs"),
    ]


def _samples(result: Result) -> list[str]:
    by_link = defaultdict(list)
    for row in result.rows("samples"):
        of = "" if row["part"] == "all" else f" ({row['part']})"
        name = f"{row['from']}→{row['to']}{of}"
        by_link[name].append((row["time_us"], row["carried_bytes"], row["waiting_packets"]))
    if not by_link:
        return []
    rates, queues = {}, {}
    for name, rows in list(by_link.items())[:_LINES]:
        pairs = list(pairwise(rows))
        rates[name] = [(b[0] / 1e3, (b[1] - a[1]) * 8 / (b[0] - a[0]) / 1e3) for a, b in pairs if b[0] > a[0]]
        queues[name] = [(row[0] / 1e3, row[2]) for row in rows]
    left_out = list(by_link)[_LINES:]
    named = ", ".join(left_out[:_NAMED]) + (f", and {len(left_out) - _NAMED} more" if left_out[_NAMED:] else "")
    more = f"<p>Not drawn, and in the table of samples: {escape(named)}.</p>" if left_out else ""
    return [
        "<h2>Sampled links</h2>",
        more,
        figure(chart("Rate", " Gbit/s", "milliseconds", rates), "Headers included."),
        figure(chart("Queue", " packets", "milliseconds", queues), "Packets that wait, at the moment of the sample."),
    ]


def _links(result: Result) -> list[str]:
    by_part = defaultdict(list)
    for row in result.rows("links"):
        by_part[row["part"]].append(row)
    hosts = set(result.summary["hosts"] or [])
    if not hosts:
        # In a generated fabric only hosts are named h and a number.
        hosts = {link["from"] for link in result.rows("links") if re.fullmatch(r"h\d+", link["from"])}
    figures = []
    samples = result.rows("samples")
    for part, links in by_part.items():
        of = "" if part == "all" else f" ({part} alone)"
        note = (
            f"Blue is idle, red is busy all the time{of}. Of two lines the left one is the way up, of level ones the "
        )
        note += "upper one the way to the right. Hover for figures."
        figures.append(figure(heat_map(links, hosts), note))
        own = [row for row in samples if row["part"] == part]
        animated = animation(links, own, hosts, result.summary["simulated_us"])
        if animated:
            figures.append(figure(animated, f"The same over simulated time{of}: the share of each interval."))
    return ["<h2>Links</h2>", *figures]


def _cumulative(ordered: list[float]) -> list[tuple[float, float]]:
    chosen = range(0, len(ordered), max(len(ordered) // _POINTS, 1))
    return [(ordered[i], (i + 1) / len(ordered)) for i in [*chosen, len(ordered) - 1]]


def _table(distribution: dict[str, Any], name: str) -> str:
    if not distribution["count"]:
        return ""
    keys = [key for key in distribution if key != "count"]
    head = "".join(f"<th>{key}</th>" for key in ["", "count", *keys])
    cells = "".join(f"<td>{distribution[key]:,.2f}</td>" for key in keys)
    row = f"<td>{escape(name)}</td><td>{distribution['count']:,}</td>{cells}"
    return scrolling(f"<table><tr>{head}</tr><tr>{row}</tr></table>")
