"""`netsum top`."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from netsum.cli.controller import FabricOption, controller_of
from netsum.cli.output import console, print_json, stop_on_termination
from netsum.fabric import stragglers
from netsum.fabric.description import counted
from netsum.fabric.errors import FabricError
from netsum.fabric.local import controller_status
from netsum.reports import JOB_OVER, ChildLateness, ControllerStatus, JobStatus, Straggler

INTERRUPTED = 130
"""Exit code."""
PERIOD_S = 1.0
"""Switches and workers report once a second."""


def top(
    fabric: FabricOption = None,
    once: Annotated[bool, typer.Option("--once", help="print once and end")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="with --once: print JSON")] = False,
) -> None:
    """Watch switches, links and jobs of a fabric. Ctrl-C ends it."""
    if as_json and not once:
        raise FabricError("--json needs --once: a live picture is not a document")
    address, credentials = controller_of(fabric)
    stop_on_termination()
    before = controller_status(address, credentials=credentials)
    time.sleep(PERIOD_S)
    now = controller_status(address, credentials=credentials)
    if as_json:
        late = stragglers.between(before, now, PERIOD_S)
        print_json({**now, "link_rates": link_rates(before, now, PERIOD_S), "stragglers": late})
    elif once:
        console.print(_screen(before, now, PERIOD_S))
    else:
        try:
            _watch(address, credentials, now)
        except KeyboardInterrupt:
            # Without a word: nothing has ended but the picture.
            raise typer.Exit(INTERRUPTED) from None


def link_rates(before: ControllerStatus, now: ControllerStatus, seconds: float) -> list[dict[str, Any]]:
    """Bits per second on each link in each direction, from two readings. A counter that decreased has been
    restarted."""
    old = {(link["a"], link["b"]): link for link in before["links"]}
    rates = []
    for link in now["links"]:
        last = old.get((link["a"], link["b"]))
        ab = _bits_per_s(last["bytes_ab"] if last else 0, link["bytes_ab"], seconds)
        ba = _bits_per_s(last["bytes_ba"] if last else 0, link["bytes_ba"], seconds)
        rates.append({"a": link["a"], "b": link["b"], "ab_bps": ab, "ba_bps": ba, "rate_bps": link["rate_bps"]})
    return rates


def _bits_per_s(before: int, now: int, seconds: float) -> float:
    return 8 * (now - before if now >= before else now) / seconds


def _watch(address: str, credentials: Path | None, before: ControllerStatus) -> None:
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        last = time.monotonic()
        while True:
            time.sleep(PERIOD_S)
            now = controller_status(address, credentials=credentials)
            at = time.monotonic()
            live.update(_screen(before, now, at - last), refresh=True)
            before, last = now, at


def _screen(before: ControllerStatus, now: ControllerStatus, seconds: float) -> Group:
    links = _links(link_rates(before, now, seconds))
    late = stragglers.between(before, now, seconds)
    return Group(
        *_store(now),
        _switches(now),
        *_tenants(now),
        *_slots(now),
        links,
        *_jobs(now),
        *_late(before, now, seconds, late),
    )


def _store(status: ControllerStatus) -> list[Text]:
    """A warning line if the controller cannot save its state: until it can, nothing changes."""
    store = status["store"]
    if store is None or not store["problem"]:
        return []
    return [Text(f"for {store['failing_for_s']:.0f} s: {store['problem']}", style="red")]


def _switches(status: ControllerStatus) -> Table:
    table = _new_table(
        f"fabric {status['fabric']}: switches", ("switch", "state", "memory used", "leased", "of", "drops")
    )
    for switch in status["switches"]:
        mark = "green" if switch["state"] == "up" else "red"
        sizes = [
            f"{switch[key] / (1 << 20):.1f} MiB" for key in ("memory_used_bytes", "memory_leased_bytes", "memory_bytes")
        ]
        _add_row(table, switch["name"], Text(switch["state"], style=mark), *sizes, str(sum(switch["drops"].values())))
    return table


def _tenants(status: ControllerStatus) -> list[Table]:
    """Tenants that a switch has marked or cut because of their rate or their fair share, if any."""
    table = _new_table("tenants beyond their rate or share", ("at", "tenant", "packets", "marked", "dropped"))
    for switch in status["switches"]:
        for tenant in switch["tenants"]:
            if tenant["marked"] or tenant["dropped"]:
                counts = (tenant["packets"], tenant["marked"], tenant["dropped"])
                _add_row(table, switch["name"], tenant["tenant"], *map(str, counts))
    return [table] if table.row_count else []


def _slots(status: ControllerStatus) -> list[Table]:
    """Leases of the protocols with slots, if any: fragments added, forwarded and repeated."""
    headings = (
        "at",
        "job",
        "protocol",
        "slots",
        "added",
        "to server",
        "collisions",
        "expired",
        "yielded",
        "float again",
    )
    table = _new_table("slots and servers", headings)
    for switch in status["switches"]:
        for tree in switch["trees"]:
            if tree["protocol"] in ("", "panama"):
                continue
            server = switch["role"] == "server"
            held = "-" if server else f"{tree['slots_held']} of {switch['slots']}"
            counts = (
                tree["contributions"],
                tree["passed"],
                tree["collisions"],
                tree["expired"],
                tree["preempted"],
                tree["float_requests"],
            )
            name = f"{tree['job']}.{tree['tree']}"
            _add_row(table, switch["name"], name, tree["protocol"], held, *map(str, counts))
    return [table] if table.row_count else []


def _links(rates: list[dict[str, Any]]) -> Table:
    table = _new_table("links: aggregation traffic", ("link", "forth", "back", "load"))
    for link in rates:
        load = max(link["ab_bps"], link["ba_bps"]) / link["rate_bps"] if link["rate_bps"] else 0.0
        _add_row(table, f"{link['a']} - {link['b']}", _rate(link["ab_bps"]), _rate(link["ba_bps"]), f"{load:.1%}")
    return table


def _jobs(status: ControllerStatus) -> list[Table]:
    running = [job for job in status["jobs"] if job["state"] not in JOB_OVER]
    return [_job(job) for job in running] or [_new_table("no jobs", ())]


def _job(job: JobStatus) -> Table:
    path = (
        f"{job['protocol']}, {counted(len(job['trees']), 'tree')}: {', '.join(tree['root'] for tree in job['trees'])}"
        if job["trees"]
        else "host path"
    )
    words = [word for word in (job["choice"], job["reason"]) if word]
    reason = f" ({'; '.join(words)})" if words else ""
    encrypted = ", encrypted" if job["encrypted"] else ""
    title = f"job {job['job']} '{job['name']}': {job['state']}, epoch {job['epoch']}, {path}{encrypted}{reason}"
    table = _new_table(title, ("rank", "host", "state", "tree", "window", "rtt", "results", "resent", "marks"))
    for rank in job["ranks"]:
        who: tuple[str, str, str] = (str(rank["rank"]), rank["host"], rank["state"])
        trees = rank["statistics"]["trees"] if rank["statistics"] else []
        for tree in trees:
            counts = map(str, (tree["results"], tree["retransmits"], tree["marks"]))
            _add_row(table, *who, str(tree["tree"]), str(tree["window"]), f"{tree['rtt_ns'] / 1e3:.0f} us", *counts)
            who = ("", "", "")
        if not trees:
            _add_row(table, *who, "-", "", "", "", "", "")
    return table


ROWS_MAX = 16
"""Children shown by how late they are."""


def _late(
    before: ControllerStatus, now: ControllerStatus, seconds: float, found: list[Straggler]
) -> list[Table | Text]:
    """The children of trees that were awaited longest, and those that are stragglers in a sentence each."""
    old = {key: child for key, child in _children(before)}
    rows = []
    for key, child in _children(now):
        last = old.get(key)
        fresh = last is None or last["bursts"] > child["bursts"]
        earlier = (0, 0, 0) if last is None or fresh else (last["awaited_ns"], last["opening_ns"], last["last"])
        awaited, opening, lasts = (
            child["awaited_ns"] - earlier[0],
            child["opening_ns"] - earlier[1],
            child["last"] - earlier[2],
        )
        rows.append((awaited / 1e9 / seconds, key, child, opening, lasts))
    rows = sorted((row for row in rows if row[0] > 0), key=lambda row: -row[0])[:ROWS_MAX]
    headings = ("at", "tree", "child", "awaited", "of it to begin", "was last", "99 % within")
    table = _new_table("children of trees: for how long others wait for them", headings)
    for share, (switch, job, tree, _), child, opening, lasts in rows:
        begin = min(opening / 1e9 / seconds / share, 1.0)
        who = child["name"] or child["address"]
        _add_row(table, switch, f"{job}.{tree}", who, f"{share:.1%}", f"{begin:.0%}", str(lasts), _within(child, 0.99))
    words = [Text(f"job {one['job']}: {stragglers.sentence(one)}", style="yellow") for one in found]
    return [*words, table] if rows else []


def _children(status: ControllerStatus) -> list[tuple[tuple[str, int, int, str], ChildLateness]]:
    return [
        ((switch["name"], tree["job"], tree["tree"], child["address"]), child)
        for switch in status["switches"]
        for tree in switch["trees"]
        for child in tree["children"]
    ]


def _within(child: ChildLateness, share: float) -> str:
    """The bound of the histogram below which this share of the fragments is."""
    total, seen = sum(child["histogram"]), 0
    for bucket, count in enumerate(child["histogram"]):
        seen += count
        if seen >= share * total:
            bound_us = 1.024 * 4**bucket
            last = bucket == len(child["histogram"]) - 1
            return (
                "more than 1 s" if last else f"{bound_us:.0f} us" if bound_us < 10_000 else f"{bound_us / 1e3:.0f} ms"
            )
    return "-"


def _new_table(title: str, headings: tuple[str, ...]) -> Table:
    table = Table(title=Text(title), title_justify="left")
    for heading in headings:
        table.add_column(heading)
    return table


def _add_row(table: Table, *cells: str | Text) -> None:
    """Names come from users and are not parsed as markup."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def _rate(bits_per_s: float) -> str:
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits_per_s >= size:
            return f"{bits_per_s / size:.1f} {unit}"
    return f"{bits_per_s:.0f} bit/s"
