"""Contents of buffers before and after an operation: patterns with a short period, so that a check is a comparison of
memory and needs no other library."""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from netsum.bench.cases import COMBINING, Case

PERIOD = 840
"""Elements. Divisible by many even and odd numbers of ranks, so that parts begin at different offsets."""
_CODES = {"float32": "f", "float64": "d", "float16": "e", "int8": "b", "uint8": "B"}
_CODES |= {"int16": "h", "int32": "i", "int64": "q"}


def of_rank(case: Case, rank: int, size: int, nbytes: int) -> bytearray:
    """The first `nbytes` of the contribution of `rank`."""
    numbers = tuple(_number(case, place, rank, size) for place in range(PERIOD))
    return _repeat(_pack(case.dtype, numbers), nbytes)


def combined(case: Case, size: int, nbytes: int) -> bytearray:
    """The expected result of a reduction over all ranks."""
    combine: dict[str, Callable[[list[Any]], Any]] = {
        "sum": sum,
        "avg": lambda all_: sum(all_) / size,
        "min": min,
        "max": max,
        "product": _product,
    }
    numbers = tuple(
        combine[case.reduction]([_number(case, place, rank, size) for rank in range(size)]) for place in range(PERIOD)
    )
    return _repeat(_pack(case.dtype, numbers), nbytes)


def wrong(found: memoryview, expected: memoryview, width: int) -> int:
    """Number of elements that differ."""
    if found == expected:
        return 0
    pairs = zip(range(0, len(found), width), range(0, len(expected), width), strict=True)
    return sum(found[at : at + width] != expected[to : to + width] for at, to in pairs)


def _number(case: Case, place: int, rank: int, size: int) -> int:
    if case.operation in COMBINING and case.reduction == "product":
        return 2 if place % size == rank else 1
    return (5 * place + 3 * rank) % 4


def _product(numbers: list[int]) -> int:
    found: int = 2 ** numbers.count(2)
    return found


@cache
def _pack(dtype: str, numbers: tuple[float, ...]) -> bytes:
    if dtype == "bfloat16":
        return b"".join(_bfloat16(number) for number in numbers)
    if dtype.startswith(("int", "uint")):
        # Sums of narrow types wrap.
        bits = 8 * struct.calcsize(_CODES[dtype])
        low = 0 if dtype.startswith("u") else -(1 << (bits - 1))
        numbers = tuple((int(number) - low) % (1 << bits) + low for number in numbers)
    return struct.pack(f"<{len(numbers)}{_CODES[dtype]}", *numbers)


def _bfloat16(number: float) -> bytes:
    """The upper half of a float32, rounded to the nearest, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    found: bytes = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).to_bytes(2, "little")
    return found


def _repeat(period: bytes, nbytes: int) -> bytearray:
    out = bytearray(period * (nbytes // len(period) + 1))
    del out[nbytes:]
    return out
