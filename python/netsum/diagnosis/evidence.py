"""What was found out about a job: the answers of its processes, the controller's status, and the system's view of
processes that do not answer. Parsed from JSON; everything of a process comes from that process and is bounded there."""

from dataclasses import dataclass, field
from typing import Any

from netsum.reports import ControllerStatus, Straggler

Frame = tuple[str, int, str]
"""File, line, function."""


@dataclass(frozen=True)
class Stack:
    """A thread's calls, innermost first. exception: what it is handling."""

    name: str
    main: bool
    tid: int | None
    frames: tuple[Frame, ...]
    exception: str | None = None


@dataclass(frozen=True)
class Thread:
    """The system's account of a thread over a quarter of a second, as shares of it. call: its system call."""

    tid: int
    name: str
    state: str
    running: float
    delayed: float
    call: str | None


@dataclass(frozen=True)
class Call:
    """An operation of a group. number: among its collectives, None for messages. seconds: None while it runs."""

    number: int | None
    words: str
    bytes: int
    called: float
    seconds: float | None
    error: str | None

    def timed_out(self) -> bool:
        """Whether it has failed because others did not come."""
        return self.error is not None and "did not finish within" in self.error


@dataclass(frozen=True)
class Membership:
    """One group of a process. stats: empty for a group of another library, as NCCL's communicators, whose ranks cannot
    ask each other."""

    group: str
    rank: int
    size: int
    places: tuple[str, ...]
    failure: str | None
    away: str | None
    next: int
    calls: tuple[Call, ...]
    silent: frozenset[int]
    peers: dict[int, tuple[int, str | None]]
    stats: dict[str, Any]

    def pending(self) -> list[Call]:
        """Collectives that have not ended, or that have timed out, in their order."""
        return [call for call in self.calls if call.number is not None and (call.seconds is None or call.timed_out())]


@dataclass(frozen=True)
class Process:
    """The answer of a process. silent_s: for how long its interpreter has not answered; None: it has. starved: share of
    the time for which a thread of this library, which sends and receives, waited for a processor."""

    pid: int
    at: float
    runnable: int
    processors: int
    pressure: float | None
    threads: tuple[Thread, ...]
    groups: dict[str, Membership]
    stacks: tuple[Stack, ...]
    uncaught: str | None = None
    silent_s: float | None = None
    starved: float = 0.0

    def main_thread(self) -> Thread | None:
        """The system's account of the main thread."""
        return next((thread for thread in self.threads if thread.tid == self.pid), None)

    def main_stack(self) -> Stack | None:
        """The main thread's calls."""
        return next((stack for stack in self.stacks if stack.main), None)


@dataclass(frozen=True)
class Round:
    """One round of answers, by rank of the job's largest group."""

    processes: dict[int, Process]


@dataclass(frozen=True)
class Case:
    """All that is known of a job. rounds: oldest first. places: host and process by rank, as words. outside: the
    system's state of processes that did not answer, by rank; None: there is no such process. job: its number at the
    controller."""

    group: str
    size: int
    rounds: list[Round]
    places: dict[int, str] = field(default_factory=dict)
    outside: dict[int, str | None] = field(default_factory=dict)
    job: int | None = None
    before: ControllerStatus | None = None
    now: ControllerStatus | None = None
    stragglers: list[Straggler] = field(default_factory=list)
    controller_error: str | None = None


def process(answer: dict[str, Any]) -> Process:
    """A process from its answer."""
    stacks = answer.get("stacks") or {}
    load = answer["load"]
    memberships = [_membership(group) for group in answer["groups"]]
    return Process(
        pid=answer["pid"],
        at=answer["unix_s"],
        runnable=load["runnable"],
        processors=load["processors"],
        pressure=load["pressure"],
        threads=tuple(
            Thread(t["tid"], t["name"], t["state"], t["running"], t["delayed"], t["call"]) for t in answer["threads"]
        ),
        groups={membership.group: membership for membership in memberships},
        stacks=_dumped(stacks["dump"]) if "dump" in stacks else _stacks(stacks),
        uncaught=stacks.get("uncaught"),
        silent_s=stacks.get("silent_s"),
        starved=library["delayed"] if (library := answer.get("library")) else 0.0,
    )


def _membership(group: dict[str, Any]) -> Membership:
    calls = [
        Call(op["number"], op["call"], op.get("bytes", 0), op["called_unix_s"], op["seconds"], op["error"])
        for op in group["operations"]
    ]
    return Membership(
        group=group["name"],
        rank=group["rank"],
        size=group["size"],
        places=tuple(group["places"]),
        failure=group["failure"],
        away=group["away"],
        next=group["next"],
        calls=tuple(calls),
        silent=frozenset(group["silent"]),
        peers={rank: (state["pid"], state["state"]) for rank, state in group["peers"]},
        stats=group["stats"] or {},
    )


def _stacks(stacks: dict[str, Any]) -> tuple[Stack, ...]:
    return tuple(
        Stack(t["name"], t["main"], t["tid"], tuple((f, n, q) for f, n, q in t["frames"]), t["exception"])
        for t in stacks.get("threads", [])
    )


def _dumped(text: str | None) -> tuple[Stack, ...]:
    """Stacks from the text of the interpreter's crash reports. Its last thread is the oldest: the main one."""
    found: list[list[Frame]] = []
    for line in (text or "").splitlines():
        line = line.strip()
        if line.startswith(("Thread ", "Current thread ")):
            found.append([])
        elif line.startswith('File "') and found:
            file, _, rest = line[len('File "') :].rpartition('", line ')
            number, _, function = rest.partition(" in ")
            found[-1].append((file, int(number) if number.isdigit() else 0, function))
    last = len(found) - 1
    return tuple(Stack("", index == last, None, tuple(frames)) for index, frames in enumerate(found))
