"""Diagnosis from the ranks' last operations: which ranks wait, which are missing, and where calls diverged."""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from netsum.recorder.dumps import Dump, Operation

_RECEIVE = re.compile(r"receive of \d+ bytes from rank (\d+) \(tag (\d+)\)")
_SEND = re.compile(r"send of \d+ bytes to rank (\d+) \(tag (\d+)\)")


@dataclass(frozen=True)
class Finding:
    """One finding. kind: absent, mismatch, stall, slow, message or well. ranks: the ranks concerned."""

    kind: str
    ranks: list[int]
    text: str
    number: int | None = None


def judge(dumps: dict[int, Dump]) -> list[Finding]:
    """The problems of one group, causes before consequences. dumps: by rank, of one group."""
    size = next(iter(dumps.values())).size
    absent = [rank for rank in range(size) if rank not in dumps]
    findings = []
    if absent:
        text = f"{_ranks(absent)} left no file: dead, stopped, or still well when the others wrote"
        findings.append(Finding("absent", absent, text))
    different = _mismatch(dumps)
    stalled = None if different else _stall(dumps, absent)
    findings += [finding for finding in (different, stalled) if finding]
    findings += _messages(dumps)
    if not findings or (absent and len(findings) == 1):
        findings.append(Finding("well", sorted(dumps), "no rank that wrote waits for another"))
    return findings


def _mismatch(dumps: dict[int, Dump]) -> Finding | None:
    """The first number under which ranks called different operations."""
    calls: dict[int, dict[int, str]] = defaultdict(dict)
    for rank, dump in dumps.items():
        for number, operation in dump.collectives.items():
            calls[number][rank] = operation.call
    for number in sorted(calls):
        by_call = defaultdict(list)
        for rank, call in sorted(calls[number].items()):
            by_call[call].append(rank)
        if len(by_call) > 1:
            said = "; ".join(f"{_ranks(ranks)} called {call}" for call, ranks in by_call.items())
            fewest = min(by_call.values(), key=len)
            return Finding("mismatch", fewest, f"operation #{number} is not the same everywhere: {said}", number)
    return None


def _stall(dumps: dict[int, Dump], absent: list[int]) -> Finding | None:
    """The lowest operation that has not completed everywhere, and the ranks that have not called it."""
    open_ = [
        number
        for dump in dumps.values()
        for number, operation in dump.collectives.items()
        if operation.seconds is None or operation.error is not None
    ]
    if not open_:
        return None
    number = min(open_)
    waiting = {rank: dump.collectives[number] for rank, dump in dumps.items() if number in dump.collectives}
    waiting = {rank: each for rank, each in waiting.items() if each.seconds is None or each.error}
    # A rank that completed it, or whose ring buffer has dropped it, has called it.
    late = [rank for rank, dump in dumps.items() if max(dump.collectives, default=-1) < number]
    longest = max(_age(dumps[rank], each) for rank, each in waiting.items())
    call = next(iter(waiting.values())).call
    text = f"{_ranks(sorted(waiting))} wait{'s' if len(waiting) == 1 else ''} in operation #{number}, {call}"
    text += f", for {longest:.1f} s"
    if not late and not absent:
        return Finding("slow", sorted(waiting), f"{text}; every rank has called it, so its data are on the way", number)
    reasons = [f"rank {rank} ({dumps[rank].place}) has not called it: {_last(dumps[rank])}" for rank in late]
    reasons += [f"rank {rank} left no file" for rank in absent]
    return Finding("stall", late + absent, "; ".join([text, *reasons]), number)


def _messages(dumps: dict[int, Dump]) -> list[Finding]:
    """Receives without a matching send."""
    sent: Counter[Any] = Counter()
    received: Counter[Any] = Counter()
    waiting = []
    for rank, dump in dumps.items():
        for operation in dump.operations:
            if operation.number is not None:
                continue
            if match := _SEND.match(operation.call):
                sent[(rank, int(match[1]), match[2])] += 1
            elif match := _RECEIVE.match(operation.call):
                way = (int(match[1]), rank, match[2])
                if operation.seconds is None or operation.error:
                    waiting.append((way, operation))
                else:
                    received[way] += 1
    findings = []
    for way, operation in waiting:
        source, rank, tag = way
        if sent[way] > received[way]:
            continue
        text = f"rank {rank} waits in {operation.call}, for {_age(dumps[rank], operation):.1f} s; rank {source} "
        text += "left no file" if source not in dumps else f"has sent it nothing more with tag {tag}"
        findings.append(Finding("message", [source], text))
    return findings


def _age(dump: Dump, operation: Operation) -> float:
    return dump.written - operation.called if operation.seconds is None else operation.seconds


def _last(dump: Dump) -> str:
    collectives = dump.collectives
    if not collectives:
        return "it has called no collective at all"
    number = max(collectives)
    last = collectives[number]
    text = f"its last is #{number}, {last.call}"
    if last.seconds is None:
        return f"{text}, which it waits in itself"
    return f"{text}, which ended {dump.written - last.called - last.seconds:.1f} s before it wrote"


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
