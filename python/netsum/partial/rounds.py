"""Rounds of a partial allreduce: a thread per rank takes part in each, whether its rank has given anything or not.

A round is an ordinary allreduce of everybody's values and flags, so every rank has the same result and the same answer to
who is in it. It begins at a rank when all have announced that they are there, or `bound_s` after the first was heard:
what that rank has given by then goes into it, else zeros. No rank decides for another, and nothing is lost or counted
twice: a contribution is taken once, by the first round that begins after it.
"""

import array
import contextlib
import ctypes
import struct
import threading
from collections import deque
from dataclasses import dataclass

from netsum import NetsumError
from netsum.communicator import Communicator, Memory, memory

_PRESENT, _LEAVING = 1.0, 1.0
_NOTE = struct.Struct("<q")
_TAG = 0x7061_7274
_CODES = {"float32": "f", "float64": "d"}


@dataclass(frozen=True)
class Round:
    """One result. values: the sum of what `ranks` gave, an array.array; number: of the round, from 0."""

    number: int
    values: array.array
    ranks: tuple[int, ...]


class PartialAllreduce:
    """Sums of vectors of one length over a communicator that is used for nothing else.

    world: of its own, as `split` makes it. count: elements. dtype: float32 or float64. bound_s: how long a round waits
    for stragglers after the first contribution. backlog: results that a rank may be behind; then the others wait for
    it. Ranks may make different numbers of exchanges. A process that is stopped stops the rounds: its thread does too.
    """

    def __init__(
        self, world: Communicator, count: int, dtype: str = "float32", bound_s: float = 0.01, backlog: int = 8
    ) -> None:
        if dtype not in _CODES:
            raise ValueError(f"netsum: partial sums are of {' or '.join(_CODES)}, not of {dtype}")
        if count < 1 or bound_s < 0 or backlog < 1:
            raise ValueError(f"netsum: count {count}, bound_s {bound_s}, backlog {backlog}: use at least 1, 0 and 1")
        self._world, self._count, self._dtype = world, count, dtype
        self._bound_s, self._backlog = bound_s, backlog
        self._changed = threading.Condition()
        self._given: array.array | None = None
        self._leaving = False
        self._results: deque[Round] = deque()
        self._taken = -1
        """Round that took this rank's last contribution."""
        self._there: dict[int, int] = {}
        """By rank: the first round for which it has announced itself."""
        self._failure: BaseException | None = None
        self._ended = False
        for rank in range(world.size):
            if rank != world.rank:
                self._listen(rank)
        self._thread = threading.Thread(target=self._run, name="netsum-partial", daemon=True)
        self._thread.start()

    def exchange(self, values) -> list[Round]:
        """Give `values` and wait for the round that has them; all results since the last call, that one last.

        values: `count` elements of the dtype, of any framework; they are copied. Raises what the group's sums raise.
        """
        given = memory(values, "partial allreduce")
        if (given.dtype, given.count) != (self._dtype, self._count):
            raise ValueError(f"netsum: {given.count} elements of {given.dtype}, not {self._count} of {self._dtype}")
        with self._changed:
            if self._leaving:
                raise NetsumError("netsum: this rank has closed its partial allreduce")
            self._given, self._taken = _copy(given, _CODES[self._dtype]), -1
            self._changed.notify_all()
            while self._taken < 0 or not self._results or self._results[-1].number < self._taken:
                self._check()
                self._changed.wait(0.2)
                # A long exchange takes what has come, so that its own backlog holds nobody up.
            results = list(self._results)
            self._results.clear()
            self._changed.notify_all()
        return results

    def close(self) -> list[Round]:
        """Give no more, and wait until nobody does; the results that are left. Collective, and so is its end."""
        left: list[Round] = []
        with self._changed:
            self._leaving = True
            self._changed.notify_all()
            while not self._ended:
                self._check()
                self._changed.wait(0.2)
                left += self._results
                self._results.clear()
                self._changed.notify_all()
        self._thread.join()
        self._check()
        return left + list(self._results)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        number = 0
        try:
            while self._round(number):
                number += 1
            self._world.close()
        except BaseException as error:
            with self._changed:
                self._failure = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _round(self, number: int) -> bool:
        """One round; whether there is another one."""
        size, rank = self._world.size, self._world.rank
        given, leaving = self._gather(number)
        vector = given if given is not None else array.array(_CODES[self._dtype], bytes(self._nbytes))
        flags = array.array(_CODES[self._dtype], [0.0]) * (2 * size)
        if given is not None:
            flags[rank] = _PRESENT
        if leaving:
            flags[size + rank] = _LEAVING
        vector.extend(flags)
        self._world.allreduce(vector)
        flags = vector[self._count :]
        del vector[self._count :]
        ranks = tuple(each for each in range(size) if flags[each])
        with self._changed:
            if given is not None:
                self._taken = number
            if ranks:
                self._results.append(Round(number, vector, ranks))
            self._changed.notify_all()
        return sum(flags[size:]) < size

    def _gather(self, number: int) -> tuple[array.array | None, bool]:
        """Wait until the round begins; what this rank gives to it, and whether it is leaving."""
        size, announced = self._world.size, False
        with self._changed:
            while True:
                # Bounded: whoever is this far behind holds the others up.
                self._changed.wait_for(lambda: len(self._results) < self._backlog or self._leaving)
                mine = self._given is not None or self._leaving
                if mine and not announced:
                    announced = True
                    self._announce(number)
                others = sum(first <= number for first in self._there.values())
                if mine + others == size:
                    break
                if mine or others:
                    self._first_seen = getattr(self, "_first_seen", None)
                self._changed.wait(0.2)
            given, self._given = self._given, None
            return given, self._leaving

    @property
    def _nbytes(self) -> int:
        return self._count * struct.calcsize(_CODES[self._dtype])
