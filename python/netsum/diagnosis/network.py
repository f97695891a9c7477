"""What the network and its switches do to a job, from the growth of counters between two rounds."""

import itertools
from dataclasses import dataclass
from typing import Any

from netsum.diagnosis.evidence import Case, Process
from netsum.reports import JobStatus, Straggler

RESENT_MIN = 60
"""Packets sent again between two rounds; a few are lost on healthy networks."""
LOST_SHARE = 0.08
"""Of a rank's fragments, from each round to the next, that were sent again because they or their results were lost.
What a busy host or a late rank makes others send again is spurious, and mostly known as that."""
MARKED_SHARE = 0.9
"""Share of results with a congestion mark: congestion control keeps it far below on a link that is merely full."""
RESULTS_MIN = 50
SLOW_SHARE = 0.25
"""Share of the time for which the others wait for a link before it is named."""
SLOW_TIMES = 20
"""By so much longer than for its siblings they wait for it, and for all that is above it: a rank with a smaller window
than its sibling is awaited all along, and costs nothing."""
LINK_FAULTS = ("slow link", "lossy link", "large packets")
WINDOW_MIN = 32
"""Fragments under way that keep a slow link busy, however long the rank waits for a processor."""
RECEIVED_MIN = 65536
"""Bytes between two rounds that are more than signs of life."""
RECENT_S = 10.0
"""For so long after a job is back on its trees, those that did not answer are named."""
SPREAD_S = 0.5
"""Ranks that get no answers stop at times that differ by less; those that do get some stop when they are told to."""


@dataclass(frozen=True)
class Finding:
    """A fault of the network: the ranks that it concerns, and the link, as words."""

    fault: str
    ranks: tuple[int, ...]
    place: str
    words: str


def job_of(case: Case) -> JobStatus | None:
    """The job in the controller's last status."""
    jobs = case.now["jobs"] if case.now else []
    return next((job for job in jobs if job["job"] == case.job), None)


def dead_switch(case: Case) -> Finding | None:
    """A switch of the job that is down."""
    job = job_of(case)
    if case.now is None or job is None:
        return None
    used = _switches_of(job) | (_switches_of(_job_before(case)) if _job_before(case) else set())
    for switch in case.now["switches"]:
        if switch["state"] == "down" and (switch["name"] in used or not job["trees"]):
            effect = f"; the job goes on without it: {job['reason']}" if job["reason"] else ""
            words = f"{switch['role']} {switch['name']} is dead since {switch['state_for_s']:.0f} s{effect}"
            return Finding("switch", (), switch["name"], words)
    return None


def unanswered(case: Case) -> Finding | None:
    """A switch that does not answer, or a link on which a rank's packets vanish: all ranks below such a switch get no
    answers; the neighbours of such a rank do, even if these say no more than for whom they wait."""
    job = job_of(case)
    if job is None:
        return None
    silent = _unanswered_ranks(case, job)
    names = set() if silent else _silent_by_ranks(case)
    if len(names) == 1:
        return _silent_switch(names.pop())
    if names or len(silent) == job["size"]:
        # What all ranks have in common is the root.
        roots = [tree["root"] for tree in job["trees"] if tree["tree"] in _silent_trees(job)]
        roots += [tree["root"] for tree in job["trees"]]
        return _silent_switch(roots[0]) if roots else None
    if not silent:
        return None
    switch = _switch_of(case, job, silent[0])
    if len(silent) == 1:
        link = _link(case, silent[0], switch)
        words = (
            f"the packets of rank {silent[0]} get no answer, those of others do; small ones pass {link}: is its MTU "
            "smaller than the interfaces say?"
        )
        return Finding("large packets", tuple(silent), link, words)
    below = [rank["rank"] for rank in job["ranks"] if _switch_of(case, job, rank["rank"]) == switch]
    return _silent_switch(switch) if switch and below == silent else None


def _silent_trees(job: JobStatus) -> set[int]:
    """Trees that ranks report as silent."""
    return {tree for rank in job["ranks"] if (s := rank["statistics"]) for tree in s["silent_trees"]}


def _silent_switch(name: str) -> Finding:
    return Finding("switch", (), name, f"switch {name} does not answer: it is stopped, or its links are cut")


def _unanswered_ranks(case: Case, job: JobStatus) -> list[int]:
    """Ranks whose trees do not answer, or did not before the job left them: they stopped long before the others."""
    silent = [rank["rank"] for rank in job["ranks"] if (s := rank["statistics"]) and s["silent_trees"]]
    if silent:
        return silent
    stopped_s: dict[int, float] = {}
    for rank, process in case.rounds[-1].processes.items() if case.rounds else ():
        membership = process.groups.get(case.group)
        pauses = [pause for pause in membership.stats.get("pauses", []) if _is_silence(pause)] if membership else []
        if not membership or not pauses:
            return []
        ended = pauses[-1]["at_unix_s"] + pauses[-1]["seconds"]
        if membership.stats.get("trees") and process.at - ended > RECENT_S:
            return []
        stopped_s[rank] = pauses[-1]["seconds"]
    longest = max(stopped_s.values(), default=0.0)
    return sorted(rank for rank, seconds in stopped_s.items() if seconds >= max(longest - SPREAD_S, SPREAD_S))


def _is_silence(pause: dict[str, Any]) -> bool:
    return str(pause["what"]).startswith("the trees did not answer")


def fewer_trees(case: Case) -> Finding | None:
    """What the controller says about trees that the job could have and has not."""
    job = job_of(case)
    return Finding("switch", (), "", f"sums do not use all trees: {job['reason']}") if job and job["reason"] else None


def _silent_by_ranks(case: Case) -> set[str]:
    """First switches of trees on which no rank had a result between the rounds although all sent again."""
    if len(case.rounds) < 2:
        return set()
    first, last = case.rounds[0].processes, case.rounds[-1].processes
    found: dict[str, list[bool]] = {}
    for rank in last:
        if rank in first:
            for tree, growth in growth_of_trees(case.group, first[rank], last[rank]).items():
                stuck = growth["results"] == 0 and growth["retransmits"] > 0 and not tree[2]
                found.setdefault(tree[1], []).append(stuck)
    return {switch for switch, stuck in found.items() if switch and len(stuck) > 1 and all(stuck)}


def _job_before(case: Case) -> JobStatus | None:
    jobs = case.before["jobs"] if case.before else []
    return next((job for job in jobs if job["job"] == case.job), None)


def _switches_of(job: JobStatus | None) -> set[str]:
    return {node["switch"] for tree in job["trees"] for node in tree["nodes"]} if job else set()


def _switch_of(case: Case, job: JobStatus, rank: int) -> str:
    """The first switch of a rank: of a tree, else the neighbour of its host; "" if there are several."""
    for tree in job["trees"]:
        for node in tree["nodes"]:
            if any(child["child"].get("Rank") == rank for child in node["children"]):
                return node["switch"]
    host = next((each["host"] for each in job["ranks"] if each["rank"] == rank), "")
    links = case.now["links"] if case.now else []
    ends = {link["b"] if link["a"] == host else link["a"] for link in links if host in (link["a"], link["b"])}
    return min(ends) if len(ends) == 1 else ""


def reason_of_loss(case: Case, rank: int) -> str:
    """What the controller says about a rank that is gone."""
    job = job_of(case)
    state = next((each["state"] for each in job["ranks"] if each["rank"] == rank), "") if job else ""
    return f"; the controller counts it as {state}" if state in ("away", "lost", "left") else ""


def growth_of_trees(group: str, before: Process, now: Process) -> dict[tuple[int, str, int], dict[str, int]]:
    """By tree, its first switch and the ranks that it last named as missing: how its counters grew; not at all if the
    job was not on it before."""
    old = {tree["tree"]: tree for tree in _trees(group, before)}
    found = {}
    for tree in _trees(group, now):
        last = old.get(tree["tree"], tree)
        names = ("results", "retransmits", "spurious_retransmits", "marks")
        growth = {name: max(int(tree[name]) - int(last[name]), 0) for name in names}
        growth["lost"] = max(growth["retransmits"] - growth["spurious_retransmits"], 0)
        found[(tree["tree"], str(tree["switch"]), int(tree["waiting_for"]))] = {**growth, "window": int(tree["window"])}
    return found


def _trees(group: str, process: Process) -> list[dict[str, Any]]:
    membership = process.groups.get(group)
    return list(membership.stats.get("trees", [])) if membership else []


@dataclass
class _Growth:
    results: int = 0
    resent: int = 0
    lost: int = 0
    marks: int = 0
    window: int = 0
    missing: int = 0
    switch: str = ""


def _growths(case: Case) -> dict[int, _Growth]:
    first, last = case.rounds[0].processes, case.rounds[-1].processes
    found = {}
    for rank, process in last.items():
        total = _Growth()
        before = first.get(rank, process)
        for (_, switch, missing), growth in growth_of_trees(case.group, before, process).items():
            total.results += growth["results"]
            total.resent += growth["retransmits"]
            total.lost += growth["lost"]
            total.marks += growth["marks"]
            total.window = max(total.window, growth["window"])
            total.missing |= missing
            total.switch = switch
        found[rank] = total
    return found


def judge(case: Case, stuck: bool) -> Finding | None:
    """A fault of a link, if the counters show one. stuck: operations that all ranks have called do not end."""
    if len(case.rounds) < 2:
        return None
    growths = _growths(case)
    late = _slow_child(case)
    if late and late[2] >= SLOW_SHARE and late[1][0].startswith("rank ") and _given_up(case):
        rank = int(late[1][0][5:])
        link = f"{_link_of(case, rank, growths)} - {late[1][1]}"
        words = (
            f"{late[1][1]} gets nothing from rank {rank}, so sums have left the trees; its small packets pass: an MTU?"
        )
        return Finding("large packets", (rank,), link, words)
    resent = {rank: growth.resent for rank, growth in growths.items()}
    results = sum(growth.results for growth in growths.values())
    if results > 0 and sum(resent.values()) >= RESENT_MIN and _lost_share(case) >= LOST_SHARE:
        return _lossy(case, growths, late)
    if (stuck or _same_operation(case)) and sum(resent.values()) > 0 and results == 0:
        missing = growths and _missing(growths)
        if missing:
            rank = missing[0]
            link = _link_of(case, rank, growths)
            if _heard(case, rank):
                words = f"{link} loses packets on the way up: rank {rank} sends again what its switch still lacks"
                return Finding("lossy link", tuple(missing), link, words)
            words = f"small packets pass {link}, large ones do not: is its MTU smaller than the interfaces say?"
            return Finding("large packets", tuple(missing), link, words)
    marks = sum(growth.marks for growth in growths.values())
    if results >= RESULTS_MIN and marks >= MARKED_SHARE * results:
        words = f"{marks / results:.0%} of all results have a congestion mark; windows are down to "
        return Finding("marks", (), "", words + f"{max(growth.window for growth in growths.values())} fragments")
    if late and late[0] == "link" and late[2] >= SLOW_SHARE:
        child, at = late[1]
        ranks = (int(child[5:]),) if child.startswith("rank ") else ()
        if ranks and _has_small_window(growths, ranks[0]):
            return None
        link = _link_of(case, ranks[0], growths) if ranks else f"link {child} - {at}"
        return Finding("slow link", ranks, link, f"{link} is slow: the others wait for it {late[2]:.0%} of the time")
    return None


def received(case: Case) -> bool:
    """Whether data of sums have arrived at every rank between the first round and the last."""
    first, last = case.rounds[0].processes, case.rounds[-1].processes
    for rank, process in last.items():
        before = first.get(rank, process)
        results = sum(growth["results"] for growth in growth_of_trees(case.group, before, process).values())
        member, earlier = process.groups.get(case.group), before.groups.get(case.group)
        by_hosts = (
            member.stats.get("host_bytes_rx", 0) - earlier.stats.get("host_bytes_rx", 0) if member and earlier else 0
        )
        if not results and by_hosts < RECEIVED_MIN:
            return False
    return bool(last)


def _heard(case: Case, rank: int) -> bool:
    """Whether a switch had fragments of a rank between the two statuses."""
    counts: list[dict[tuple[str, int, int], int]] = []
    for status in (case.before, case.now):
        counts.append({})
        for switch in status["switches"] if status else []:
            for tree in switch["trees"]:
                if tree["job"] == case.job:
                    for child in tree["children"]:
                        if child["name"] == f"rank {rank}":
                            counts[-1][switch["name"], tree["tree"], tree["epoch"]] = sum(child["histogram"])
    before, now = counts
    return any(count > before.get(lease, count) for lease, count in now.items())


def _given_up(case: Case) -> bool:
    """Whether all ranks have left the trees because these do not answer."""
    members = [process.groups.get(case.group) for process in case.rounds[-1].processes.values()]
    return bool(members) and all(m and "no tree answers" in str(m.stats.get("reason")) for m in members)


def _same_operation(case: Case) -> bool:
    """Whether all ranks have waited in one and the same operation from the first round to the last."""
    numbers = set()
    for round_ in (case.rounds[0], case.rounds[-1]):
        for process in round_.processes.values():
            membership = process.groups.get(case.group)
            pending = membership.pending() if membership else []
            numbers.add(pending[0].number if pending else None)
    return len(numbers) == 1 and None not in numbers


def _has_small_window(growths: dict[int, _Growth], rank: int) -> bool:
    """Whether a rank sends less at a time than a sibling: without marks of a full link, for what was lost before."""
    own = growths.get(rank)
    siblings = [each.window for other, each in growths.items() if own and other != rank and each.switch == own.switch]
    if own is None or not siblings:
        return False
    return 10 * own.marks <= own.results and own.window < min(WINDOW_MIN, max(siblings) / 4)


def _lost_share(case: Case) -> float:
    """The share of a rank's fragments that are lost, or whose results are, of that rank for which it is largest: from
    each round to the next, the smaller one."""
    shares: dict[int, list[float]] = {}
    for first, last in itertools.pairwise(case.rounds):
        for rank, process in last.processes.items():
            growths = growth_of_trees(case.group, first.processes.get(rank, process), process).values()
            lost, results = (sum(growth[name] for growth in growths) for name in ("lost", "results"))
            shares.setdefault(rank, []).append(lost / max(lost + results, 1))
    return max((min(each) for each in shares.values()), default=0.0)


def _slow_child(case: Case) -> tuple[str, tuple[str, str], float] | None:
    """What makes the others wait longest: what it is, the child and its switch, the share of the time."""
    found = [each for each in case.stragglers if each["slow"] != "link" or is_bottleneck(case, each)]
    if not found:
        return None
    worst = max(found, key=lambda each: each["share"])
    return worst["slow"], (worst["child"], worst["at"]), worst["share"]


def is_bottleneck(case: Case, straggler: Straggler) -> bool:
    """Whether others wait for a child much longer than for its siblings, and so for all that is above it."""
    meters = _awaited(case, straggler["tree"])
    child, node, least_ns = straggler["child"], straggler["at"], 1
    if not any(meters.get(child, {"": 1}).values()):
        # Its last report is old: one of its own children may be the reason.
        return False
    # No path is longer, whatever the names are.
    for _ in meters:
        children = meters.get(node, {})
        siblings_ns = max((awaited for name, awaited in children.items() if name != child), default=0)
        if children.get(child, 0) < max(SLOW_TIMES * siblings_ns, least_ns):
            return False
        above = next((parent for parent, below in meters.items() if node in below), None)
        if above is None:
            return True
        child, node, least_ns = node, above, children[child] // 2
    return False


def _awaited(case: Case, tree: int) -> dict[str, dict[str, int]]:
    """By switch of a tree and by child, for how long it was awaited between the two statuses, in nanoseconds."""
    readings = []
    for status in (case.before, case.now):
        readings.append(
            {
                (switch["name"], child["name"], lease["epoch"]): child["awaited_ns"]
                for switch in (status["switches"] if status else [])
                for lease in switch["trees"]
                if lease["job"] == case.job and lease["tree"] == tree
                for child in lease["children"]
            }
        )
    before, now = readings
    found: dict[str, dict[str, int]] = {}
    for (switch, child, epoch), awaited_ns in now.items():
        earlier_ns = before.get((switch, child, epoch), 0)
        found.setdefault(switch, {})[child] = max(awaited_ns - earlier_ns, 0)
    return found


def _lossy(case: Case, growths: dict[int, _Growth], late: tuple[str, tuple[str, str], float] | None) -> Finding:
    """Results lost on their way down make one rank send again; fragments lost on their way up make all do so, and most
    of all the rank whose fragments they are."""
    most = max(growths, key=lambda rank: growths[rank].lost)
    others = [growth.resent for rank, growth in growths.items() if rank != most]
    alone = 2 * growths[most].resent >= 3 * max(max(others, default=0), 1)
    rank, direction = most, "down" if alone else "up"
    if not alone and late and not late[1][0].startswith("rank "):
        child, at = late[1]
        link = f"link {child} - {at}"
        return Finding("lossy link", (), link, f"{link} loses packets: ranks send again what was lost")
    link = _link_of(case, rank, growths)
    growth = growths[rank]
    share = growth.lost / max(growth.lost + growth.results, 1)
    words = f"{link} loses packets on the way {direction}: rank {rank} sent {share:.1%} of its fragments again for it"
    return Finding("lossy link", (rank,), link, words)


def _missing(growths: dict[int, _Growth]) -> list[int]:
    """Ranks that most others' trees name as missing."""
    counts = {rank: sum(growth.missing >> (rank % 64) & 1 for growth in growths.values()) for rank in growths}
    most = max(counts.values(), default=0)
    return [rank for rank, count in counts.items() if count == most] if most else []


def _link_of(case: Case, rank: int, growths: dict[int, _Growth]) -> str:
    return _link(case, rank, growths[rank].switch if rank in growths else "")


def _link(case: Case, rank: int, switch: str) -> str:
    job = job_of(case)
    host = next((each["host"] for each in job["ranks"] if each["rank"] == rank), "") if job else ""
    return f"link {host or f'of rank {rank}'} - {switch}" if switch else f"the link of {host or f'rank {rank}'}"
