"""The report of a job as one self-contained HTML file."""

from html import escape
from typing import Any

from netsum.dashboard.words import milliseconds
from netsum.fabric.description import Description
from netsum.pages import cards, figure, page, table
from netsum.pages.curves import chart
from netsum.pages.fabric import draw
from netsum.report import drawing
from netsum.report.files import Job
from netsum.report.network import Net
from netsum.report.steps import rhythm
from netsum.report.words import advice_rows, amount, call_rows, lead, link_rows

HOSTS_DRAWN = 16
"""Larger fabrics are drawn as far as the job uses them."""
BARS_MAX = 32
LINKS_MAX = 64


def render(job: Job, summary: dict[str, Any]) -> str:
    """The page of a job and its summary."""
    return page(
        f"netsum report: {summary['name']}",
        [
            f"<h1>Job {escape(summary['name'])}</h1>",
            f'<p class="lead">{escape(lead(summary))}</p>',
            *[f'<p class="lead">Note: {escape(note)}.</p>' for note in summary["notes"]],
            _cards(summary),
            *_advice(summary),
            *_steps(job, summary),
            *_fabric(job, summary),
            *_stragglers(summary),
            *_recoveries(summary),
            "<h2>Calls</h2>",
            table(("call", "bytes", "count", "mean", "by"), call_rows(summary)),
            "<h2>Settings</h2>",
            table(("setting", "value"), sorted(summary["settings"].items())),
        ],
    )


def _cards(summary: dict[str, Any]) -> str:
    steps, ring = summary["steps"], summary["ring"]
    found: list[tuple[str, str]] = []
    if steps:
        share = steps["exposed_s"] / steps["seconds"] if steps["seconds"] else 0.0
        found += [
            (milliseconds(steps["seconds"]), "median step"),
            (f"{share:.0%}", "of it is communication that no computing hides"),
            (amount(steps["bytes"]), f"summed per step; operations: {steps['operations']}"),
        ]
        if steps["overlap"] is not None:
            found.append((f"{steps['overlap']:.0%}", "of the communication overlaps with computing"))
    if ring:
        found.append((milliseconds(ring["step_s"]), "the step if the sums went round a ring, computed"))
    pauses = summary["recoveries"]["pauses"]
    if pauses:
        many = "a pause" if len(pauses) == 1 else f"{len(pauses)} pauses"
        found.append((milliseconds(summary["recoveries"]["paused_s"]), f"in {many} of the trees"))
    return cards(found)


def _advice(summary: dict[str, Any]) -> list[str]:
    if not summary["steps"]:
        return []
    rows = [("as it is", summary["steps"]["seconds"], "bar-ours")]
    rows += [(each["what"], each["step_s"], "bar-soft") for each in summary["advice"]]
    if summary["ring"]:
        rows.append(("round a ring", summary["ring"]["step_s"], "bar-other"))
    best = [each for each in summary["advice"] if each["worth"]]
    verdict = "" if best else "<p>Nothing that this report knows of makes the step shorter by 3 % or more.</p>"
    headings = ("what would help", "how", "why", "step", "saves")
    return [
        "<h2>What would help</h2>",
        figure(drawing.bars("the median step, as it is and as predicted", rows, left=230)),
        verdict,
        table(headings, advice_rows(summary), text=3),
        '<p class="lead">Each is predicted alone, from the times of this job.</p>',
    ]


def _steps(job: Job, summary: dict[str, Any]) -> list[str]:
    found = rhythm(job)
    if found is None:
        return []
    caption = (
        "Grey: computing. Ochre: waiting for the rank that calls last. Green: from then until the result is there. "
        "Hover for figures."
    )
    return ["<h2>Steps</h2>", figure(drawing.step(found), caption), _over_time(job, summary)]


def _over_time(job: Job, summary: dict[str, Any]) -> str:
    rows = job.first.steps
    if not rows:
        return ""
    begin = rows[0].began_unix_s
    series = {
        "step": [(row.began_unix_s - begin, 1e3 * row.seconds / row.count) for row in rows],
        "with a sum in progress": [(row.began_unix_s - begin, 1e3 * row.communicating_s / row.count) for row in rows],
    }
    if any(row.count > 1 for row in rows):
        series["the longest of several"] = [(row.began_unix_s - begin, 1e3 * row.longest_s) for row in rows]
    end = rows[-1].began_unix_s - begin
    pauses = [(pause["at_unix_s"] - begin, "pause") for pause in summary["recoveries"]["pauses"]]
    marks = [(at, text) for at, text in pauses if 0 <= at <= end]
    return figure(chart(f"steps of rank {job.first.rank}", " ms", "seconds", series, marks))


def _fabric(job: Job, summary: dict[str, Any]) -> list[str]:
    links = summary["links"]
    if links is None:
        return []
    controller = job.first.controller or {}
    ranks = (controller.get("job") or {}).get("ranks", ())
    placement = [rank["host"] for rank in sorted(ranks, key=lambda rank: int(rank["rank"]))]
    loads = {
        f"{link['a']}-{link['b']}": {"netsum": link["bytes_ab"] + link["bytes_ba"], "ring": link["ring_bytes"] or 0}
        for link in links
    }
    shown = _part(Net.of(controller["fabric"]).description, loads, placement)
    key = (
        '<figcaption><span class="key" style="background:var(--ours)"></span>netsum, counted by the switches &nbsp; '
        '<span class="key" style="background:var(--ring)"></span>a ring, computed for the same allreduces. Width by '
        "bytes in both directions.</figcaption>"
    )
    headings = ("link", "netsum", "ring", "busy during sums")
    return [
        "<h2>Load of the links</h2>",
        f"<figure>{draw(shown, loads, placement, set())}{key}</figure>",
        table(headings, link_rows(summary)[:LINKS_MAX]),
    ]


def _part(fabric: Description, loads: dict[str, dict[str, Any]], placement: list[str]) -> Description:
    """The fabric, or of a large one the part that the job used."""
    if len(fabric.hosts) <= HOSTS_DRAWN:
        return fabric
    links = tuple(link for link in fabric.links if any(loads[link.name].values()))
    ends = {end for link in links for end in link.ends}
    hosts = tuple(host for host in fabric.hosts if host.name in placement and host.name in ends)
    switches = tuple(switch for switch in fabric.switches if switch.name in ends)
    kept = {host.name for host in hosts} | {switch.name for switch in switches}
    links = tuple(link for link in links if set(link.ends) <= kept)
    return Description(fabric.name, fabric.controller, hosts, switches, links, fabric.path)


def _stragglers(summary: dict[str, Any]) -> list[str]:
    found = summary["stragglers"]
    if len(found["waits"]) < 2:
        return []
    ordered = sorted(found["waits"].items(), key=lambda each: float(each[1]))
    shown = ordered if len(ordered) <= BARS_MAX else ordered[: BARS_MAX // 2] + ordered[-BARS_MAX // 2 :]
    rows = [(f"rank {rank}", waits, "bar-ours" if int(rank) == found["rank"] else "bar-soft") for rank, waits in shown]
    switches = [
        (each["child"], each["at"], each["slow"], f"{each['share']:.0%}", f"{each['seconds']:.0f} s")
        for each in found["switches"]
    ]
    caption = "The rank that waits least is the one for which the others wait."
    parts = ["<h2>Stragglers</h2>", figure(drawing.bars("time in sums per step that a rank cannot use", rows), caption)]
    if switches:
        headings = ("awaited", "at switch", "what is slow", "of the waiting", "seen for")
        parts += ["<p>As the switches measured it:</p>", table(headings, switches, text=3)]
    return parts


def _recoveries(summary: dict[str, Any]) -> list[str]:
    found = summary["recoveries"]
    if not found["pauses"] and len(found["plans"]) < 2:
        return []
    begin = min([pause["at_unix_s"] for pause in found["pauses"]] + [plan["at_unix_s"] for plan in found["plans"]])
    pauses = [
        (f"{pause['at_unix_s'] - begin:.1f} s", pause["what"].rstrip("; "), milliseconds(pause["seconds"]))
        for pause in found["pauses"]
    ]
    plans = [
        (f"{plan['at_unix_s'] - begin:.1f} s", str(plan["epoch"]), str(plan["trees"]), plan["reason"] or "all trees")
        for plan in found["plans"]
    ]
    parts = ["<h2>Recoveries</h2>"]
    if pauses:
        parts += [
            table(("at", "what happened", "nothing summed on trees for"), pauses, text=2),
            f"<p>{found['redone']} fragments were summed again.</p>",
        ]
    return [*parts, table(("seen at", "plan", "trees", "why not more"), plans, text=4)] if plans else parts
