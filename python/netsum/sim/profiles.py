"""Folders of PyTorch's profiler, one file per rank: how many steps they have, and how long these took."""

import json
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from netsum.sim.errors import SimError


class Profiles(NamedTuple):
    """ranks: of the job; steps: that every rank has profiled; operations: of one step of rank 0, rounded down.

    recorded_s: the median over ranks of a step's mean time.
    """

    ranks: int
    steps: int
    operations: int
    recorded_s: float


def read(folder: Path) -> Profiles | None:
    """The steps of the traces in a folder; None if there are no files NAME.json.

    Raises SimError if a file has no steps of the profiler, or if ranks differ in them.
    """
    found: dict[Path, tuple[int, float, int]] = {path: _rank(path) for path in sorted(folder.glob("*.json"))}
    if not found:
        return None
    first, (steps, _, operations) = next(iter(found.items()))
    for path, (count, _, _) in found.items():
        if count != steps:
            raise SimError(f"{path}: {count} steps of the profiler, and {steps} in {first}")
    recorded_s = median(seconds for _, seconds, _ in found.values()) / steps
    return Profiles(len(found), steps, operations // steps, recorded_s)


def _rank(path: Path) -> tuple[int, float, int]:
    """Number of steps, their time in seconds, and the number of operations."""
    try:
        events = json.loads(path.read_text())["traceEvents"]
        steps = [event for event in events if _is(event, "user_annotation", "ProfilerStep#")]
        begins = [float(step["ts"]) for step in steps]
        ends = [float(step["ts"]) + float(step["dur"]) for step in steps]
        called = sum(_is(event, "cpu_op", "c10d::") for event in events)
        kernels = {event["args"].get("External id") for event in events if _is(event, "kernel", "nccl")}
    except OSError as error:
        raise SimError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SimError(f"{path}: no trace of PyTorch's profiler") from None
    if not steps:
        raise SimError(f"{path}: no steps of the profiler: give it a schedule, and call step() after each step")
    return len(steps), (max(ends) - min(begins)) * 1e-6, len(kernels) or called


def _is(event: Any, category: str, prefix: str) -> bool:
    return event.get("cat") == category and str(event.get("name")).startswith(prefix)
