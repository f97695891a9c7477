"""Follows the groups of this process, and exports what they have done."""

import atexit
import os
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netsum._core import Group

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PERIOD_S = 0.5
FLUSH_S = 2.0
"""So long the end of a group waits for its last spans: a collector that is away delays no program's end for longer."""


class Follower:
    """A thread that reads all groups now and then."""

    def __init__(self) -> None:
        """Raises ModuleNotFoundError without the SDK."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON, TraceIdRatioBased

        ratio = os.environ.get("OTEL_TRACES_SAMPLER_ARG")
        self._sampler = TraceIdRatioBased(float(ratio)) if ratio else ALWAYS_ON
        self._exporter = OTLPSpanExporter()
        self._groups: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._state = threading.Condition()
        # A flush asks for a round that begins after it, and waits for the round's end.
        self._asked, self._done = 0, 0
        threading.Thread(target=self._run, name="netsum-traces", daemon=True).start()

    def add(self, core: "Group") -> None:
        """Follow a group as long as it lives."""
        from netsum.traces.spans import GroupSpans

        with self._state:
            self._groups[core] = GroupSpans(self._sampler)

    def flush(self) -> None:
        """Export what has ended, within FLUSH_S."""
        with self._state:
            self._asked += 1
            mine = self._asked
            self._state.notify_all()
            self._state.wait_for(lambda: self._done >= mine, FLUSH_S)

    def _run(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._asked > self._done, PERIOD_S)
                serves, groups = self._asked, list(self._groups.items())
            spans = [span for core, group in groups for span in group.fresh(core)]
            del groups
            if spans:
                # It logs what it cannot send.
                self._exporter.export(spans)
            with self._state:
                self._done = serves
                self._state.notify_all()


_lock = threading.Lock()
_follower: Follower | None = None
_missing = False


def follow(core: "Group") -> None:
    """Export the operations of a group, if an endpoint is set."""
    global _follower, _missing
    if _missing or not any(os.environ.get(name) for name in ENDPOINTS):
        return
    with _lock:
        if _follower is None:
            try:
                _follower = Follower()
            except ModuleNotFoundError as error:
                _missing = True
                text = f"netsum: no traces are sent, {error.name} is missing: `pip install netsum[traces]`"
                warnings.warn(text, stacklevel=2)
                return
            atexit.register(flush)
    _follower.add(core)


def _forget() -> None:
    """A forked process has neither the thread nor the groups."""
    global _follower, _lock
    _follower, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def flush() -> None:
    """Export what has ended; to be called before a group is closed, because a closed group tells nothing."""
    if _follower is not None:
        _follower.flush()
