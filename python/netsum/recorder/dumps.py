"""The dump files of ranks: netsum-GROUP-rankN.json, written by the core."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
RANKS_MAX = 1 << 20


class RecorderError(Exception):
    """Unusable files; the message names them."""


@dataclass(frozen=True)
class Operation:
    """One call. number: its position among the group's collectives; None for messages between two ranks.

    called: seconds since 1970 by the rank's clock. seconds: until it ended; None if it had not. error: why it failed.
    """

    number: int | None
    call: str
    called: float
    seconds: float | None
    error: str | None
    dtype: str | None = None
    nbytes: int | None = None


@dataclass(frozen=True)
class Dump:
    """One rank's last operations, oldest first. failure: why its group is unusable; None if it is not."""

    group: str
    rank: int
    size: int
    place: str
    why: str
    failure: str | None
    written: float
    operations: list[Operation]

    @property
    def collectives(self) -> dict[int, Operation]:
        return {each.number: each for each in self.operations if each.number is not None}


def read(folder: Path) -> dict[str, dict[int, Dump]]:
    """Dumps by group and rank. Raises RecorderError if there are none, or for an invalid file."""
    files = sorted(folder.glob("netsum-*.json"))
    if not files:
        raise RecorderError(f"{folder}: no files netsum-*.json; run the ranks with NETSUM_RECORDER={folder}")
    groups: dict[str, dict[int, Dump]] = {}
    for file in files:
        dump = _parse(file)
        other = groups.setdefault(dump.group, {}).setdefault(dump.rank, dump)
        if other is not dump:
            raise RecorderError(f"{file}: a second file of group {dump.group}, rank {dump.rank}")
    for name, dumps in groups.items():
        sizes = {dump.size for dump in dumps.values()}
        if len(sizes) > 1:
            raise RecorderError(f"group {name}: its files say sizes {sorted(sizes)}; do they come from one run?")
    return groups


def _parse(file: Path) -> Dump:
    try:
        value = json.loads(file.read_text())
        if value["format"] != FORMAT:
            raise RecorderError(f"{file}: format {value['format']}, and this netsum reads {FORMAT}")
        operations = [_operation(each) for each in value["operations"]]
        rank, size = int(value["rank"]), int(value["size"])
        if not 0 <= rank < size <= RANKS_MAX:
            raise RecorderError(f"{file}: rank {rank} of {size} is impossible; was it written by netsum?")
        return Dump(
            str(value["group"]),
            rank,
            size,
            str(value["place"]),
            str(value["why"]),
            value["failure"],
            float(value["written_unix_s"]),
            operations,
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, AttributeError) as error:
        raise RecorderError(f"{file}: is not a file of netsum's recorder ({error!r})") from error


def _operation(value: dict[str, Any]) -> Operation:
    number = value["number"]
    return Operation(
        None if number is None else int(number),
        str(value["call"]),
        float(value["called_unix_s"]),
        None if value["seconds"] is None else float(value["seconds"]),
        value["error"],
        value.get("dtype"),
        value.get("bytes"),
    )
