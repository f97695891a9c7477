"""Measures all libraries in turn at every size, and makes rows for people and scripts."""

import math
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netsum.bench.cases import Case
from netsum.bench.libraries import Library, Unsupported
from netsum.bench.ranks import Command

Ask = Callable[[Command], tuple[int | None, list[float]]]
"""Measures one library: returns wrong elements (None if the library does not check) and seconds."""
_PROBE = 3
_ITERATIONS = (10, 2000)
"""Least and most iterations of a round, by default."""


@dataclass(frozen=True)
class Plan:
    """Number and length of measurements.

    iterations: of a round, or as many as fit `seconds`. warmup: calls before each round. rounds: libraries alternate.
    """

    rounds: int = 3
    iterations: int | None = None
    seconds: float = 0.2
    warmup: int = 5
    check: bool = True


@dataclass
class Row:
    """One library at one size. seconds: of every iteration's slowest rank. wrong: wrong elements; None if not
    checked."""

    case: Case
    library: str
    ranks: int
    seconds: list[float] = field(default_factory=list)
    wrong: int | None = None
    problem: str = ""
    """Why there are no times."""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def p99(self) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(math.ceil(0.99 * len(ordered)), len(ordered)) - 1]

    def to_json(self) -> dict[str, Any]:
        case = self.case
        what = {"operation": case.operation, "bytes": case.nbytes, "dtype": case.dtype, "reduction": case.reduction}
        what |= {"library": self.library, "ranks": self.ranks}
        if self.problem:
            return what | {"problem": self.problem}
        rates = {"algbw": case.algbw(self.median), "busbw": case.busbw(self.median, self.ranks)}
        times = {"median": self.median, "best": self.best, "p99": self.p99}
        return what | {"seconds": times, "bytes_per_s": rates, "iterations": len(self.seconds), "wrong": self.wrong}


def measure(worlds: list[Library], cases: Iterable[Case], ranks: int, plan: Plan) -> Iterator[list[Row]]:
    """One row per case and library, in the order of `worlds`; each round begins with a different library."""

    for case in cases:
        rows = {world.name: Row(case, world.name, ranks) for world in worlds}
        iterations: dict[str, int] = {}
        for turn in range(plan.rounds):
            first = turn % len(worlds)
            for world in worlds[first:] + worlds[:first]:
                take_turn(rows[world.name], world.measure, plan, iterations)
        yield list(rows.values())


def take_turn(row: Row, ask: Ask, plan: Plan, known: dict[str, int]) -> None:
    """One round of one library, added to its row. known: iterations of a round by library."""
    if row.problem:
        return
    try:
        if row.library not in known:
            known[row.library] = plan.iterations or _fitting(row.case, ask, plan)
        wrong, seconds = ask(Command(row.case, plan.warmup, known[row.library], plan.check))
    except Unsupported as reason:
        row.problem = str(reason)
        return
    row.seconds += seconds
    if plan.check and wrong is not None:
        row.wrong = (row.wrong or 0) + wrong


def machine() -> str:
    """Processor, cores and kernel."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        info = ""
    model = next((line.partition(": ")[2] for line in info.splitlines() if line.startswith("model name")), "unknown")
    return f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def _fitting(case: Case, ask: Ask, plan: Plan) -> int:
    _, seconds = ask(Command(case, plan.warmup, _PROBE, check=False))
    least, most = _ITERATIONS
    return min(max(int(plan.seconds / (statistics.median(seconds) * case.messages)), least), most)
