"""What has happened, from the differences between two statuses."""

import time
from collections import deque
from collections.abc import Iterator
from typing import Literal, TypedDict

from netsum.reports import JOB_OVER, ControllerStatus, JobStatus

KEPT = 200
_BACK_S = 2.0

Level = Literal["info", "good", "warn", "bad"]


class Event(TypedDict):
    """One event; `subject` is the switch or the job that it is about, as "switch rack0" or "job 3"."""

    id: int
    at_unix_s: float
    level: Level
    subject: str
    text: str


class EventLog:
    """The last events, newest last."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._next = 1
        self._failing = False

    def newest_first(self) -> list[Event]:
        return list(reversed(self._events))

    def compare(self, before: ControllerStatus | None, now: ControllerStatus) -> None:
        """Add what has changed between two statuses, of which the first may be unknown."""
        if self._failing:
            self._failing = False
            self._add("good", "controller", "the controller answers again")
        if before is None:
            return
        if now["uptime_s"] + _BACK_S < before["uptime_s"]:
            self._add("warn", "controller", "the controller has started again; running jobs were not affected")
        for level, subject, text in (*_switches(before, now), *_store(before, now), *_jobs(before, now)):
            self._add(level, subject, text)

    def failed(self, text: str) -> None:
        """The controller does not answer; the first time counts."""
        if not self._failing:
            self._failing = True
            self._add("bad", "controller", text)

    def _add(self, level: Level, subject: str, text: str) -> None:
        self._events.append(
            {"id": self._next, "at_unix_s": time.time(), "level": level, "subject": subject, "text": text}
        )
        self._next += 1


Found = Iterator[tuple[Level, str, str]]


def _switches(before: ControllerStatus, now: ControllerStatus) -> Found:
    old = {switch["name"]: switch["state"] for switch in before["switches"]}
    for switch in now["switches"]:
        name, state = switch["name"], switch["state"]
        last = old.get(name, "expected")
        if state == last:
            continue
        if state == "down":
            jobs = len({tree["job"] for tree in switch["trees"]})
            used = f"; {jobs} job{'s' if jobs != 1 else ''} used it" if jobs else ""
            yield "bad", f"switch {name}", f"{switch['role']} {name} is down{used}"
        elif state == "up":
            yield "good", f"switch {name}", f"{switch['role']} {name} is up"


def _store(before: ControllerStatus, now: ControllerStatus) -> Found:
    old = before["store"]["problem"] if before["store"] else ""
    new = now["store"]["problem"] if now["store"] else ""
    if new and not old:
        yield "bad", "controller", f"the controller cannot save its state: {new}"
    elif old and not new:
        yield "good", "controller", "the controller can save its state again"


def _jobs(before: ControllerStatus, now: ControllerStatus) -> Found:
    old = {job["job"]: job for job in before["jobs"]}
    for job in now["jobs"]:
        subject, title = f"job {job['job']}", f"job {job['job']} ({job['name']})"
        last = old.get(job["job"])
        if last is None:
            yield "info", subject, f"{title} has begun, with {job['size']} ranks"
            continue
        if job["state"] != last["state"] and job["state"] in JOB_OVER:
            level: Level = "info" if job["state"] == "ended" else "warn"
            yield level, subject, f"{title} {'has ended' if job['state'] == 'ended' else 'was abandoned'}"
        if last["epoch"] and job["epoch"] != last["epoch"]:
            yield _replanned(job, last, subject, title)
        for event in _ranks(job, last):
            yield event[0], subject, f"{title}: {event[1]}"


def _replanned(job: JobStatus, last: JobStatus, subject: str, title: str) -> tuple[Level, str, str]:
    trees, were = len(job["trees"]), len(last["trees"])
    count = f"{trees} tree{'s' if trees != 1 else ''}" if trees else "the hosts add"
    reason = f": {job['reason']}" if job["reason"] else ""
    level: Level = "warn" if trees < were else "good" if trees > were else "info"
    return level, subject, f"{title} has a new plan, epoch {job['epoch']}: {count}{reason}"


def _ranks(job: JobStatus, last: JobStatus) -> Iterator[tuple[Level, str]]:
    for rank, old in zip(job["ranks"], last["ranks"], strict=False):
        if rank["state"] != old["state"] and rank["state"] in ("away", "lost"):
            level: Level = "bad" if rank["state"] == "lost" else "warn"
            yield level, f"rank {rank['rank']} ({rank['host']}, process {rank['pid']}) is {rank['state']}"
    pauses = {
        (p["at_unix_s"], p["what"]): p for r in job["ranks"] if r["statistics"] for p in r["statistics"]["pauses"]
    }
    known = {(p["at_unix_s"], p["what"]) for r in last["ranks"] if r["statistics"] for p in r["statistics"]["pauses"]}
    fresh = [pause for key, pause in pauses.items() if key not in known]
    if fresh:
        longest = max(fresh, key=lambda pause: pause["seconds"])
        yield "warn", f"paused for {longest['seconds']:.2f} s: {longest['what'].rstrip('; ')}"
