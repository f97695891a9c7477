"""What is measured: operations, element types, sizes, and how a time becomes a rate."""

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
"""Between ranks 0 and 1 alone, as ucx_perftest and OSU measure them: there and back, and one way."""
COMBINING = ("allreduce", "reduce", "reduce_scatter")
"""Operations that add, and so look at element type and reduce operation."""
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
    """What `netsum bench` cannot do; the message says what to do instead."""


@dataclass(frozen=True)
class Case:
    """One operation at one size.

    nbytes: as in nccl-tests, of the larger of a rank's buffers: for those that cut a buffer among ranks, all parts
    together. A whole number of elements per rank.
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
        """Messages in a row that one call stands for: of a latency half there, half back; of a bandwidth all one way.

        Its time is divided by them.
        """
        if self.operation not in POINT:
            return 1
        # Even, as half of a latency's go back.
        return min(max(_TOGETHER // max(self.nbytes, 1), 2), 64) // 2 * 2

    def part(self, size: int) -> int:
        """Bytes of one rank's part."""
        return self.nbytes // size if self.operation in _DIVIDED else self.nbytes

    def algbw(self, seconds: float) -> float:
        """Bytes per second of the operation as a caller sees it."""
        return self.nbytes / seconds

    def busbw(self, seconds: float, size: int) -> float:
        """algbw times what the busiest rank must at least send for each byte: comparable between numbers of ranks."""
        share = (size - 1) / size
        factor = {"allreduce": 2 * share} | dict.fromkeys(_DIVIDED, share)
        return self.algbw(seconds) * factor.get(self.operation, 1.0)


def cases(operation: str, dtype: str, reduction: str, wanted: list[int], size: int) -> list[Case]:
    """A case per size, rounded up to whole elements of every rank's part; a barrier has one without bytes. BenchError
    where ranks are too few."""
    if operation in POINT and size < 2:
        raise BenchError(f"{operation} needs 2 ranks; there is {size}")
    if operation == "barrier":
        return [Case(operation, dtype, reduction, 0)]
    unit = WIDTHS[dtype] * (size if operation in _DIVIDED else 1)
    rounded = sorted({-(-each // unit) * unit for each in wanted})
    return [Case(operation, dtype, reduction, each) for each in rounded]


def sizes(begin: str, end: str, factor: float) -> list[int]:
    """Bytes from `begin` to `end`, each `factor` times the one before. BenchError where that is none."""
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
