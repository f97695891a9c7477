"""What rank 0 asks the controller while its job runs: bytes of links, stragglers, the plan."""

import json
import threading
import time
from pathlib import Path
from typing import Any

from netsum.reports import ControllerStatus, JobStatus, Straggler

PERIOD_S = 2.0
SETTLED_S = 1.2
"""Counters reach the controller once a second."""
TIMEOUT_S = 5.0


class Watch:
    """A thread that reads the status of the controller while a job runs."""

    def __init__(self, controller: str, credentials: Path | None, job: int) -> None:
        self._controller, self._credentials, self._job = controller, credentials, job
        self._lock = threading.Lock()
        self._last: tuple[str, float] | None = None
        self._bytes: dict[tuple[str, str], int] = {}
        self._seen: dict[tuple[str, str], int] = {}
        self._late: dict[tuple[str, str, str], list[float]] = {}
        self._plans: list[dict[str, Any]] = []
        self._other_jobs: set[int] = set()
        self._other_hosts: set[str] = set()
        self._began = time.time()
        self.problem = ""
        """Why the last status is missing."""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="netsum-report-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._look()
        while not self._end.wait(PERIOD_S):
            self._look()

    def finish(self, last_end_s: float) -> None:
        """Read the last counters, of operations that ended at a time, and stop."""
        self._end.set()
        self._thread.join(2 * TIMEOUT_S)
        time.sleep(min(max(last_end_s + SETTLED_S - time.time(), 0.0), SETTLED_S))
        self._look()

    def _look(self) -> None:
        from netsum import NetsumError, _core

        with self._lock:
            try:
                text = _core.status(self._controller, TIMEOUT_S, self._credentials)
            except NetsumError as error:
                self.problem = str(error)
                return
            self.problem = ""
            status: ControllerStatus = json.loads(text)
            now = time.monotonic()
            self._count(status)
            if self._last is not None:
                before, at = self._last
                self._take_stragglers(json.loads(_core.stragglers(before, text, now - at)), now - at)
            self._take_plan(status)
            self._last = (text, now)

    def _count(self, status: ControllerStatus) -> None:
        """Add by how much the links' counters have grown; one that decreased has been restarted."""
        for link in status["links"]:
            for ends, count in (((link["a"], link["b"]), link["bytes_ab"]), ((link["b"], link["a"]), link["bytes_ba"])):
                before = self._seen.get(ends, count)
                self._bytes[ends] = self._bytes.get(ends, 0) + (count - before if count >= before else count)
                self._seen[ends] = count

    def _take_stragglers(self, found: list[Straggler], elapsed_s: float) -> None:
        for each in found:
            if each["job"] == self._job:
                times = self._late.setdefault((each["slow"], each["child"], each["at"]), [0.0, 0.0])
                times[0] += elapsed_s
                times[1] += each["share"] * elapsed_s

    def _take_plan(self, status: ControllerStatus) -> None:
        others = [job for job in status["jobs"] if job["state"] == "running" and job["job"] != self._job]
        self._other_jobs |= {job["job"] for job in others}
        self._other_hosts |= {rank["host"] for job in others for rank in job["ranks"]}
        own = self._own(status)
        if own and own["epoch"] and (not self._plans or self._plans[-1]["epoch"] != own["epoch"]):
            plan = {"at_unix_s": time.time(), "epoch": own["epoch"], "trees": len(own["trees"])}
            self._plans = [*self._plans, {**plan, "reason": own["reason"]}][-64:]

    def _own(self, status: ControllerStatus) -> JobStatus | None:
        return next((job for job in status["jobs"] if job["job"] == self._job), None)

    def written(self) -> dict[str, Any]:
        """For the file of rank 0. `fabric` is None if the controller has never answered."""
        with self._lock:
            found: dict[str, Any] = {"problem": self.problem, "fabric": None}
            if self._last is None:
                return found
            status: ControllerStatus = json.loads(self._last[0])
            own = self._own(status)
            ranks = (
                [{key: rank[key] for key in ("rank", "host", "pid", "state")} for rank in own["ranks"]] if own else []
            )
            return found | {
                "seconds": time.time() - self._began,
                "fabric": {
                    "name": status["fabric"],
                    "hosts": [host["name"] for host in status["hosts"]],
                    "switches": [
                        {key: switch[key] for key in ("name", "role", "host", "state", "memory_bytes")}
                        for switch in status["switches"]
                    ],
                    "links": [
                        {
                            "a": link["a"],
                            "b": link["b"],
                            "rate_bps": link["rate_bps"],
                            "bytes_ab": self._bytes.get((link["a"], link["b"]), 0),
                            "bytes_ba": self._bytes.get((link["b"], link["a"]), 0),
                        }
                        for link in status["links"]
                    ],
                },
                "job": {**own, "ranks": ranks} if own else None,
                "other_jobs": len(self._other_jobs),
                "other_hosts": sorted(self._other_hosts),
                "plans": self._plans,
                "stragglers": [
                    {"slow": slow, "child": child, "at": at, "seconds": seconds, "share": weighted / seconds}
                    for (slow, child, at), (seconds, weighted) in self._late.items()
                ],
            }
