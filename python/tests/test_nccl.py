"""NCCL's C interface called by ctypes on NumPy's buffers: every operation, type and root on several communicators.

The shapes are those in which mpi4py tests its collectives.
"""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import run_ranks

_RELEASE = Path(__file__).parents[2] / "target" / "release"
_BUILT = [path for path in (_RELEASE / "libnetsum_nccl.so", _RELEASE / "deps" / "libnetsum_nccl.so") if path.exists()]

pytestmark = pytest.mark.skipif(not _BUILT, reason="no libnetsum_nccl.so: cargo build --release -p netsum-capi")

TYPES = {
    np.int8: 0,
    np.uint8: 1,
    np.int32: 2,
    np.uint32: 3,
    np.int64: 4,
    np.uint64: 5,
    np.float16: 6,
    np.float32: 7,
    np.float64: 8,
}
SUM, PROD, MAX, MIN, AVG = range(5)
REDUCE: dict[int, Callable] = {SUM: np.add, PROD: np.multiply, MAX: np.maximum, MIN: np.minimum}
INVALID_ARGUMENT = 4
SIZES = [2, 3]
COUNTS = [1, 7, 3001]
GUARD = 3
"""Guard elements before and behind a buffer, which must not change."""


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


class Communicator:
    """A handle of the C interface; every call except `code_of` raises unless it returns ncclSuccess."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self.library, self.handle = library, handle
        self.rank, self.size = self._number("ncclCommUserRank"), self._number("ncclCommCount")

    def _number(self, name: str) -> int:
        number = ctypes.c_int(-1)
        check(self.library, getattr(self.library, name)(self.handle, ctypes.byref(number)))
        return number.value

    def split(self, color: int, key: int) -> "Communicator | None":
        new = ctypes.c_void_p()
        check(self.library, self.library.ncclCommSplit(self.handle, color, key, ctypes.byref(new), None))
        return Communicator(self.library, new) if new.value else None

    def code_of(self, name: str, *arguments) -> int:
        """The return code of a function. NumPy arrays are passed as their addresses, integers as themselves."""
        plain = [
            ctypes.c_void_p(each.ctypes.data) if isinstance(each, np.ndarray) else ctypes.c_size_t(each)
            for each in arguments
        ]
        return getattr(self.library, name)(*plain, self.handle, None)

    def __call__(self, name: str, *arguments) -> None:
        check(self.library, self.code_of(name, *arguments))

    def end(self) -> None:
        check(self.library, self.library.ncclCommDestroy(self.handle))


def check(library: ctypes.CDLL, code: int) -> None:
    library.ncclGetLastError.restype = ctypes.c_char_p
    assert code == 0, library.ncclGetLastError(None).decode()


def world(rank: int, size: int, folder: Path) -> Communicator:
    """All ranks: rank 0 writes the id to `folder`."""
    library = ctypes.CDLL(str(max(_BUILT, key=lambda path: path.stat().st_mtime)))
    unique, file = UniqueId(), folder / "id"
    if rank == 0:
        check(library, library.ncclGetUniqueId(ctypes.byref(unique)))
        (folder / "new").write_bytes(bytes(unique))
        (folder / "new").rename(file)
    while not file.exists():
        pass
    ctypes.memmove(ctypes.byref(unique), file.read_bytes(), ctypes.sizeof(unique))
    handle = ctypes.c_void_p()
    check(library, library.ncclCommInitRank(ctypes.byref(handle), size, unique, rank))
    return Communicator(library, handle)


def communicators(everybody: Communicator) -> Iterator[Communicator]:
    """The world, each rank alone, the world in the opposite order, and its even and odd ranks."""
    yield everybody
    for color, key in ((everybody.rank, 0), (0, -everybody.rank), (everybody.rank % 2, 0)):
        part = everybody.split(color, key)
        yield part
        part.end()


def guarded(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(a copy of `values`, the memory around it), with guards on both sides."""
    around = np.full(len(values) + 2 * GUARD, 77, values.dtype)
    inner = around[GUARD:-GUARD]
    inner[:] = values
    return inner, around


def untouched(around: np.ndarray) -> bool:
    return bool((around[:GUARD] == 77).all() and (around[-GUARD:] == 77).all())


def values(kind: type, count: int, rank: int) -> np.ndarray:
    """Small numbers, so that every result is exact in every type."""
    return ((np.arange(count) + rank) % 3 + 1).astype(kind)


def expected(op: int, kind: type, count: int, ranks: int) -> np.ndarray:
    inputs = [values(kind, count, rank) for rank in range(ranks)]
    if op == AVG:
        total = np.sum(np.array(inputs, np.float64), axis=0)
        return (total / ranks).astype(kind) if np.issubdtype(kind, np.floating) else (total // ranks).astype(kind)
    result = inputs[0]
    for each in inputs[1:]:
        result = REDUCE[op](result, each)
    return result


def on_ranks(body: Callable[[Communicator], None], size: int, folder: Path) -> None:
    def rank_of(rank: int) -> None:
        everybody = world(rank, size, folder)
        body(everybody)
        everybody.end()

    run_ranks(rank_of, size)


def same(result: np.ndarray, right: np.ndarray) -> bool:
    """Equal; means of floats, whose last bit depends on the division, approximately equal."""
    if np.issubdtype(right.dtype, np.floating):
        return np.allclose(result.astype(np.float64), right.astype(np.float64), rtol=1e-3)
    return np.array_equal(result, right)


@pytest.mark.parametrize("size", SIZES)
def test_allreduce_of_every_type_and_operation(size, tmp_path):
    def body(everybody):
        for part in communicators(everybody):
            for kind, code in TYPES.items():
                for op in (SUM, PROD, MAX, MIN, AVG):
                    for count in COUNTS:
                        mine = values(kind, count, part.rank)
                        result, around = guarded(np.zeros(count, kind))
                        part("ncclAllReduce", mine, result, count, code, op)
                        right = expected(op, kind, count, part.size)
                        assert same(result, right) and untouched(around), (kind, op, count, part.size)
                        assert np.array_equal(mine, values(kind, count, part.rank)), "the input is left alone"
                        part("ncclAllReduce", mine, mine, count, code, op)
                        assert same(mine, right), "in place"

    on_ranks(body, size, tmp_path)


@pytest.mark.parametrize("size", SIZES)
def test_reduce_and_broadcast_with_every_root(size, tmp_path):
    def body(everybody):
        for part in communicators(everybody):
            for kind, code in TYPES.items():
                for root in range(part.size):
                    for count in COUNTS:
                        result, around = guarded(np.zeros(count, kind))
                        part("ncclReduce", values(kind, count, part.rank), result, count, code, SUM, root)
                        right = expected(SUM, kind, count, part.size) if part.rank == root else np.zeros(count, kind)
                        assert np.array_equal(result, right) and untouched(around)
                        part("ncclBroadcast", values(kind, count, part.rank), result, count, code, root)
                        assert np.array_equal(result, values(kind, count, root)) and untouched(around)
                        own, around = guarded(values(kind, count, part.rank))
                        part("ncclBcast", own, count, code, root)
                        assert np.array_equal(own, values(kind, count, root)) and untouched(around)

    on_ranks(body, size, tmp_path)


@pytest.mark.parametrize("size", SIZES)
def test_allgather_and_reduce_scatter(size, tmp_path):
    def body(everybody):
        for part in communicators(everybody):
            for kind, code in TYPES.items():
                for count in COUNTS:
                    everything = np.concatenate([values(kind, count, rank) for rank in range(part.size)])
                    result, around = guarded(np.zeros(count * part.size, kind))
                    part("ncclAllGather", values(kind, count, part.rank), result, count, code)
                    assert np.array_equal(result, everything) and untouched(around)
                    result[:] = 0
                    mine = result[count * part.rank :][:count]
                    mine[:] = values(kind, count, part.rank)
                    part("ncclAllGather", mine, result, count, code)
                    assert np.array_equal(result, everything) and untouched(around), "in place"
                    whole = values(kind, count * part.size, part.rank)
                    right = expected(SUM, kind, count * part.size, part.size)[count * part.rank :][:count]
                    scattered, around = guarded(np.zeros(count, kind))
                    part("ncclReduceScatter", whole, scattered, count, code, SUM)
                    assert np.array_equal(scattered, right) and untouched(around)

    on_ranks(body, size, tmp_path)


@pytest.mark.parametrize("size", SIZES)
def test_messages_of_a_group_go_to_everybody_at_once(size, tmp_path):
    def body(everybody):
        for part in communicators(everybody):
            library, count = part.library, 501
            sent = [np.full(count, 100.0 * part.rank + to) for to in range(part.size)]
            taken = [guarded(np.zeros(count)) for _ in range(part.size)]
            fives, ones = np.full(count, 5, np.int32), np.ones(count, np.int32)
            most, total = np.zeros(count, np.int32), np.zeros(count, np.int32)
            check(library, library.ncclGroupStart())
            for other in range(part.size):
                part("ncclSend", sent[other], count, TYPES[np.float64], other)
                part("ncclRecv", taken[other][0], count, TYPES[np.float64], other)
            # The last operation may run on this thread.
            part("ncclAllReduce", fives, most, count, TYPES[np.int32], MAX)
            part("ncclAllReduce", ones, total, count, TYPES[np.int32], SUM)
            check(library, library.ncclGroupEnd())
            for other, (result, outside) in enumerate(taken):
                assert (result == 100.0 * other + part.rank).all() and untouched(outside)
            assert (most == 5).all() and (total == part.size).all()

    on_ranks(body, size, tmp_path)


def test_what_cannot_be_is_refused_and_leaves_the_communicator_usable(tmp_path):
    def body(everybody):
        ones = np.ones(4, np.float32)
        real = TYPES[np.float32]
        assert everybody.code_of("ncclAllReduce", ones, ones, 4, 99, SUM) == INVALID_ARGUMENT
        assert everybody.code_of("ncclAllReduce", ones, ones, 4, real, 99) == INVALID_ARGUMENT
        assert everybody.code_of("ncclBcast", ones, 4, real, everybody.size) == INVALID_ARGUMENT
        everybody("ncclAllReduce", ones, ones, 4, real, SUM)
        assert (ones == everybody.size).all()

    on_ranks(body, 2, tmp_path)
