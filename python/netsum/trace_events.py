"""Chrome's Trace Event Format, which https://ui.perfetto.dev and chrome://tracing open; times in microseconds."""

from typing import Any

Event = dict[str, Any]


def named(kind: str, process: int, thread: int, name: str) -> Event:
    """The name of a process or of a thread. kind: "process_name" or "thread_name"."""
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def span(name: str, process: int, thread: int, at: float, lasts: float, arguments: dict[str, Any]) -> Event:
    """What lasts from `at`, in seconds since 1970, for `lasts` seconds."""
    times = {"ts": round(at * 1e6, 1), "dur": round(lasts * 1e6, 1)}
    return {"name": name, "cat": "netsum", "ph": "X", "pid": process, "tid": thread, **times, "args": arguments}


def document(events: list[Event]) -> dict[str, Any]:
    """A file's content, to be written as JSON."""
    return {"traceEvents": events, "displayTimeUnit": "ms"}
