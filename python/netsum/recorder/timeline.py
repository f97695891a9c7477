"""The dumps as a timeline: a process for each group, a track for each rank."""

from typing import Any

from netsum.recorder.dumps import Dump
from netsum.trace_events import Event, document, named, span


def timeline(groups: dict[str, dict[int, Dump]]) -> dict[str, Any]:
    """The operations of all groups, by group and rank, in Chrome's Trace Event Format. One that is in progress lasts
    until its rank's dump was written. Times are those of each rank's clock."""
    events: list[Event] = []
    for process, (name, dumps) in enumerate(sorted(groups.items()), 1):
        events.append(named("process_name", process, 0, name))
        for rank, dump in sorted(dumps.items()):
            events.append(named("thread_name", process, rank + 1, f"rank {rank} {dump.place}".rstrip()))
            for operation in dump.operations:
                running = operation.seconds is None
                lasts = operation.seconds if operation.seconds is not None else dump.written - operation.called
                arguments: dict[str, Any] = {
                    "number": operation.number,
                    "bytes": operation.nbytes,
                    "in_progress": running,
                }
                if operation.error:
                    arguments["error"] = operation.error
                at = (process, rank + 1, operation.called, max(lasts, 0.0))
                events.append(span(operation.call, *at, arguments))
    return document(events)
