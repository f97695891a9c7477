"""Collects the evidence of a job: over its controller, over the sockets of this host's processes, or, from within a
rank, over the mesh."""

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from netsum import NetsumError, _core
from netsum.diagnosis.evidence import Case, Membership, Process, Round, process
from netsum.fabric.errors import FabricError
from netsum.fabric.local import controller_status
from netsum.fabric.stragglers import between
from netsum.reports import JOB_OVER, ControllerStatus, Straggler

ROUNDS = 3
PATIENCE_S = 0.5
"""A process observes its threads for a quarter of a second."""
_PID = re.compile(r"pid (\d+)")

Answers = dict[int, Process]


class WhyError(Exception):
    """There is nobody to ask."""


def of_controller(address: str, job: int | None, credentials: Path | None) -> Case:
    """The case of a job of a controller; `job` None: its only running one."""
    folder = credentials or (Path(os.environ["NETSUM_CREDENTIALS"]) if "NETSUM_CREDENTIALS" in os.environ else None)
    before = controller_status(address, credentials=folder)
    running = [each for each in before["jobs"] if each["state"] not in JOB_OVER]
    numbers = ", ".join(f"{each['job']} ({each['name']})" for each in running) or "none"
    if job is None:
        if len(running) != 1:
            raise WhyError(f"name a job; running are: {numbers}")
        job = running[0]["job"]
    found = next((each for each in before["jobs"] if each["job"] == job), None)
    if found is None:
        raise WhyError(f"controller {address} has no job {job}; running are: {numbers}")
    if found["state"] in JOB_OVER:
        raise WhyError(f"job {job} is over ({found['state']}); running are: {numbers}")
    places = {rank["rank"]: f"host {rank['host']}, pid {rank['pid']}" for rank in found["ranks"]}
    number = job

    def ask() -> Answers:
        return _by_rank(_core.ask_ranks(address, number, PATIENCE_S, PATIENCE_S + 2, folder))

    began = time.monotonic()
    rounds = _rounds(ask)
    now = controller_status(address, credentials=folder)
    elapsed = time.monotonic() - began
    return _case(found["name"], found["size"], rounds, places, job, before, now, elapsed)


def of_sockets(
    name: str | None, controller: str | None = None, credentials: Path | None = None, job: int | None = None
) -> Case:
    """The case of a group of this host's processes, by its name; None: the only one, or the largest of one job. Raises
    WhyError if the processes are of several jobs and none is named."""
    sockets = _sockets()
    if not sockets:
        raise WhyError(f"no process of netsum answers in {_core.socket_folder()}")
    answers = _ask_all(sockets)
    chosen = choose([m for answer in answers.values() for m in answer.groups.values()], name, job)
    if name is None and job is None and (others := others_than(chosen, answers.values())):
        raise WhyError(f"processes of this host are in groups of several jobs; name one: {', '.join(others)}")
    size, group = chosen.size, chosen.group
    gate = next(socket for pid, socket in sockets.items() if pid in answers and _is_in(answers[pid], chosen))
    all_here = sum(_is_in(answer, chosen) for answer in answers.values()) == size

    def ask() -> Answers:
        if all_here or not chosen.stats:
            return {each.groups[group].rank: each for each in _ask_all(sockets).values() if _is_in(each, chosen)}
        # Ranks on other hosts are asked over the mesh of one of this host; those here answer for themselves, too.
        return _by_rank(_core.ask_process(gate, group, PATIENCE_S))

    before = _status(controller, credentials)
    began = time.monotonic()
    rounds = _rounds(ask)
    now = _status(controller, credentials)
    places = dict(enumerate(chosen.places))
    return _case(group, size, rounds, places, chosen.stats.get("job"), before, now, time.monotonic() - began)


def choose(memberships: list[Membership], name: str | None, job: int | None) -> Membership:
    """The membership of the group of that name and job, else of the largest one, of netsum's if there are any: their
    ranks on other hosts can be asked. Raises WhyError if there is none."""
    found = [m for m in memberships if name in (None, m.group) and job in (None, m.stats.get("job"))]
    if found:
        return max(found, key=lambda membership: (bool(membership.stats), membership.size))
    known = ", ".join(sorted({m.group for m in memberships})) or "none"
    wanted = (f" {name!r}" if name is not None else "") + (f" of job {job}" if job is not None else "")
    raise WhyError(f"no process of this host is in a group{wanted}; groups are: {known}")


def others_than(chosen: Membership, answers: Collection[Process]) -> list[str]:
    """The names of all groups if some processes are not in the chosen one, and hence of another job; else none."""
    if all(_is_in(process, chosen) or not process.groups for process in answers):
        return []
    return sorted({group for process in answers for group in process.groups})


def _is_in(process: Process, chosen: Membership) -> bool:
    """Whether a process is in that very group; others may have its name."""
    membership = process.groups.get(chosen.group)
    return membership is not None and (membership.size, membership.places) == (chosen.size, chosen.places)


def of_own_group(core: Any, patience_s: float = PATIENCE_S) -> Case:
    """The case of a group of this process: its ranks are asked over the mesh."""
    recorded = json.loads(core.recorded())
    if not recorded:
        raise WhyError("the group is closed")
    rounds = _rounds(lambda: _by_rank(core.ask(patience_s)), count=2)
    places: dict[int, str] = {}
    for answer in rounds[-1].processes.values():
        if recorded["group"] in answer.groups:
            places.update(enumerate(answer.groups[recorded["group"]].places))
    return _case(recorded["group"], recorded["size"], rounds, places, None, None, None, 0.0)


def _case(
    group: str,
    size: int,
    rounds: list[Round],
    places: dict[int, str],
    job: int | None,
    before: ControllerStatus | None,
    now: ControllerStatus | None,
    elapsed: float,
) -> Case:
    stragglers: list[Straggler] = []
    if before and now:
        stragglers = [each for each in between(before, now, elapsed) if each["job"] == job]
    outside = _outside(group, size, rounds[-1].processes, places)
    return Case(group, size, rounds, places, outside, job, before, now, stragglers)


def _rounds(ask: Callable[[], Answers], count: int = ROUNDS) -> list[Round]:
    return [Round(ask()) for _ in range(count)]


def _outside(group: str, size: int, answers: Answers, places: dict[int, str]) -> dict[int, str | None]:
    """The system's state of processes that did not answer, as a process on their host sees it."""
    found: dict[int, str | None] = {}
    missing = [rank for rank in range(size) if rank not in answers]
    for rank in missing:
        for answer in answers.values():
            membership = answer.groups.get(group)
            if membership and rank in membership.peers:
                found[rank] = membership.peers[rank][1]
        match = _PID.search(places.get(rank, ""))
        if rank not in found and match and int(match[1]) in _sockets():
            # Its socket is on this host, so it is a process of this host.
            found[rank] = _state(int(match[1]))
    return found


def _state(pid: int) -> str | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state = text[text.rindex(")") + 2]
    return None if state in "ZX" else state


def _sockets() -> dict[int, Path]:
    folder = _core.socket_folder()
    return {int(path.stem): path for path in folder.glob("*.sock") if path.stem.isdigit()}


def _ask_all(sockets: dict[int, Path]) -> dict[int, Process]:
    """The answers of this host's processes, by process."""

    def one(path: Path) -> Process | None:
        try:
            return process(json.loads(_core.ask_process(path, "", PATIENCE_S)))
        except (NetsumError, ValueError):
            return None

    with ThreadPoolExecutor(max_workers=min(len(sockets), 64)) as pool:
        found = dict(zip(sockets, pool.map(one, sockets.values()), strict=True))
    return {pid: answer for pid, answer in found.items() if answer is not None}


def _by_rank(text: str) -> Answers:
    found: Answers = {}
    # The process that was asked may have ended meanwhile.
    for rank, answer in (json.loads(text or "null") or {}).items():
        # What a rank writes is its own affair; an answer that is none is left out.
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found[int(rank)] = process(answer)
    return found


def _status(controller: str | None, credentials: Path | None) -> ControllerStatus | None:
    if controller is None:
        return None
    try:
        return controller_status(controller, timeout_s=1.0, credentials=credentials)
    except FabricError:
        return None
