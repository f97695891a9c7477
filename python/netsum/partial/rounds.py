"""Rounds of a partial allreduce: a thread per rank takes part in each, whether its rank has contributed or not.

A round is an ordinary allreduce of all ranks' values and flags, so every rank has the same result and the same list of
contributors. It begins at a rank when all have announced their contributions, or `bound_s` after the first
announcement: the rank's contributions so far go into it, else zeros. No rank decides for another, and nothing is lost
or counted twice: a contribution is taken once, by the first round that begins after it.
"""

from __future__ import annotations

import array
import ctypes
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from netsum import NetsumError
from netsum.communicator import Communicator, memory

_CODES = {"float32": "f", "float64": "d"}
_TAG = 0x7061_7274
_LEAVES = -1
"""In a note: the sender makes no more contributions."""
_FOREVER_S = 1e9
_LOOK_S = 0.2


@dataclass(frozen=True)
class Round:
    """One result. values: the sum of the contributions of `ranks`, an array.array; number: of the round."""

    number: int
    values: array.array[Any]
    ranks: tuple[int, ...]


class PartialAllreduce:
    """Sums of vectors of one length over a communicator that is used for nothing else.

    world: a communicator of its own, as `split` makes it; closed at the end. count: elements. dtype: float32 or
    float64. bound_s: how long a round waits for stragglers after the first contribution. backlog: unread results that a
    rank may have before the others wait for it. Ranks may make different numbers of exchanges. Stopping a process stops
    the rounds, because its thread stops.
    """

    def __init__(
        self, world: Communicator, count: int, dtype: str = "float32", bound_s: float = 0.01, backlog: int = 8
    ) -> None:
        if dtype not in _CODES:
            raise ValueError(f"netsum: partial sums are of {' or '.join(_CODES)}, not of {dtype}")
        if count < 1 or bound_s < 0 or backlog < 1:
            raise ValueError(f"netsum: count {count}, bound_s {bound_s}, backlog {backlog}: at least 1, 0 and 1")
        self._world, self._count, self._dtype = world, count, dtype
        self._bound_s, self._backlog = bound_s, backlog
        self._changed = threading.Condition()
        self._given: array.array[Any] | None = None
        self._leaving = False
        self._results: deque[Round] = deque()
        # The round that took this rank's last contribution.
        self._taken: int | None = None
        # By rank: the last round for which it announced a contribution; and the ranks that make no more.
        self._there: dict[int, int] = {}
        self._left: set[int] = set()
        self._notes: dict[int, ctypes.c_int64] = {}
        self._failure: BaseException | None = None
        self._ended = False
        for rank in self._others():
            self._listen(rank)
        self._thread = threading.Thread(target=self._run, name="netsum-partial", daemon=True)
        self._thread.start()

    def exchange(self, values: Any) -> list[Round]:
        """Contribute `values` and wait for the round that includes them; returns all results since the last call, in
        order.

        On a busy machine later rounds of the other ranks may be among the results, too.

        values: `count` elements of the dtype, of any framework; they are copied. Raises the errors of the group's sums.
        """
        given = memory(values, "partial allreduce")
        if (given.dtype, given.count) != (self._dtype, self._count):
            raise ValueError(f"netsum: {given.count} elements of {given.dtype}, not {self._count} of {self._dtype}")
        copy = array.array(_CODES[self._dtype], ctypes.string_at(given.address, given.nbytes))
        with self._changed:
            if self._leaving:
                raise NetsumError("netsum: this rank has closed its partial allreduce")
            self._given, self._taken = copy, None
            return self._drain(lambda: self._taken is not None)

    def close(self) -> list[Round]:
        """Contribute no more, and wait until all ranks have finished; returns the remaining results. All ranks call
        it."""
        with self._changed:
            if not self._leaving:
                self._leaving = True
                self._send_note(_LEAVES)
            rounds = self._drain(lambda: self._ended)
        self._thread.join()
        return rounds

    def _drain(self, over: Any) -> list[Round]:
        """Collect results until `over`; received results must not delay the next round. Called with the lock held."""
        rounds: list[Round] = []
        self._changed.notify_all()
        while True:
            if self._results:
                rounds += self._results
                self._results.clear()
                self._changed.notify_all()
            if self._failure is not None:
                raise self._failure
            if over():
                return rounds
            self._changed.wait(_LOOK_S)

    def _run(self) -> None:
        failure, number = None, 0
        try:
            while self._round(number):
                number += 1
        except BaseException as error:
            failure = error
        self._world.close()
        with self._changed:
            self._failure, self._ended = failure, True
            self._changed.notify_all()

    def _round(self, number: int) -> bool:
        """Run one round; returns whether there is another one."""
        size, rank, code = self._world.size, self._world.rank, _CODES[self._dtype]
        given, leaving = self._begin(number)
        vector: array.array[float] = (
            array.array(code, bytes(self._count * array.array(code).itemsize)) if given is None else given[:]
        )
        flags: array.array[float] = array.array(code, [0.0]) * (2 * size)
        flags[rank], flags[size + rank] = float(given is not None), float(leaving)
        vector.extend(flags)
        self._world.allreduce(vector)
        flags = vector[self._count :]
        del vector[self._count :]
        # Protocols that add integers may return a flag that is slightly off.
        raised = [flag > 0.5 for flag in flags]
        ranks = tuple(each for each in range(size) if raised[each])
        with self._changed:
            if ranks:
                self._results.append(Round(number, vector, ranks))
            if given is not None:
                self._taken = number
            self._changed.notify_all()
        return not all(raised[size:])

    def _begin(self, number: int) -> tuple[array.array[Any] | None, bool]:
        """Wait until the round begins here; returns this rank's contribution, and whether it makes no more after it."""
        size, noted, first = self._world.size, False, None
        with self._changed:
            while True:
                wait = _LOOK_S
                if len(self._results) < self._backlog or self._leaving:
                    given = self._given is not None
                    if given and not noted:
                        noted = True
                        self._send_note(number)
                    there = {rank for rank, last in self._there.items() if last >= number}
                    if given:
                        there.add(self._world.rank)
                    gone = self._left | ({self._world.rank} if self._leaving else set())
                    if len(there | gone) == size:
                        break
                    if there:
                        first = time.monotonic() if first is None else first
                        wait = min(wait, first + self._bound_s - time.monotonic())
                        if wait <= 0:
                            break
                if self._failure is not None:
                    raise self._failure
                self._changed.wait(wait)
            taken, self._given = self._given, None
            return taken, self._leaving

    def _others(self) -> list[int]:
        return [rank for rank in range(self._world.size) if rank != self._world.rank]

    def _send_note(self, what: int) -> None:
        """Announce to all other ranks that this rank has contributed to a round, or makes no more contributions."""
        note = what.to_bytes(8, "little", signed=True)
        for rank in self._others():
            self._world.send(note, rank, _TAG, wait=False)

    def _listen(self, rank: int) -> None:
        """Receive the next note of a rank, and those that follow."""
        note = self._notes.setdefault(rank, ctypes.c_int64())
        work = self._world.core.recv(ctypes.addressof(note), 8, rank, _TAG, _FOREVER_S)

        def heard() -> None:
            if work.error() is not None:
                return
            with self._changed:
                if note.value == _LEAVES:
                    self._left.add(rank)
                else:
                    self._there[rank] = note.value
                self._changed.notify_all()
            self._listen(rank)

        work.on_done(heard)
