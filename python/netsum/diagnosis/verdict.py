"""From evidence to a verdict: who waits for whom, and why. Pure logic, tested by a table of cases."""

import statistics
from dataclasses import dataclass

from netsum.diagnosis import activity, network
from netsum.diagnosis.evidence import Call, Case, Frame, Membership, Process
from netsum.diagnosis.waiting import Wait, cycle_of, different_calls, waits_of

WELL = "well"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Verdict:
    """The outcome.

    fault: one of the classes of docs/why.md. ranks: those that are awaited, or that the fault concerns. place: the
    switch, the link or the host that it is at, if there is one. sites: where in the program each rank is that waits or
    is awaited. cycle: ranks of a deadlock, each with the group in which it waits for the next.
    """

    fault: str
    ranks: tuple[int, ...]
    words: str
    place: str = ""
    operation: str = ""
    waits: tuple[Wait, ...] = ()
    sites: tuple[tuple[int, Frame], ...] = ()
    cycle: tuple[tuple[int, str], ...] = ()


def judge(case: Case) -> Verdict:
    """The verdict on a case: the cause before its consequences."""
    last = case.rounds[-1].processes if case.rounds else {}
    waits = waits_of(case)
    found = (
        _lost_processes(case, last)
        or _failures(case, last)
        or _different(case)
        or _not_called(case, last, waits)
        or _switches(case)
        or _late(case, last)
        or _controller(case, last)
        or _network(case, waits)
    )
    if found is None:
        found = _no_progress(case, waits) or Verdict(WELL, (), "no rank waits for longer than its steps explain")
    operation = _operation(case, waits)
    return Verdict(
        found.fault,
        found.ranks,
        found.words,
        found.place,
        found.operation or operation,
        tuple(waits),
        tuple(_sites(last, {*found.ranks, *(wait.rank for wait in waits)})),
        found.cycle,
    )


def _operation(case: Case, waits: list[Wait]) -> str:
    return f"operation #{waits[0].number} of group {waits[0].group}, {waits[0].words}" if waits else ""


def _sites(last: dict[int, Process], ranks: set[int]) -> list[tuple[int, Frame]]:
    sites = []
    for rank in sorted(ranks):
        site = activity.call_site(last[rank].main_stack()) if rank in last else None
        if site:
            sites.append((rank, site))
    return sites


def _who(case: Case, rank: int) -> str:
    place = case.places.get(rank)
    return f"rank {rank} ({place})" if place else f"rank {rank}"


def _lost_processes(case: Case, last: dict[int, Process]) -> Verdict | None:
    """Processes that do not answer: the system says whether they are stopped or gone."""
    for rank, state in sorted(case.outside.items()):
        if rank in last:
            continue
        if state in ("T", "t"):
            return Verdict("stopped", (rank,), f"{_who(case, rank)} is stopped (state {state}, as after SIGSTOP)")
    gone = [rank for rank, state in sorted(case.outside.items()) if rank not in last and state is None]
    if gone and len(gone) < case.size:
        told = network.reason_of_loss(case, gone[0])
        return Verdict("dead", tuple(gone), f"{_who(case, gone[0])} has ended{told}")
    return None


def _failures(case: Case, last: dict[int, Process]) -> Verdict | None:
    """Groups that have failed say why."""
    for process in last.values():
        for membership in process.groups.values():
            verdict = membership.failure and _of_failure(case, last, membership)
            if verdict:
                return verdict
    raising = [rank for rank, process in sorted(last.items()) if process.uncaught]
    if raising and any(m.failure for process in last.values() for m in process.groups.values()):
        error = last[raising[0]].uncaught
        return Verdict("exception", (raising[0],), f"{_who(case, raising[0])} has raised {error}")
    return None


def _of_failure(case: Case, last: dict[int, Process], membership: Membership) -> Verdict | None:
    reason = membership.failure or ""
    kind, group_ranks = activity.read_failure(reason)
    ranks = tuple(case_rank(last, membership.group, rank) for rank in group_ranks)
    if kind == "different call":
        return Verdict(kind, ranks, f"the ranks called different operations: {reason}")
    if kind == "lost" and ranks:
        rank = ranks[0]
        error = activity.exception_of(last[rank]) if rank in last else None
        if error:
            return Verdict("exception", (rank,), f"{_who(case, rank)} has raised {error}")
        return Verdict("dead", (rank,), f"{_who(case, rank)} is gone: {reason}")
    return None


def case_rank(processes: dict[int, Process], group: str, rank: int) -> int:
    """The rank in the case's group of a group's rank; the same number if its process did not answer."""
    for case_rank_, process in processes.items():
        membership = process.groups.get(group)
        if membership and membership.rank == rank:
            return case_rank_
    return rank


def _different(case: Case) -> Verdict | None:
    found = different_calls(case)
    if not found:
        return None
    number, by_words = found
    fewest = min(by_words.values(), key=len)
    said = "; ".join(f"ranks {ranks} called {words}" for words, ranks in by_words.items())
    return Verdict("different call", tuple(fewest), f"operation #{number} is not the same everywhere: {said}")


def _not_called(case: Case, last: dict[int, Process], waits: list[Wait]) -> Verdict | None:
    """Ranks that have not called what others wait in."""
    if not waits:
        return None
    # Those who wait for everybody wait for the deadlocked, too.
    cycle = cycle_of([wait for wait in waits if wait.group != case.group]) or cycle_of(waits)
    if cycle:
        words = ", ".join(f"rank {rank} waits in group {group}" for rank, group in cycle)
        ranks = tuple(rank for rank, _ in cycle)
        return Verdict("deadlock", ranks, f"each waits for the next: {words}, and rank {ranks[0]} again", cycle=cycle)
    waiting = {wait.rank for wait in waits}
    awaited = sorted({rank for wait in waits for rank in wait.awaited})
    roots = [rank for rank in awaited if rank not in waiting]
    silent = [rank for rank in roots if rank not in last]
    if silent:
        return Verdict("silent", tuple(silent), f"{_who(case, silent[0])} does not answer; its host or network is away")
    if not roots:
        if not awaited:
            return None
        return Verdict("other operation", tuple(awaited), f"{_who(case, awaited[0])} waits in another operation")
    # More ranks behind than ahead: those ahead are early, but the verdict is the same.
    rank = max(roots, key=lambda rank: activity.weight(last[rank]))
    rounds = [round_.processes[rank] for round_ in case.rounds if rank in round_.processes]
    period = 2 * activity.period_of(last[rank], case.group)
    fault, words = activity.classify(rounds, waits[0].seconds, period)
    if fault == "waiting":
        open_ = [call for m in last[rank].groups.values() for call in m.calls if call.seconds is None]
        words = f"it waits in {open_[0].words}" if open_ else words
        return Verdict("other operation", (rank,), f"{_who(case, rank)} has not called it: {words}")
    return Verdict(fault, tuple(roots), f"{_who(case, rank)} has not called it: {words}")


def _switches(case: Case) -> Verdict | None:
    found = network.dead_switch(case) or network.unanswered(case) or network.fewer_trees(case)
    return _found(case, found) if found else None


def _network(case: Case, waits: list[Wait]) -> Verdict | None:
    found = network.judge(case, stuck=bool(waits))
    if found:
        return _found(case, found)
    starved = _starved(case)
    return _overloaded(case, starved[0]) if len(starved) == 1 else None


def _found(case: Case, found: network.Finding) -> Verdict:
    """A finding about a link is about a host if that does not let a rank send and receive."""
    starved = _starved(case)
    at_fault = [rank for rank in found.ranks if rank in starved]
    if found.fault in network.LINK_FAULTS and (at_fault or len(starved) == 1):
        return _overloaded(case, (at_fault or starved)[0])
    return Verdict(found.fault, found.ranks, found.words, place=found.place)


def _starved(case: Case) -> list[int]:
    """Ranks whose sending and receiving waits for a processor most of the time."""
    last = case.rounds[-1].processes
    return [rank for rank in sorted(last) if _starved_share(case, rank) >= activity.DELAYED]


def _starved_share(case: Case, rank: int) -> float:
    return statistics.median(r.processes[rank].starved for r in case.rounds if rank in r.processes)


def _overloaded(case: Case, rank: int) -> Verdict:
    processors = case.rounds[-1].processes[rank].processors
    words = f"{_starved_share(case, rank):.0%} of the time its sending and receiving waits for one of {processors}"
    return Verdict("host", (rank,), f"{_who(case, rank)}: its host is overloaded: {words} processors")


def _late(case: Case, last: dict[int, Process]) -> Verdict | None:
    """A rank that is late in every step."""
    for rank in activity.late_ranks(case):
        rounds = [round_.processes[rank] for round_ in case.rounds if rank in round_.processes]
        fault, words = activity.classify(rounds) if rank in last else ("waiting", "")
        # One that waits is late because its results are: a matter of the network.
        if fault != "waiting":
            return Verdict(fault, (rank,), f"{_who(case, rank)} is late in every step: {words}")
    return None


def _controller(case: Case, last: dict[int, Process]) -> Verdict | None:
    away = {membership.away for process in last.values() for membership in process.groups.values() if membership.away}
    if not away:
        return None
    return Verdict("controller", (), f"the controller cannot be reached; the job goes on without it: {sorted(away)[0]}")


def _no_progress(case: Case, waits: list[Wait]) -> Verdict | None:
    # Data that arrive are no fault, however long the rest takes.
    if not waits or network.received(case):
        return None
    ranks = tuple(sorted({wait.rank for wait in waits}))
    longest = max(wait.seconds for wait in waits)
    words = f"every rank has called it, and it has not ended for {longest:.1f} s; nothing arrives"
    return Verdict(UNKNOWN, ranks, words)


def durations(calls: tuple[Call, ...]) -> float:
    """The median duration of operations that have ended, in seconds."""
    ended = [call.seconds for call in calls if call.seconds is not None and call.number is not None]
    return statistics.median(ended) if ended else 0.0
