"""The operations of jobs that somebody looks at, and their file for Perfetto and Chrome."""

import time
from collections import deque
from typing import Any

from netsum.reports import RankOperations
from netsum.trace_events import document, named, span

KEPT = 2048
"""Operations kept of a rank."""
TOTAL = 200_000
"""Operations kept of a job: of more than a hundred ranks each has fewer."""
SHOWN = 20_000
"""Operations that a page gets."""
WATCHED_S = 30.0
"""So long after the last look at a job its operations are still collected."""


class OperationLog:
    """The operations of one job, by rank and number; reports overlap, and an operation in progress comes again."""

    def __init__(self) -> None:
        self._ranks: dict[int, dict[int, tuple[str, int, float, float | None]]] = {}
        self._order: dict[int, deque[int]] = {}
        self.looked = time.monotonic()

    def take(self, reports: list[RankOperations]) -> None:
        """Merge what ranks have reported."""
        most = max(min(KEPT, TOTAL // max(len(reports), 1)), 64)
        for report in reports:
            known = self._ranks.setdefault(report["rank"], {})
            order = self._order.setdefault(report["rank"], deque())
            for each in report["operations"]:
                if each["number"] not in known:
                    order.append(each["number"])
                known[each["number"]] = (each["call"], each["bytes"], each["called_unix_s"], each["seconds"])
            while len(order) > most:
                del known[order.popleft()]

    def shown(self) -> dict[str, Any]:
        """For the page: the names of calls, and by rank rows [number, name, bytes, called, seconds or null]."""
        most = max(SHOWN // max(len(self._ranks), 1), 16)
        calls: dict[str, int] = {}
        ranks = {}
        for rank, known in sorted(self._ranks.items()):
            rows = []
            for number in list(self._order[rank])[-most:]:
                call, size, called, seconds = known[number]
                rows.append([number, calls.setdefault(call, len(calls)), size, called, seconds])
            ranks[rank] = rows
        return {"calls": list(calls), "ranks": ranks}

    def trace(self, job: int, name: str, pauses: list[dict[str, Any]], places: dict[int, str]) -> dict[str, Any]:
        """A file for Perfetto and Chrome: a track per rank, and one of pauses. An operation in progress lasts until
        now."""
        events = [named("process_name", job, 0, f"job {job} {name}")]
        now = time.time()
        for rank, known in sorted(self._ranks.items()):
            events.append(named("thread_name", job, rank + 1, f"rank {rank} {places.get(rank, '')}".rstrip()))
            for number in self._order[rank]:
                call, size, called, seconds = known[number]
                lasts = max(now - called, 0.0) if seconds is None else seconds
                arguments = {"number": number, "bytes": size, "in_progress": seconds is None}
                events.append(span(call, job, rank + 1, called, lasts, arguments))
        events.append(named("thread_name", job, 0, "pauses of the trees"))
        for pause in pauses:
            events.append(span(pause["what"] or "pause", job, 0, pause["at_unix_s"], pause["seconds"], {}))
        return document(events)
