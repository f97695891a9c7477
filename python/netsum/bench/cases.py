"""The measured cases: operations, element types, sizes, and the rates computed from a time."""

import re
from dataclasses import dataclass

OPERATIONS = (
    "allreduce",
    "reduce",
    "broadcast",
    "allgather",
    "gather",
    "scatter",
    "reduce_scatter",
    "alltoall",
    "sendrecv",
    "latency",
    "bandwidth",
    "barrier",
)
POINT = ("latency", "bandwidth")
"""Operations between ranks 0 and 1 alone, as in ucx_perftest and OSU: latency goes there and back, bandwidth one
way."""
COMBINING = ("allreduce", "reduce", "reduce_scatter")
"""Operations that add; element type and reduce operation matter for these alone."""
REDUCTIONS = ("sum", "avg", "min", "max", "product")
WIDTHS = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
}
_DIVIDED = ("allgather", "gather", "scatter", "reduce_scatter", "alltoall")
_TOGETHER = 8 << 20
"""Bytes of the messages in a row, within 2 and 64 messages."""
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class BenchError(Exception):
    """An invalid request to `netsum bench`; the message says what to do instead."""


@dataclass(frozen=True)
class Case:
    """One operation at one size.

    nbytes: of the larger of a rank's buffers, as in nccl-tests; for operations that divide a buffer among ranks, the
    sum of all parts. A whole number of elements per rank.
    """

    operation: str
    dtype: str
    reduction: str
    nbytes: int

    @property
    def width(self) -> int:
        return WIDTHS[self.dtype]

    @property
    def messages(self) -> int:
        """Messages in a row per call: for latency, half of them go there and half back; for bandwidth, all go one way.

        The time of a call is divided by this number.
        """
        if self.operation not in POINT:
            return 1
        # Even, because half of a latency's messages go back.
        return min(max(_TOGETHER // max(self.nbytes, 1), 2), 64) // 2 * 2

    def part(self, size: int) -> int:
        """Bytes of one rank's part."""
        return self.nbytes // size if self.operation in _DIVIDED else self.nbytes

    def algbw(self, seconds: float) -> float:
        """Bytes per second of the operation as its caller observes them."""
        return self.nbytes / seconds

    def busbw(self, seconds: float, size: int) -> float:
        """algbw times the bytes that the busiest rank must send per byte: comparable between numbers of ranks."""
        share = (size - 1) / size
        factor = {"allreduce": 2 * share} | dict.fromkeys(_DIVIDED, share)
        return self.algbw(seconds) * factor.get(self.operation, 1.0)


def cases(operation: str, dtype: str, reduction: str, wanted: list[int], size: int) -> list[Case]:
    """One case per size, rounded up to whole elements of every rank's part; a barrier has one case without bytes.
    Raises BenchError if there are too few ranks."""
    if operation in POINT and size < 2:
        raise BenchError(f"{operation} needs 2 ranks; there is {size}")
    if operation == "barrier":
        return [Case(operation, dtype, reduction, 0)]
    unit = WIDTHS[dtype] * (size if operation in _DIVIDED else 1)
    rounded = sorted({-(-each // unit) * unit for each in wanted})
    return [Case(operation, dtype, reduction, each) for each in rounded]


def sizes(begin: str, end: str, factor: float) -> list[int]:
    """Bytes from `begin` to `end`, each `factor` times the previous. Raises BenchError for an empty range."""
    first, last = nbytes(begin), nbytes(end)
    if first > last:
        raise BenchError(f"-b {begin} is more than -e {end}")
    if factor <= 1:
        raise BenchError(f"-f {factor:g}: sizes grow by a factor above 1")
    found, size = [], float(first)
    while round(size) <= last:
        found.append(round(size))
        size = max(size * factor, found[-1] + 1)
    return found


def nbytes(text: str) -> int:
    """ "8", "64K", "1MiB" as bytes; K is 1024."""
    match = re.fullmatch(r"([0-9]+)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if not match or int(match[1]) < 1:
        raise BenchError(f"{text}: expected a size such as 8, 64K or 1MiB")
    return int(match[1]) * _UNITS[match[2]]
