"""The step time of a recorded job on another cluster: files of netsum's recorder or of PyTorch's profiler, replayed by
the simulator."""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from netsum.recorder import dumps
from netsum.report.repeating import training_steps
from netsum.sim import profiles
from netsum.sim.errors import SimError
from netsum.sim.runner import run

LONGEST = "3500s"
"""Simulated time after which a replay is given up."""
SETTINGS = {"switch", "host", "tcp"}
"""Tables of a configuration that describe a cluster."""


@dataclass(frozen=True)
class Prediction:
    """Times in seconds. steps: how many were replayed; operations: of one step.

    recorded_s: the median over ranks of a step's mean time in the recording. predicted_s: the mean time of a step in
    the replay. computing_s: the same without any time for communication.
    """

    scheme: str
    ranks: int
    steps: int
    operations: int
    recorded_s: float
    predicted_s: float
    computing_s: float


@dataclass(frozen=True)
class Part:
    """The part of a recording that is replayed: whole steps, from operation `first` on."""

    group: str
    ranks: int
    first: int
    steps: int
    operations: int
    recorded_s: float

    @property
    def numbers(self) -> list[int]:
        """The first operation, and the one after the last."""
        return [self.first, self.first + self.steps * self.operations]


def part(folder: Path, group: str | None = None) -> Part:
    """Finds the steps that all ranks of a group have recorded. Raises SimError if there are none, or RecorderError."""
    groups = dumps.read(folder)
    if group is None:
        if len(groups) > 1:
            raise SimError(f"{folder}: files of several groups; name one of {', '.join(sorted(groups))}")
        group = next(iter(groups))
    if group not in groups:
        raise SimError(f"{folder}: no files of a group {group!r}; there are {', '.join(sorted(groups))}")
    ranks = groups[group]
    size = next(iter(ranks.values())).size
    if len(ranks) < size:
        missing = next(rank for rank in range(size) if rank not in ranks)
        raise SimError(f"{folder}: group {group} has {size} ranks, and the file of rank {missing} is missing")
    complete = {rank: _complete(dump) for rank, dump in ranks.items()}
    common = set.intersection(*(set(numbers) for numbers in complete.values()))
    if not common:
        raise SimError(f"{folder}: no operation of group {group} is complete in the files of all ranks")
    # The time before the first operation of a step is known from the operation before it.
    begin, end = min(common) + 1, max(common) + 1
    first, count, each = _steps(complete[0], begin, end, folder)
    spans = [(numbers[first + count * each].called - numbers[first].called) / count for numbers in complete.values()]
    return Part(group, size, first, count, each, median(spans))


def _complete(dump: dumps.Dump) -> dict[int, dumps.Operation]:
    return {number: each for number, each in dump.collectives.items() if each.seconds is not None and not each.error}


def _steps(numbers: dict[int, dumps.Operation], begin: int, end: int, folder: Path) -> tuple[int, int, int]:
    """The first operation of the first step, the number of steps, and the operations of each."""
    ordered = [numbers[number] for number in range(begin, end) if number in numbers]
    calls = [
        (each.call.split()[0], each.nbytes or 0, each.called, each.called + (each.seconds or 0.0)) for each in ordered
    ]
    by_time = {each.called: each.number for each in ordered}
    steps = training_steps(calls)
    if len(steps) < 2:
        raise SimError(f"{folder}: no steps that repeat are found in {len(calls)} operations; record more of them")
    each = steps[0]["operations"]
    begins = [by_time[step["began_s"]] for step in steps]
    first = begins[0]
    if first is None:
        raise SimError(f"{folder}: the first step is not recorded")
    # Steps in a row; the last one only ends where the next one would begin.
    count = 1
    while count < len(begins) and begins[count] == first + count * each:
        count += 1
    while count > 0 and first + count * each not in numbers:
        count -= 1
    if count == 0:
        raise SimError(f"{folder}: no whole step is recorded; record more operations")
    return first, count, each


def predict(
    folder: Path | str,
    fabric: Path | str | dict[str, Any],
    *,
    scheme: str | dict[str, Any] = "ring",
    group: str | None = None,
    hosts: list[int] | None = None,
    ranks: dict[str, Any] | None = None,
    compute_scale: float = 1.0,
    threads: int = 1,
    settings: dict[str, Any] | None = None,
    out: Path | str | None = None,
) -> Prediction:
    """Replay the recording of a job on a fabric.

    folder: of NETSUM_RECORDER or of PyTorch's profiler, with the files of all ranks. fabric: a fabric file, or a table
    `fabric` of a configuration. scheme, hosts, ranks: as in a configuration of the simulator. compute_scale: computing
    takes so many times as long as recorded. settings: tables `switch`, `host` and `tcp` of a configuration: how the
    cluster's queues and its transport are. out: folder for the tables of the replay. Raises SimError, RecorderError.
    """
    unknown = set(settings or {}) - SETTINGS
    if unknown:
        raise SimError(f"settings: {', '.join(sorted(unknown))}: expected {', '.join(sorted(SETTINGS))}")
    folder = Path(folder)
    found, replay = _recorded(folder, group)
    replay["compute_scale"] = compute_scale
    if not isinstance(fabric, dict):
        fabric = {"kind": "file", "path": str(Path(fabric).resolve())}
    kind = {"kind": scheme} if isinstance(scheme, str) else scheme
    job: dict[str, Any] = {"replay": replay}
    if ranks is not None:
        job["ranks"] = ranks
    if hosts is not None:
        job["hosts"] = hosts
    config = {
        "name": f"prediction for {folder.name}",
        "duration": LONGEST,
        "stop_with_jobs": True,
        "threads": threads,
        "fabric": fabric,
        "scheme": kind,
        "jobs": [job],
        **(settings or {}),
    }
    predicted_s = _replayed(config, out) / found.steps
    alone = {**config, "fabric": {"kind": "single-switch", "hosts": 2}, "scheme": {"kind": "ring"}}
    local = {"per_host": found.ranks, "local_rate": "100000Tbit/s", "local_latency": "0ns"}
    alone["jobs"] = [{"replay": replay, "ranks": local}]
    computing_s = _replayed(alone, None) / found.steps
    name = str(kind.get("kind", "panama"))
    return Prediction(name, found.ranks, found.steps, found.operations, found.recorded_s, predicted_s, computing_s)


def _recorded(folder: Path, group: str | None) -> tuple[Part | profiles.Profiles, dict[str, Any]]:
    """The steps that a folder has, and the table `replay` of a job that runs them."""
    path = str(folder.resolve())
    if not any(folder.glob("netsum-*.json")) and (found := profiles.read(folder)):
        if group is not None:
            raise SimError(f"{folder}: a trace of PyTorch's profiler has all groups, and is replayed with all of them")
        return found, {"format": "pytorch", "path": path}
    recorded = part(folder, group)
    # As the files are named.
    name = re.sub(r"[^A-Za-z0-9_]", "-", recorded.group)
    return recorded, {"format": "recorder", "path": path, "group": name, "operations": recorded.numbers}


def _replayed(config: dict[str, Any], out: Path | str | None) -> float:
    """The time of the only step of the only job, in seconds."""
    with tempfile.TemporaryDirectory(prefix="netsum-predict-") as temporary:
        result = run(config, out or temporary)
        steps = result.rows("steps")
        if not steps:
            why = "; ".join(result.summary["refused"]) or f"it takes longer than {LONGEST}"
            raise SimError(f"the replay does not end: {why}")
        return float(steps[0]["end_us"] - steps[0]["start_us"]) * 1e-6
