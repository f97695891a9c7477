"""Asks the controller, and wakes whoever shows its answers."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from netsum.dashboard.events import EventLog
from netsum.dashboard.operations import WATCHED_S, OperationLog
from netsum.dashboard.view import View, pauses
from netsum.fabric.errors import FabricError
from netsum.reports import ControllerStatus, JobStatus, RankOperations

PERIOD_S = 0.5
"""Twice a second: what happens is on the page within a second."""
PERIOD_MAX_S = 2.0
IDLE_SHARE = 4
"""For each second of work, so many of rest, up to the longest period."""

ReadStatus = Callable[[], ControllerStatus]
ReadOperations = Callable[[int], list[RankOperations]]


class Watch:
    """The state of the page, kept current by a thread between `start` and `stop`."""

    def __init__(self, status: ReadStatus, operations: ReadOperations) -> None:
        self._read, self._read_operations = status, operations
        self._view, self._events = View(), EventLog()
        self._jobs: dict[int, OperationLog] = {}
        self._changed = threading.Condition()
        self._number, self._snapshot = 0, b"{}"
        self._error = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="netsum-dashboard", daemon=True)

    def start(self) -> None:
        """Begin. The first answer may be that the controller does not answer."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and all waits."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def snapshot(self, after: int, timeout_s: float) -> tuple[int, bytes]:
        """The newest overview as JSON, and its number; waits, but not for ever, for one that is newer than `after`."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > after or self.stopped, timeout_s)
            return self._number, self._snapshot

    def topology(self) -> dict[str, Any]:
        """The shape of the fabric."""
        with self._changed:
            return self._view.topology

    def job(self, number: int) -> dict[str, Any] | None:
        """The page of a job with its operations, which are collected from now on."""
        log = self._operations(number)
        with self._changed:
            found = self._view.job(number)
            return None if found is None else {**found, "operations": log.shown()}

    def trace(self, number: int) -> dict[str, Any] | None:
        """The trace file of a job."""
        log = self._operations(number)
        with self._changed:
            job = self._find(number)
            if job is None:
                return None
            places = {rank["rank"]: f"{rank['host']} {rank['pid']}" for rank in job["ranks"]}
            return log.trace(number, job["name"], pauses(job), places)

    def _find(self, number: int) -> JobStatus | None:
        jobs = self._view.status["jobs"] if self._view.status else []
        return next((job for job in jobs if job["job"] == number), None)

    def _operations(self, number: int) -> OperationLog:
        """The log of a job, which a new one fills at once."""
        with self._changed:
            known = self._jobs.get(number)
            if known is not None or self._find(number) is None:
                log = known or OperationLog()
                log.looked = time.monotonic()
                return log
            log = self._jobs[number] = OperationLog()
        self._collect(number)
        return log

    def _collect(self, number: int) -> None:
        try:
            reports = self._read_operations(number)
        except FabricError:
            # The status tells that the controller is away, or that the job is gone.
            return
        with self._changed:
            if number in self._jobs:
                self._jobs[number].take(reports)

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            self._once()
            took = time.monotonic() - began
            self._stop.wait(min(max(PERIOD_S - took, IDLE_SHARE * took), PERIOD_MAX_S))

    def _once(self) -> None:
        status: ControllerStatus | None = None
        error = ""
        try:
            status = self._read()
        except FabricError as problem:
            error = str(problem)
        for number in self._watched():
            self._collect(number)
        with self._changed:
            if status is None:
                self._events.failed(f"the controller does not answer: {error}")
            else:
                self._events.compare(self._view.status, status)
                self._view.take(status, time.monotonic())
            self._error = error
            self._publish()

    def _watched(self) -> list[int]:
        with self._changed:
            now = time.monotonic()
            for number in [n for n, log in self._jobs.items() if now - log.looked > WATCHED_S]:
                del self._jobs[number]
            return list(self._jobs)

    def _publish(self) -> None:
        self._number += 1
        shown = {
            "number": self._number,
            "at_unix_s": time.time(),
            "error": self._error,
            **self._view.overview(),
            "events": self._events.newest_first()[:100],
        }
        self._snapshot = json.dumps(shown, separators=(",", ":")).encode()
        self._changed.notify_all()
