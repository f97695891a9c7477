"""Why a job is slow, in words."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Literal

from netsum.fabric import stragglers
from netsum.reports import JobStatus, RankStatus
from netsum.reports import Straggler as Metered

Level = Literal["good", "info", "warn", "bad"]
HIDDEN = 0.1
"""Share of a step that exposed communication may take without being worth a thought."""
LATE_SHARE, LATE_S = 0.03, 0.001
"""By so much of a step, and at least by so much, a rank must be later than the others to be named."""
FULL = 0.8
"""Load of a link from which it is called full."""
LOSS, MARKED = 0.01, 0.2
"""Shares of packets sent again, and of results with a mark, that are worth a sentence."""
RECENT_S = 60.0
"""A pause is told so long."""


@dataclass(frozen=True)
class Reason:
    """One sentence. `help`: what to do about it, or ""."""

    level: Level
    text: str
    help: str = ""


@dataclass(frozen=True)
class LinkLoad:
    """The load of a direction of a link, as a share of its rate."""

    source: str
    target: str
    load: float


@dataclass(frozen=True)
class Straggler:
    """A rank for which others wait. `late_s`: per step, by how much less it waits than the median of the others."""

    rank: RankStatus
    late_s: float


def reasons(
    job: JobStatus, now: float, loads: list[LinkLoad], lost: float, marked: float, metered: list[Metered]
) -> list[Reason]:
    """The sentences about a live job, the most important first.

    loads: of the links on its trees. lost, marked: shares of packets in the last seconds. metered: for whom its
    switches wait. now: seconds since 1970.
    """
    found = [*_ranks(job), *_path(job), *_pauses(job, now), *_straggler(job), *_metered(job, metered)]
    found += _network(job, loads, lost, marked)
    order = {"bad": 0, "warn": 1, "info": 2, "good": 3}
    found.sort(key=lambda reason: order[reason.level])
    return [*found, *_balance(job, bool(found))]


def straggler(job: JobStatus) -> Straggler | None:
    """The rank for which the others wait, if there is one.

    All ranks of a step end together, so the rank that is late waits least itself: no clocks are compared.
    """
    steps = [(rank, r["step"]) for rank in job["ranks"] if (r := rank["statistics"]) and r["step"]]
    if len(steps) < 3:
        return None
    seconds = median(step["seconds"] for _, step in steps)
    latest, step = min(steps, key=lambda each: each[1]["exposed_s"])
    others = median(each["exposed_s"] for rank, each in steps if rank is not latest)
    late_s = others - step["exposed_s"]
    return Straggler(latest, late_s) if late_s > max(LATE_S, LATE_SHARE * seconds) else None


def worth_telling(metered: list[Metered]) -> list[Metered]:
    """What switches wait for long enough to be named."""
    return [each for each in metered if each["share"] >= LATE_SHARE]


def _metered(job: JobStatus, metered: list[Metered]) -> Iterator[Reason]:
    known = straggler(job)
    advice = {
        "rank": "Look for a slow loader, a busy core or a throttled device on its host.",
        "link": "Look at the cable, the card and the rate of that link, and at what else uses it.",
        "rack": "Look at what these hosts share: power, cooling, storage.",
    }
    for each in worth_telling(metered):
        # A late rank is told in milliseconds of a step, if its steps are known.
        if known is None or each["child"] != f"rank {known.rank['rank']}":
            text = stragglers.sentence(each)
            yield Reason("warn", f"{text[0].upper()}{text[1:]}.", advice[each["slow"]])


def _ranks(job: JobStatus) -> Iterator[Reason]:
    for state in ("lost", "away", "awaited"):
        those = [rank for rank in job["ranks"] if rank["state"] == state]
        if not those or (state == "awaited" and job["state"] != "joining"):
            continue
        first = those[0]
        place = f" (host {first['host']}, process {first['pid']})" if first["pid"] else ""
        more = f" and {len(those) - 1} more" if len(those) > 1 else ""
        text = {
            "lost": f"Rank {first['rank']}{place}{more} is lost: no other rank reaches it.",
            "away": f"Rank {first['rank']}{place}{more} has no connection to the controller.",
            "awaited": f"Rank {first['rank']}{more} has not joined yet.",
        }[state]
        yield Reason("bad" if state == "lost" else "warn", text, "Look at the process and its host.")
    unreachable = {rank for each in job["ranks"] if (s := each["statistics"]) for rank in s["unreachable_ranks"]}
    if unreachable:
        yield Reason(
            "bad", f"Some ranks cannot reach {_list(sorted(unreachable))}.", "Run `netsum doctor` on that host."
        )


def _path(job: JobStatus) -> Iterator[Reason]:
    if job["state"] == "planning":
        yield Reason("warn", "The job waits for a plan, or for switches to confirm it.", "See the controller's log.")
    elif job["state"] == "running" and not job["trees"]:
        yield Reason("warn", f"The hosts add, not the switches: {job['reason'] or 'no reason was given'}.")
    elif job["reason"]:
        yield Reason("info", f"The job has fewer trees than the fabric could give: {job['reason']}.")
    silent = {tree for each in job["ranks"] if (s := each["statistics"]) for tree in s["silent_trees"]}
    if silent:
        yield Reason("bad", f"Nothing comes back on tree {_list(sorted(silent), 'tree')}.", "A new plan is on its way.")


def _pauses(job: JobStatus, now: float) -> Iterator[Reason]:
    pauses = [pause for each in job["ranks"] if (s := each["statistics"]) for pause in s["pauses"]]
    recent = [pause for pause in pauses if now - pause["at_unix_s"] < RECENT_S]
    if recent:
        worst = max(recent, key=lambda pause: pause["seconds"])
        ago = now - worst["at_unix_s"]
        text = f"Its trees paused for {worst['seconds']:.2f} s, {ago:.0f} s ago: {worst['what'].rstrip('; ')}."
        yield Reason("warn", text)


def _straggler(job: JobStatus) -> Iterator[Reason]:
    found = straggler(job)
    if found:
        rank, step = found.rank, found.rank["statistics"]
        share = found.late_s / step["step"]["seconds"] if step and step["step"] else 0.0
        text = (
            f"All wait for rank {rank['rank']} (host {rank['host']}, process {rank['pid']}): it calls its sums "
            f"{milliseconds(found.late_s)} later than the others in each step, {share:.0%} of it."
        )
        yield Reason("warn", text, "Look for a slow loader, a busy core or a throttled device on that host.")


def _network(job: JobStatus, loads: list[LinkLoad], lost: float, marked: float) -> Iterator[Reason]:
    full = max(loads, key=lambda link: link.load, default=None)
    if full and full.load >= FULL:
        text = f"The link {full.source} → {full.target} is full ({full.load:.0%})."
        yield Reason("warn", text, "More trees, another placement of ranks, or bfloat16 gradients relieve it.")
    if lost >= LOSS:
        worst = max(job["ranks"], key=_lost)
        text = f"{lost:.1%} of the packets are lost, most of them those of rank {worst['rank']} ({worst['host']})."
        yield Reason("warn", text, "One rank: its cable or card. All ranks of a rack: their switch or its uplink.")
    if marked >= MARKED:
        text = f"{marked:.0%} of the results carry a mark of congestion: other traffic shares the links."
        yield Reason("info", text)


def _balance(job: JobStatus, troubled: bool) -> Iterator[Reason]:
    """What a step's time goes into."""
    steps = [s["step"] for each in job["ranks"] if (s := each["statistics"]) and s["step"]]
    if not steps:
        if job["state"] == "running" and not troubled:
            yield Reason("info", "No step is known: the calls of its ranks do not repeat, or not yet.")
        return
    seconds = median(step["seconds"] for step in steps)
    exposed = median(step["exposed_s"] for step in steps)
    share = exposed / seconds if seconds else 0.0
    if share < HIDDEN:
        text = (
            f"Computing hides the sums: of a step of {milliseconds(seconds)} only {share:.0%} is exposed communication."
        )
        yield Reason("good", text, "A faster network would not make it faster.")
        return
    text = f"{share:.0%} of a step of {milliseconds(seconds)} is communication that no computing hides."
    operations = steps[0]["operations"]
    size = steps[0]["bytes"] / operations if operations else 0
    advice = "Larger batches, smaller gradients (bfloat16) or calling sums earlier hide more of it."
    if size < 65536 and operations > 1:
        advice = (
            f"Its {operations} sums per step are small ({size / 1024:.0f} KiB on average): larger buckets cost less."
        )
    yield Reason("info", text, advice)


def _lost(rank: RankStatus) -> int:
    trees = rank["statistics"]["trees"] if rank["statistics"] else []
    return sum(tree["retransmits"] - tree["spurious_retransmits"] for tree in trees)


def _list(numbers: list[int], what: str = "rank") -> str:
    if what == "rank":
        return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"
    return ", ".join(map(str, numbers))


def milliseconds(seconds: float) -> str:
    """A duration with a unit that suits it."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
