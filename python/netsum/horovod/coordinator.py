"""Rank 0's table of requested operations: no threads, no clock, no network.

`submit` takes a rank's request; `take` returns the operations that have become ready since, in the order in which all
ranks run them. An operation is ready when every member of its process set has called it or has joined. Source of the
rules: Horovod 0.28, docs/concepts and docs/process_set, and the expectations of its test/parallel/test_torch.py.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from netsum.horovod.requests import (
    ADD_SET,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    JOIN,
    REDUCESCATTER,
    REMOVE_SET,
    SHUTDOWN,
    Request,
    Response,
)

FUSION_BYTES = 128 << 20
"""Allreduces that become ready together are fused up to this size; Horovod's HOROVOD_FUSION_THRESHOLD."""
_ITEM_BYTES = {"bool": 1, "bfloat16": 2}


@dataclass
class _Waiting:
    """An operation that not all members have called."""

    since: float
    requests: dict[int, Request]


class Coordinator:
    """size: ranks of the job. fusion_bytes: see FUSION_BYTES; 0 disables fusion."""

    def __init__(self, size: int, fusion_bytes: int = FUSION_BYTES) -> None:
        self.sets: dict[int, tuple[int, ...]] = {0: tuple(range(size))}
        self.fusion_bytes = fusion_bytes
        self.stopped_by: int | None = None
        self._next_set = 1
        self._waiting: dict[tuple[int, str], _Waiting] = {}
        self._joined: list[int] = []
        self._ready: list[tuple[tuple[int, ...], Response]] = []

    def submit(self, rank: int, request: Request, now: float) -> None:
        """Register that a rank has called an operation. now: seconds of any clock, for `overdue`."""
        if self.stopped_by is not None:
            return
        if request.kind == SHUTDOWN:
            self.stopped_by = rank
            self._ready.append((self.sets[0], Response((request,), None, {"rank": rank})))
            return
        if request.kind == JOIN:
            self._join(rank, request)
            return
        if request.process_set not in self.sets or rank not in self.sets[request.process_set]:
            missing = f"rank {rank} is not in process set {request.process_set}, or there is no such set"
            self._ready.append(((rank,), Response((request,), missing)))
            return
        key = (request.process_set, request.name)
        waiting = self._waiting.setdefault(key, _Waiting(now, {}))
        if rank in waiting.requests:
            twice = f"rank {rank} called {request.kind} {request.name!r} again before the first had ended"
            self._ready.append(((rank,), Response((request,), twice)))
            return
        waiting.requests[rank] = request
        self._release(key)

    def take(self) -> list[tuple[tuple[int, ...], Response]]:
        """(members, response) of all operations that have become ready, in the order in which all ranks run them."""
        ready, self._ready = self._ready, []
        return list(_fused(ready, self.fusion_bytes))

    def overdue(self, now: float, patience_s: float) -> list[str]:
        """Operations that have waited longer than `patience_s`: the operation, and the ranks that have not called
        it."""
        lines = []
        for (set_id, name), waiting in self._waiting.items():
            if now - waiting.since >= patience_s:
                missing = [r for r in self.sets[set_id] if r not in waiting.requests and r not in self._joined]
                kind = next(iter(waiting.requests.values())).kind
                lines.append(f"{kind} {name!r} waits since {now - waiting.since:.0f} s for ranks {missing}")
        return lines

    def _join(self, rank: int, request: Request) -> None:
        if rank not in self._joined:
            self._joined.append(rank)
        for key in list(self._waiting):
            self._release(key)
        if len(self._joined) == len(self.sets[0]):
            # Handled as if every member had called it now.
            self._ready.append((self.sets[0], Response((request,), None, {"last": self._joined[-1]})))
            self._joined.clear()

    def _release(self, key: tuple[int, str]) -> None:
        """Move an operation to `_ready` if all members have called it."""
        waiting, members = self._waiting[key], self.sets[key[0]]
        absent = [rank for rank in members if rank not in waiting.requests]
        if any(rank not in self._joined for rank in absent):
            return
        del self._waiting[key]
        by_rank = {rank: waiting.requests[rank] for rank in members if rank in waiting.requests}
        error = _disagreement(by_rank) or (_not_with_join(next(iter(by_rank.values()))) if absent else None)
        details = {} if error else self._details(by_rank)
        if isinstance(details, str):
            error, details = details, {}
        self._ready.append((members, Response((next(iter(by_rank.values())),), error, details)))

    def _details(self, by_rank: dict[int, Request]) -> dict[str, Any] | str:
        """The details that members need of each other, or the reason why the operation is invalid."""
        first = next(iter(by_rank.values()))
        if first.kind == ALLGATHER:
            count = len(first.tensors)
            return {"rows": [[each.tensors[i][1][0] for each in by_rank.values()] for i in range(count)]}
        if first.kind == ALLTOALL:
            return {"splits": [list(each.splits) for each in by_rank.values()]}
        if first.kind == ADD_SET:
            return self._add_set(first.ranks)
        if first.kind == REMOVE_SET:
            set_id = first.root
            if set_id not in self.sets or set_id == 0:
                return f"there is no process set {set_id} that could be removed"
            self._forget(set_id)
            return {"set": set_id}
        return {}

    def _forget(self, set_id: int) -> None:
        members = self.sets.pop(set_id)
        for key in [key for key in self._waiting if key[0] == set_id]:
            one = next(iter(self._waiting.pop(key).requests.values()))
            self._ready.append((members, Response((one,), f"process set {set_id} was removed before {key[1]!r} ran")))

    def _add_set(self, ranks: tuple[int, ...]) -> dict[str, Any] | str:
        if not ranks or not set(ranks) <= set(self.sets[0]):
            return f"a process set of ranks {list(ranks)} is not possible in a job of {len(self.sets[0])}"
        same = [set_id for set_id, members in self.sets.items() if members == ranks]
        if same:
            return f"process set {same[0]} has these ranks already: {list(ranks)}"
        set_id, self._next_set = self._next_set, self._next_set + 1
        self.sets[set_id] = ranks
        return {"set": set_id}


def _disagreement(by_rank: dict[int, Request]) -> str | None:
    """Why the requests of several ranks under one name do not match; None if they do."""
    (first_rank, first), *others = by_rank.items()
    if first.kind in (ALLGATHER, REDUCESCATTER):
        for rank, request in by_rank.items():
            if any(not shape for _, shape in request.tensors):
                return f"{first.kind} {first.name!r}: rank {rank} has a tensor without dimensions, which has no rows"
    if first.kind == BROADCAST and first.root not in by_rank:
        return f"broadcast {first.name!r}: root rank {first.root} is not in the process set, or has joined"
    for rank, request in others:
        for what, mine, theirs in _compared(first, request):
            if mine != theirs:
                return (
                    f"{first.kind} {first.name!r}: rank {first_rank} has {what} {mine}, rank {rank} has {theirs}; "
                    f"they must be equal"
                )
    return None


def _compared(first: Request, other: Request) -> Any:
    """(name, first's value, other's value) of all properties that must be equal."""
    yield "operation", first.kind, other.kind
    yield "types", [dtype for dtype, _ in first.tensors], [dtype for dtype, _ in other.tensors]
    skip = 1 if first.kind in (ALLGATHER, ALLTOALL) else 0
    name = "shapes beyond the first dimension" if skip else "shapes"
    yield "ranks of tensors", [len(shape) for _, shape in first.tensors], [len(shape) for _, shape in other.tensors]
    yield name, [list(shape[skip:]) for _, shape in first.tensors], [list(shape[skip:]) for _, shape in other.tensors]
    yield "reduction", first.op, other.op
    yield "prescale_factor", first.prescale, other.prescale
    yield "postscale_factor", first.postscale, other.postscale
    yield "root rank", first.root, other.root
    yield "process set", list(first.ranks), list(other.ranks)


def _not_with_join(request: Request) -> str | None:
    """Why an operation cannot run while ranks have joined: zeros in their place are valid in sums only."""
    if request.kind == ALLREDUCE and request.op in ("sum", "avg"):
        return None
    what = f"{request.kind} with {request.op}" if request.kind == ALLREDUCE else request.kind
    return f"{what} {request.name!r} is not supported while a rank has joined"


def _fused(ready: list[tuple[tuple[int, ...], Response]], most: int) -> Any:
    """Merge consecutive single allreduces of one kind into one response each."""
    held: tuple[tuple[int, ...], Response] | None = None
    held_bytes = 0
    for members, response in ready:
        size = _bytes(response.first)
        if held and held[0] == members and _alike(held[1], response) and held_bytes + size <= most:
            held = members, replace(held[1], requests=held[1].requests + response.requests)
            held_bytes += size
            continue
        if held:
            yield held
        held, held_bytes = (members, response), size
    if held:
        yield held


def _alike(one: Response, other: Response) -> bool:
    if one.first.kind != ALLREDUCE or one.error or other.error:
        return False
    mine, theirs = (
        (each.kind, each.process_set, each.op, each.prescale, each.postscale, {dtype for dtype, _ in each.tensors})
        for each in (one.first, other.first)
    )
    return mine == theirs


def _bytes(request: Request) -> int:
    return sum(math.prod(shape) * _item_bytes(dtype) for dtype, shape in request.tensors)


def _item_bytes(dtype: str) -> int:
    digits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    return _ITEM_BYTES.get(dtype) or (int(digits) // 8 if digits.isdigit() else 8)
