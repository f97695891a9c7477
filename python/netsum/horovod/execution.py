"""Runs the coordinator's responses: every member of a process set runs the same ones, in the same order."""

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from netsum.communicator import Communicator, Memory, memory
from netsum.horovod.operation import Operation
from netsum.horovod.requests import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, Request, Response

_PACKED_BYTES = 256 << 10
"""Tensors of an allreduce up to this size are copied into one buffer; beyond it a copy costs more than a message."""

if TYPE_CHECKING:
    from netsum._core import Work


def execute(ranks: Sequence[int], part: Communicator, response: Response, mine: list[Operation | None]) -> None:
    """Run one response; `mine` has this rank's operation for each of its requests, None if this rank has joined.

    ranks: members of the process set, `part` their communicator. Raises netsum's errors.
    """
    kind = response.first.kind
    if kind == ALLREDUCE:
        _allreduce(part, response, mine)
    elif kind == ALLGATHER:
        _allgather(part, response.details["rows"], _one(mine))
    elif kind == BROADCAST:
        _broadcast(part, ranks.index(response.first.root), _one(mine))
    elif kind == ALLTOALL:
        _alltoall(part, response.details["splits"], _one(mine))
    elif kind == REDUCESCATTER:
        _reducescatter(part, response.first, _one(mine))
    else:
        part.barrier()


def rows_of(rows: int, parts: int) -> list[int]:
    """Rows of each part if `rows` are scattered: the first ones get the remainder, as in Horovod."""
    each, more = divmod(rows, parts)
    return [each + (index < more) for index in range(parts)]


def _one(mine: list[Operation | None]) -> Operation:
    (operation,) = mine
    assert operation is not None, "only sums run without a rank that has joined"
    return operation


def _allreduce(part: Communicator, response: Response, mine: list[Operation | None]) -> None:
    targets: list[Memory] = []
    for request, operation in zip(response.requests, mine, strict=True):
        for index, (dtype, shape) in enumerate(request.tensors):
            if operation is None:
                targets.append(_zeros(dtype, shape))
                continue
            target, source = operation.results.allocate(index, shape), operation.inputs[index]
            if target.address != source.address:
                ctypes.memmove(target.address, source.address, source.nbytes)
            targets.append(target)
    op, factor, after = _arithmetic(response.first, part.size)
    small = [each for each in targets if each.nbytes <= _PACKED_BYTES]
    packs = [_Pack(pack) for pack in _packs(small)]
    *first, last = [each for each in targets if each.nbytes > _PACKED_BYTES] + packs
    terms = op, factor, part.timeout_s
    pending: list[Work | None] = [part.core.allreduce(each.address, each.count, each.dtype, *terms) for each in first]
    # This thread would only wait: the last operation, and the only one of a small response, runs on it if possible.
    pending.append(part.core.allreduce(last.address, last.count, last.dtype, *terms, True))
    for work in pending:
        if work is not None:
            work.wait(None)
    for pack in packs:
        pack.unpack()
    _scale(mine, after)


def _arithmetic(request: Request, size: int) -> tuple[str, float, float]:
    """(operation, factor before, factor after) of a reduction."""
    if request.prescale == 1.0 and (request.op != "avg" or request.postscale == 1.0):
        return request.op, 1.0, request.postscale
    # An ordinary average divides in the core; with other factors, the division is part of the factor.
    after = request.postscale / size if request.op == "avg" else request.postscale
    return ("sum", 1.0, after) if request.prescale == 1.0 else ("premul_sum", request.prescale, after)


def _scale(mine: Sequence[Operation | None], factor: float) -> None:
    if factor != 1.0:
        for operation in mine:
            if operation is not None:
                for index in range(len(operation.request.tensors)):
                    operation.results.scale(index, factor)


def _zeros(dtype: str, shape: tuple[int, ...]) -> Memory:
    itemsize = {"bool": 1, "bfloat16": 2}.get(dtype) or int("".join(filter(str.isdigit, dtype))) // 8
    zeros = bytearray(math.prod(shape) * itemsize)
    raw = memory(zeros, "allreduce", written=True)
    return Memory(raw.address, math.prod(shape), itemsize, dtype, shape, True, zeros)


class _Pack:
    """Small tensors concatenated in one buffer; a single tensor is used in place."""

    def __init__(self, members: list[Memory]) -> None:
        self.members = members
        self.count = sum(each.count for each in members)
        self.dtype = members[0].dtype
        self._buffer = bytearray(sum(each.nbytes for each in members)) if len(members) > 1 else None
        if self._buffer is None:
            self.address = members[0].address
            return
        self.address = memory(self._buffer, "allreduce", written=True).address
        self._move(lambda place, each: ctypes.memmove(place, each.address, each.nbytes))

    def unpack(self) -> None:
        if self._buffer is not None:
            self._move(lambda place, each: ctypes.memmove(each.address, place, each.nbytes))

    def _move(self, copy: Any) -> None:
        place = self.address
        for each in self.members:
            copy(place, each)
            place += each.nbytes


def _packs(targets: list[Memory]) -> list[list[Memory]]:
    """Packs by element type, in order. A group may mix types; a fused response does not."""
    packs: dict[str, list[Memory]] = {}
    for each in targets:
        packs.setdefault(each.dtype, []).append(each)
    return list(packs.values())


def _allgather(part: Communicator, rows: list[list[int]], mine: Operation) -> None:
    pending = []
    for index, (source, counts) in enumerate(zip(mine.inputs, rows, strict=True)):
        row = _row_bytes(source)
        target = mine.results.allocate(index, (sum(counts), *source.shape[1:]))
        outs = _cut(target.address, [count * row for count in counts])
        pending.append(part.core.allgather(outs, source.span, part.timeout_s))
    for work in pending:
        work.wait(None)


def _broadcast(part: Communicator, root: int, mine: Operation) -> None:
    for index, source in enumerate(mine.inputs):
        target = mine.results.allocate(index, source.shape)
        if part.rank == root and target.address != source.address:
            ctypes.memmove(target.address, source.address, source.nbytes)
        work = part.core.broadcast(target.address, target.nbytes, root, part.timeout_s, True)
        if work is not None:
            work.wait(None)


def _alltoall(part: Communicator, splits: list[list[int]], mine: Operation) -> None:
    (source,) = mine.inputs
    row = _row_bytes(source)
    received = [sender[part.rank] for sender in splits]
    target = mine.results.allocate(0, (sum(received), *source.shape[1:]))
    outs = _cut(target.address, [rows * row for rows in received])
    ins = _cut(source.address, [rows * row for rows in mine.request.splits])
    part.core.alltoall(outs, ins, part.timeout_s).wait(None)


def _reducescatter(part: Communicator, request: Request, mine: Operation) -> None:
    op, factor, after = _arithmetic(request, part.size)
    pending = []
    for index, source in enumerate(mine.inputs):
        counts = rows_of(source.shape[0], part.size)
        row = math.prod(source.shape[1:])
        target = mine.results.allocate(index, (counts[part.rank], *source.shape[1:]))
        spans = _cut(source.address, [count * row * source.itemsize for count in counts])
        ins = [(address, count * row) for (address, _), count in zip(spans, counts, strict=True)]
        pending.append(part.core.reduce_scatter(target.address, ins, source.dtype, op, factor, part.timeout_s))
    for work in pending:
        work.wait(None)
    _scale([mine], after)


def _row_bytes(source: Memory) -> int:
    return math.prod(source.shape[1:]) * source.itemsize


def _cut(address: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive spans of `sizes` bytes."""
    spans = []
    for size in sizes:
        spans.append((address, size))
        address += size
    return spans
