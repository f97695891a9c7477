"""A trace of operations for chrome://tracing, requested by HOROVOD_TIMELINE or `hvd.start_timeline`.

Written at rank 0 only, one row per operation name: time waiting for the other ranks, and time running.
"""

import json
import threading
import time
from typing import Any, TextIO


class Timeline:
    """Inactive until `start`; calls are then almost free."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: TextIO | None = None
        self._rows: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self._first = True
        self._began = 0.0
        self._marks = False

    def start(self, path: str, mark_cycles: bool = False) -> None:
        """Write to `path` from now on; an earlier trace ends."""
        self.stop()
        with self._lock:
            self._file = open(path, "w")
            self._file.write("[")
            self._rows, self._open, self._first = {}, {}, True
            self._began, self._marks = time.monotonic(), mark_cycles
            self._write({"name": "start_time_since_epoch_in_micros", "ph": "M", "pid": 0, "ts": time.time_ns() // 1000})

    def stop(self) -> None:
        """End the trace, if there is one."""
        with self._lock:
            if self._file is not None:
                for name in [name for name, depth in self._open.items() for _ in range(depth)]:
                    self._event("E", name)
                self._file.write("\n]\n")
                self._file.close()
                self._file = None

    def begin(self, name: str, activity: str) -> None:
        """An operation has been called here and waits for the other ranks."""
        if self._file is not None:
            with self._lock:
                self._event("B", name, activity)

    def run(self, names: list[str], activity: str) -> None:
        """Operations have begun to run."""
        if self._file is not None:
            with self._lock:
                if self._marks and self._file is not None:
                    self._write({"name": "CYCLE_START", "ph": "i", "s": "g", "pid": 0, "ts": self._now()})
                for name in names:
                    self._event("E", name)
                    self._event("B", name, activity)

    def end(self, names: list[str]) -> None:
        """Operations have ended."""
        if self._file is not None:
            with self._lock:
                for name in names:
                    self._event("E", name)

    def _event(self, phase: str, name: str, activity: str = "") -> None:
        if self._file is None or (phase == "E" and not self._open.get(name)):
            return
        if name not in self._rows:
            self._rows[name] = len(self._rows)
            self._write({"name": "process_name", "ph": "M", "pid": self._rows[name], "args": {"name": name}})
        self._open[name] = self._open.get(name, 0) + (1 if phase == "B" else -1)
        event = {"ph": phase, "pid": self._rows[name], "ts": self._now()}
        self._write({"name": activity, **event} if phase == "B" else event)

    def _now(self) -> int:
        return int((time.monotonic() - self._began) * 1e6)

    def _write(self, event: dict[str, Any]) -> None:
        if self._file is None:
            return
        self._file.write(("\n" if self._first else ",\n") + json.dumps(event))
        self._file.flush()
        self._first = False
