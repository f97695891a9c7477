"""The files of a job's ranks, and their operations by number."""

import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from netsum.report.record import FORMAT, SAMPLE_MAX
from netsum.reports import GroupStats

RANKS_MAX = 1 << 20
OPERATIONS_MAX = 1 << 20
"""Operations of all ranks that are kept; larger jobs are looked at in fewer blocks."""
_PATTERN = "netsum-report-*.json"


class ReportError(Exception):
    """Unusable files; the message names them."""


@dataclass(frozen=True)
class Call:
    """One kind of call with its sizes, and how often and how long a rank had it."""

    name: str
    nbytes: int
    dtype: str | None
    count: int
    seconds: float
    shortest_s: float
    longest_s: float
    failed: int

    @property
    def kind(self) -> str:
        return self.name.split()[0]

    @property
    def op(self) -> str:
        return self.name.split()[-1]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the sample. called_s: since the first one of its rank's sample. call: index of its kind."""

    number: int
    call: int
    called_s: float
    seconds: float

    @property
    def ended_s(self) -> float:
        return self.called_s + self.seconds


@dataclass(frozen=True)
class StepRow:
    """Some steps in a row: when the first began (Unix), their sums, the longest, and how many they are."""

    began_unix_s: float
    seconds: float
    communicating_s: float
    exposed_s: float
    longest_s: float
    count: int


@dataclass(frozen=True)
class RankFile:
    """What one rank has written. `costs` and `controller` are of rank 0."""

    path: Path
    group: str
    rank: int
    size: int
    place: str
    failure: str | None
    ended: bool
    written_unix_s: float
    stats: GroupStats
    settings: dict[str, str]
    lost: int
    calls: list[Call]
    operations: list[Operation]
    steps: list[StepRow]
    costs: list[dict[str, Any]]
    controller: dict[str, Any] | None

    @cached_property
    def by_number(self) -> dict[int, Operation]:
        return {operation.number: operation for operation in self.operations}


@dataclass(frozen=True)
class Job:
    """The files of one group. `folder`: where they are."""

    folder: Path
    group: str
    size: int
    ranks: dict[int, RankFile]

    @property
    def missing(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.ranks]

    @property
    def first(self) -> RankFile:
        """The file of the lowest rank, which is rank 0 if that has left one."""
        return self.ranks[min(self.ranks)]


def read(folder: Path, group: str | None = None) -> Job:
    """The job of a folder: of its groups the named one, or the largest, and of these the one with most operations.

    Raises ReportError, which names the file.
    """
    if not folder.is_dir():
        raise ReportError(f"{folder}: no such folder; run the ranks with NETSUM_REPORT={folder}")
    paths = sorted(folder.glob(_PATTERN))
    if not paths:
        raise ReportError(f"{folder}: no files {_PATTERN}; run the ranks with NETSUM_REPORT={folder}")
    groups: dict[str, dict[int, RankFile]] = {}
    thin = -(-len(paths) * SAMPLE_MAX // OPERATIONS_MAX)
    for path in paths:
        file = _parse(path, thin)
        other = groups.setdefault(file.group, {}).setdefault(file.rank, file)
        if other is not file:
            raise ReportError(
                f"{path}: a second file of group {file.group}, rank {file.rank}, beside {other.path.name}"
            )
    if group is not None and group not in groups:
        raise ReportError(f"{folder}: no group {group}; there are {', '.join(sorted(groups))}")
    chosen = group if group is not None else max(groups, key=lambda name: _weight(groups[name]))
    ranks = groups[chosen]
    runs = Counter((file.size, file.stats["job"]) for file in ranks.values())
    usual = runs.most_common(1)[0][0]
    for file in ranks.values():
        if (file.size, file.stats["job"]) != usual:
            raise ReportError(f"{file.path}: is of another run than the other files of group {chosen}; remove it")
    return Job(folder, chosen, usual[0], ranks)


def _weight(ranks: dict[int, RankFile]) -> tuple[int, int]:
    file = next(iter(ranks.values()))
    return file.size, file.stats["operations"]


def _parse(path: Path, thin: int) -> RankFile:
    """thin: of so many blocks of operations one is kept."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["format"] != FORMAT:
            raise ReportError(f"{path}: format {value['format']}, and this netsum reads {FORMAT}")
        rank, size = int(value["rank"]), int(value["size"])
        if not 0 <= rank < size <= RANKS_MAX:
            raise ReportError(f"{path}: rank {rank} of {size} is impossible; was it written by netsum?")
        calls = [_call(each) for each in value["calls"]]
        sample = value["sample"]
        apart = int(sample["block"]) * int(sample["stride"])
        rows = [row for row in sample["operations"] if int(row[0]) // apart % thin == 0]
        operations = [Operation(int(n), int(i), at / 1e6, us / 1e6) for n, i, at, us in rows]
        if any(not 0 <= operation.call < len(calls) for operation in operations):
            raise ReportError(f"{path}: an operation of a call that is not listed; was it written by netsum?")
        stats: GroupStats = value["stats"]
        for key in ("job", "path", "trees", "pauses", "link", "operations", "network_operations"):
            if key not in stats:
                raise KeyError(f"stats.{key}")
        return RankFile(
            path,
            str(value["group"]),
            rank,
            size,
            str(value["place"]),
            value["failure"],
            bool(value["ended"]),
            float(value["written_unix_s"]),
            stats,
            {str(name): str(setting) for name, setting in value["settings"].items()},
            int(value["lost"]),
            calls,
            sorted(operations, key=lambda operation: operation.number),
            [_step(*row) for row in value["steps"]["rows"]],
            value.get("costs", []),
            value.get("controller"),
        )
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        OverflowError,
        RecursionError,
        AttributeError,
    ) as error:
        raise ReportError(f"{path}: is not a file of NETSUM_REPORT ({error!r})") from error


def _step(began: float, seconds: float, communicating: float, exposed: float, longest: float, count: int) -> StepRow:
    return StepRow(float(began), float(seconds), float(communicating), float(exposed), float(longest), int(count))


def _call(value: dict[str, Any]) -> Call:
    return Call(
        str(value["call"]),
        int(value["bytes"]),
        value["dtype"],
        int(value["count"]),
        float(value["seconds"]),
        float(value["shortest_s"]),
        float(value["longest_s"]),
        int(value["failed"]),
    )
