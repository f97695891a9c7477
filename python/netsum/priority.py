"""Allreduces with priorities: a later one with a higher priority overtakes an earlier one.

    queue = PriorityQueue(world.split(range(world.size)))
    late = queue.allreduce(gradient_of_last_layer, priority=9)      # returns at once
    soon = queue.allreduce(gradient_of_first_layer, priority=0)     # overtakes: the next forward pass begins with it
    soon.wait()

Buffers are summed in slices. Before every slice rank 0 announces which buffer is next: the lowest priority number
first, then the order of calls. So ranks need not agree on anything else, and may call at different times.
"""

import ctypes
import functools
import threading
from typing import TYPE_CHECKING, Any

from netsum import NetsumError, Unsupported
from netsum.communicator import Communicator, Memory, memory
from netsum.communicator.communicator import elements

if TYPE_CHECKING:
    from netsum._core import Group

SLICE_BYTES = 1 << 20
"""A slice takes some hundred microseconds of memory or of a fast link, against a few for the exchange with rank 0."""
_FOREVER_S = 1e9
_END = -1


class Sum:
    """An allreduce in flight; `wait` returns its array."""

    def __init__(self, target: Memory, dtype: str, count: int, op: str, priority: int, result: Any) -> None:
        self.priority = priority
        self._target, self._dtype, self._op, self._result = target, dtype, op, result
        self._count, self._done = count, 0
        self._ended = threading.Event()
        self._failure: BaseException | None = None

    def wait(self, timeout_s: float | None = None) -> Any:
        """The array with the sum. Raises the errors of the group's sums, and TimeoutError after `timeout_s`."""
        if not self._ended.wait(timeout_s):
            raise TimeoutError(f"netsum: the sum is not there after {timeout_s} s")
        if self._failure is not None:
            raise self._failure
        return self._result

    def done(self) -> bool:
        return self._ended.is_set()

    def _slice(self, core: "Group", slice_bytes: int, timeout_s: float) -> bool:
        """Sum the next slice; returns whether it was the last."""
        width = self._target.nbytes // max(self._count, 1)
        count = min(max(slice_bytes // max(width, 1), 1), self._count - self._done)
        address = self._target.address + self._done * width
        work = core.allreduce(address, count, self._dtype, self._op, 1.0, timeout_s, True)
        if work is not None:
            work.wait(None)
        self._done += count
        return self._done == self._count

    def _end(self, failure: BaseException | None = None) -> None:
        self._failure = failure
        self._ended.set()


class PriorityQueue:
    """Allreduces over a communicator that is used for nothing else and closed at the end.

    All ranks must make the same calls in the same order; the priorities of rank 0 apply. slice_bytes: summed between
    two choices. An error ends the queue: all waiting sums, and later calls, raise it.
    """

    def __init__(self, world: Communicator, slice_bytes: int = SLICE_BYTES) -> None:
        if slice_bytes < 1:
            raise ValueError(f"netsum: slices of {slice_bytes} bytes; at least 1")
        self._world, self._slice_bytes = world, slice_bytes
        self._changed = threading.Condition()
        self._calls = 0
        self._waiting: dict[int, Sum] = {}
        self._closing = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="netsum-priority", daemon=True)
        self._thread.start()

    def allreduce(self, array: Any, op: str = "sum", *, priority: int = 0) -> Sum:
        """Combine the `array` of all ranks in place, sooner the lower `priority` is; see `Communicator.allreduce`.

        `array` must be left alone until the sum is done.
        """
        if op == "premul_sum":
            raise Unsupported("netsum: a priority queue has no premul_sum; multiply before")
        target = memory(array, "allreduce", written=True)
        dtype, count = elements(target, "allreduce", op)
        new = Sum(target, dtype, count, op, priority, array)
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._closing:
                raise NetsumError("netsum: the queue is closed")
            self._waiting[self._calls] = new
            self._calls += 1
            self._changed.notify_all()
        return new

    def close(self) -> None:
        """Wait for all sums, then end. All ranks call it. Raises the error of a failed sum."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while (number := self._agreed(self._chosen() if self._world.rank == 0 else 0)) != _END:
                with self._changed:
                    self._changed.wait_for(functools.partial(self._waiting.__contains__, number))
                    turn = self._waiting[number]
                if turn._slice(self._world.core, self._slice_bytes, self._world.timeout_s):
                    with self._changed:
                        del self._waiting[number]
                    turn._end()
        except BaseException as error:
            failure = error
        with self._changed:
            self._failure = failure
            left, self._waiting = self._waiting, {}
        for each in left.values():
            each._end(failure or NetsumError("netsum: the queue was closed by rank 0 before this sum was done"))
        self._world.close()

    def _chosen(self) -> int:
        """Rank 0's choice, once there is a waiting sum."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return min(self._waiting, key=lambda number: (self._waiting[number].priority, number), default=_END)

    def _agreed(self, number: int) -> int:
        """Broadcast rank 0's `number`; every rank returns it."""
        word = ctypes.c_int64(number)
        work = self._world.core.broadcast(ctypes.addressof(word), 8, 0, _FOREVER_S, True)
        if work is not None:
            work.wait(None)
        return word.value
