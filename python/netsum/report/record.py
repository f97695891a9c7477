"""What one rank's group did, in bounded memory: sums per call, a sample of operations, the times of all steps."""

import json
import math
from typing import TYPE_CHECKING, Any

from netsum.fresh import FreshOperations
from netsum.report.repeating import training_steps
from netsum.reports import GroupStats, Recorded, RecordedOperation, TrainingStep

if TYPE_CHECKING:
    from netsum._core import Group

FORMAT = 1
CALLS_MAX = 512
"""Different calls that are counted apart; further ones are counted together."""
OTHER = "others"
BLOCK = 1024
"""Operations of a block: the sample has whole blocks, so that it has whole steps."""
SAMPLE_MAX = 8 * BLOCK
SERIES_MAX = 2000
RECENT = 2048
"""Operations in which steps are looked for."""
SEARCH_AT = 512
"""New operations after which steps are looked for."""
TOLERANCE_S = 1e-4
"""Steps are found in times that are rounded."""
SIZES = [1 << bits for bits in range(8, 31)]
"""Bytes for which the costs of hosts are asked."""


class Series:
    """Steps in the order of time, neighbours merged so that no more than SERIES_MAX rows remain."""

    def __init__(self) -> None:
        self.each = 1
        self.rows: list[list[float]] = []
        """Begin, and sums of duration, communication and exposed communication; the longest duration; steps."""
        self._last: TrainingStep | None = None
        self.count = 0

    def add(self, steps: list[TrainingStep]) -> None:
        """Take those that begin after all that have been taken."""
        for step in steps:
            last = self._last
            if last is not None and step["operations"] in range(2 * last["operations"], 1 << 30, last["operations"]):
                # What was taken for steps were parts of steps, all alike.
                self.rows, self.each, self.count, last = [], 1, 0, None
            if last is not None and step["began_s"] < last["began_s"] + last["seconds"] - TOLERANCE_S:
                continue
            self._last = step
            self.count += 1
            row = [step["began_s"], step["seconds"], step["communicating_s"], step["exposed_s"], step["seconds"], 1]
            if self.rows and self.rows[-1][5] < self.each:
                _merge(self.rows[-1], row)
            else:
                self.rows.append(row)
        while len(self.rows) > SERIES_MAX:
            self.each *= 2
            for one, other in zip(self.rows[::2], self.rows[1::2], strict=False):
                _merge(one, other)
            self.rows = self.rows[::2]


def _merge(row: list[float], other: list[float]) -> None:
    for at in (1, 2, 3, 5):
        row[at] += other[at]
    row[4] = max(row[4], other[4])


class GroupRecord:
    """The record of one group at this rank."""

    def __init__(self) -> None:
        self._fresh = FreshOperations()
        self._calls: dict[tuple[str, int], dict[str, Any]] = {}
        self._stride = 1
        self._sample: list[tuple[int, int, float, float]] = []
        self._recent: dict[int, tuple[str, int, float, float]] = {}
        self._steps = Series()
        self._unsearched = 0
        self._recorded: Recorded | None = None
        self._stats: GroupStats | None = None
        self.last_end_s = 0.0

    def fold(self, core: "Group") -> int:
        """Take what has ended since the last call; returns how many operations that are."""
        recorded: Recorded | None = json.loads(core.recorded()) or None
        stats: GroupStats | None = json.loads(core.stats()) or None
        if recorded is None or stats is None:
            # Not connected yet, or closed.
            return 0
        self._recorded, self._stats = recorded, stats
        fresh = self._fresh.take(recorded)
        for number, operation in fresh:
            self._take(number, operation)
        self._unsearched += len(fresh)
        if self._unsearched >= SEARCH_AT:
            self._find_steps()
        return len(fresh)

    @property
    def connected(self) -> bool:
        return self._stats is not None

    @property
    def watched_job(self) -> int | None:
        """The job of the controller that this rank is to watch: rank 0 does."""
        is_first = self._recorded is not None and self._recorded["rank"] == 0
        return self._stats["job"] if is_first and self._stats is not None else None

    def _take(self, number: int, operation: RecordedOperation) -> None:
        seconds, size = operation["seconds"] or 0.0, operation.get("bytes", 0)
        call = self._call(operation["call"], size, operation.get("dtype"))
        call["count"] += 1
        call["seconds"] += seconds
        call["shortest_s"] = min(call["shortest_s"], seconds)
        call["longest_s"] = max(call["longest_s"], seconds)
        call["failed"] += operation["error"] is not None
        called = operation["called_unix_s"]
        self.last_end_s = max(self.last_end_s, called + seconds)
        self._recent[number] = (operation["call"], size, called, called + seconds)
        if number // BLOCK % self._stride == 0:
            self._sample.append((number, call["index"], called, seconds))
            while len(self._sample) > SAMPLE_MAX:
                self._stride *= 2
                self._sample = [each for each in self._sample if each[0] // BLOCK % self._stride == 0]

    def _call(self, name: str, size: int, dtype: str | None) -> dict[str, Any]:
        key = (name, size)
        if key not in self._calls and len(self._calls) >= CALLS_MAX:
            key, dtype = (OTHER, 0), None
        if key not in self._calls:
            self._calls[key] = {
                "index": len(self._calls),
                "call": key[0],
                "bytes": key[1],
                "dtype": dtype,
                "count": 0,
                "seconds": 0.0,
                "shortest_s": math.inf,
                "longest_s": 0.0,
                "failed": 0,
            }
        return self._calls[key]

    def _find_steps(self) -> None:
        self._unsearched = 0
        numbers = sorted(self._recent)
        for number in numbers[:-RECENT]:
            del self._recent[number]
        self._steps.add(training_steps([self._recent[number] for number in numbers[-RECENT:]]))

    def written(self) -> dict[str, Any] | None:
        """The content of the rank's file but for what rank 0 alone knows; None before the group is connected."""
        recorded, stats = self._recorded, self._stats
        if recorded is None or stats is None:
            return None
        self._find_steps()
        base = min((called for _, _, called, _ in self._sample), default=0.0)
        return {
            "format": FORMAT,
            "group": recorded["group"],
            "rank": recorded["rank"],
            "size": recorded["size"],
            "place": recorded["place"],
            "failure": recorded["failure"],
            "written_unix_s": recorded["written_unix_s"],
            "stats": stats,
            "lost": self._fresh.lost,
            "calls": list(self._calls.values()),
            "sample": {
                "block": BLOCK,
                "stride": self._stride,
                "from_unix_s": base,
                # Number, index of the call, microseconds from there to the call, and from the call to its end.
                "operations": [[n, i, round((at - base) * 1e6, 1), round(s * 1e6, 1)] for n, i, at, s in self._sample],
            },
            "steps": {"count": self._steps.count, "rows": self._steps.rows},
        }


def host_costs(core: "Group", written: dict[str, Any]) -> list[dict[str, Any]]:
    """What operations of the hosts' path cost by size, for each kind and type of the calls: the model's choice."""
    from netsum import NetsumError

    kinds: dict[tuple[str, str, str], int] = {}
    for call in written["calls"]:
        words = call["call"].split()
        if call["dtype"] and len(words) > 1:
            kind = (words[0], call["dtype"], words[-1])
            kinds[kind] = kinds.get(kind, 0) + call["count"]
    found = []
    for operation, dtype, op in sorted(kinds, key=lambda kind: -kinds[kind])[:8]:
        try:
            costs = [(size, json.loads(core.explain(operation, size, dtype, op))) for size in SIZES]
        except NetsumError:
            # An operation with one way, or one that hosts cannot do on this type.
            continue
        rows = [[size, each["chosen"], dict((c["name"], c["seconds"]) for c in each["costs"])] for size, each in costs]
        found.append({"operation": operation, "dtype": dtype, "op": op, "rows": rows})
    return found
