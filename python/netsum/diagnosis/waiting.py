"""Which ranks wait, in which operations, and for whom."""

from collections import defaultdict
from dataclasses import dataclass

from netsum.diagnosis.evidence import Case, Membership, Process

LONG_S = 1.0
"""Shorter waits are those of any step on a busy machine."""


@dataclass(frozen=True)
class Wait:
    """A rank that waits. awaited: ranks of the case that have not called the operation."""

    rank: int
    group: str
    number: int
    words: str
    bytes: int
    seconds: float
    awaited: tuple[int, ...]


def waits_of(case: Case) -> list[Wait]:
    """Operations in which ranks of the last round have waited long: of each group the lowest number, longest first."""
    if not case.rounds:
        return []
    processes = case.rounds[-1].processes
    by_group: dict[str, dict[int, tuple[Process, Membership]]] = defaultdict(dict)
    for rank, process in processes.items():
        for name, membership in process.groups.items():
            by_group[name][rank] = (process, membership)
    waits = []
    for name, members in by_group.items():
        pending = {
            rank: (process.at - call.called, call)
            for rank, (process, membership) in members.items()
            for call in membership.pending()[:1]
        }
        long = {rank: each for rank, each in pending.items() if each[0] >= LONG_S}
        if not long:
            continue
        number = min(call.number for _, call in long.values() if call.number is not None)
        behind = [rank for rank, (_, membership) in members.items() if membership.next <= number]
        known = {membership.rank for _, membership in members.values()}
        size = next(iter(members.values()))[1].size
        # Ranks of the case's own group that did not answer: what they have called is unknown, and the others wait.
        missing = [rank for rank in range(size) if rank not in known] if name == case.group else []
        for rank, (seconds, call) in sorted(long.items()):
            if call.number != number:
                continue
            awaited = tuple(sorted({*behind, *missing} - {rank}))
            waits.append(Wait(rank, name, number, call.words, call.bytes, seconds, awaited))
    return sorted(waits, key=lambda wait: -wait.seconds)


def cycle_of(waits: list[Wait]) -> tuple[tuple[int, str], ...]:
    """A deadlock: ranks each of which waits for the next, and the last for the first, with the groups."""
    follows = {wait.rank: wait for wait in waits if wait.awaited}
    for start in sorted(follows):
        path: list[int] = []
        found = _walk(start, start, follows, path, set())
        if found:
            return tuple((rank, follows[rank].group) for rank in path)
    return ()


def _walk(rank: int, start: int, follows: dict[int, Wait], path: list[int], seen: set[int]) -> bool:
    """Extends `path` from a rank to the start by whom each waits for."""
    if rank in seen or rank not in follows:
        return False
    seen.add(rank)
    path.append(rank)
    if start in follows[rank].awaited and rank != start:
        return True
    if any(_walk(other, start, follows, path, seen) for other in follows[rank].awaited if other != start):
        return True
    path.pop()
    return False


def different_calls(case: Case) -> tuple[int, dict[str, list[int]]] | None:
    """The first number of the case's group under which ranks called different operations, and who called what."""
    calls: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, process in sorted(case.rounds[-1].processes.items()) if case.rounds else []:
        membership = process.groups.get(case.group)
        for call in membership.calls if membership else ():
            if call.number is not None:
                calls[call.number][call.words].append(rank)
    for number in sorted(calls):
        if len(calls[number]) > 1:
            return number, dict(calls[number])
    return None
