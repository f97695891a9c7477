"""A verdict as text and as JSON."""

from typing import Any

from netsum.diagnosis.evidence import Case
from netsum.diagnosis.verdict import Verdict
from netsum.diagnosis.waiting import Wait


def lines(case: Case, verdict: Verdict) -> list[str]:
    """A verdict in a few lines: the cause first."""
    place = f" ({verdict.place})" if verdict.place and verdict.place not in verdict.words else ""
    said = [f"{verdict.fault}{place}: {verdict.words}"]
    if verdict.operation:
        said.append(f"waited for: {verdict.operation}")
    sites = {rank: f"{file}:{line} in {function}" for rank, (file, line, function) in verdict.sites}
    for wait in verdict.waits[:ROWS_MAX]:
        said.append(f"rank {wait.rank} waits for {_ranks(wait)} since {wait.seconds:.1f} s{_at(sites.get(wait.rank))}")
    waiting = {wait.rank for wait in verdict.waits}
    for rank in verdict.ranks[:ROWS_MAX]:
        if rank not in waiting:
            place = case.places.get(rank, "place unknown")
            said.append(f"rank {rank} is awaited ({place}){_at(sites.get(rank))}")
    left = len(verdict.waits) - ROWS_MAX
    if left > 0:
        said.append(f"{left} other ranks wait, too")
    return said


def as_json(case: Case, verdict: Verdict, seconds: float) -> dict[str, Any]:
    """A verdict for scripts."""
    return {
        "group": case.group,
        "job": case.job,
        "size": case.size,
        "answered": sorted(case.rounds[-1].processes) if case.rounds else [],
        "fault": verdict.fault,
        "ranks": list(verdict.ranks),
        "place": verdict.place,
        "words": verdict.words,
        "operation": verdict.operation,
        "waits": [
            {
                "rank": wait.rank,
                "place": case.places.get(wait.rank, ""),
                "group": wait.group,
                "number": wait.number,
                "call": wait.words,
                "bytes": wait.bytes,
                "seconds": wait.seconds,
                "awaited": list(wait.awaited),
            }
            for wait in verdict.waits
        ],
        "sites": {str(rank): {"file": f, "line": n, "function": q} for rank, (f, n, q) in verdict.sites},
        "cycle": [{"rank": rank, "group": group} for rank, group in verdict.cycle],
        "seconds": seconds,
    }


def _ranks(wait: Wait) -> str:
    if not wait.awaited:
        return "its data"
    shown = ", ".join(map(str, wait.awaited[:8]))
    more = len(wait.awaited) - 8
    words = f"rank {shown}" if len(wait.awaited) == 1 else f"ranks {shown}"
    return f"{words} and {more} others" if more > 0 else words


def _at(site: str | None) -> str:
    return f", at {site}" if site else ""


ROWS_MAX = 16
