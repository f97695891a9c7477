"""A group of ranks with collectives on arrays of any framework."""

import json
import struct
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from netsum import NetsumError, Unsupported
from netsum.communicator.memory import Memory, memory
from netsum.communicator.pending import Pending
from netsum.recorder import closing, watch
from netsum.report import recording
from netsum.reports import GroupStats

if TYPE_CHECKING:
    from netsum._core import Group, Work

OPERATIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
_PAIRS = {"complex64": "float32", "complex128": "float64"}
_HELD_AT = 64
"""Operations held before completed ones are released."""


class Communicator:
    """One rank's handle. All ranks must call the same collectives in the same order, with equal sizes where stated.

    Arrays are those that `memory` accepts: NumPy arrays, torch tensors, `array.array`, memoryviews, anything with
    DLPack, dense and in host memory. With `wait=False` a call returns a `Pending` at once; its arrays must then be left
    alone until it is done. Errors: Unsupported for arguments, PeerLost, OperationTimeout, Mismatch of the ranks' calls.
    Made by `connect`.
    """

    def __init__(self, core: "Group", rank: int, size: int, name: str, timeout_s: float) -> None:
        self.core = core
        self.rank = rank
        self.size = size
        self.name = name
        self.timeout_s = timeout_s
        self._splits = 0
        self._held: list[Pending] = []
        self._lock = threading.Lock()

    def allreduce(self, array: Any, op: str = "sum", *, out: Any = None, factor: float = 1.0, wait: bool = True) -> Any:
        """Combine the `array` of all ranks, in place or in `out` of the same size; returns the array with the result.

        op: of OPERATIONS; premul_sum multiplies this rank's values by `factor` first.
        """
        target = self._place(array, out, "allreduce")
        dtype, count = elements(target, "allreduce", op)
        work = self.core.allreduce(target.address, count, dtype, op, factor, self.timeout_s)
        return self._finish(work, target, array if out is None else out, wait)

    def reduce(self, array: Any, root: int, op: str = "sum", *, factor: float = 1.0, wait: bool = True) -> Any:
        """Combine the `array` of all ranks at rank `root`, in place; the other ranks' arrays are unchanged."""
        target = memory(array, "reduce", written=self.rank == root)
        dtype, count = elements(target, "reduce", op)
        work = self.core.reduce(target.address, count, dtype, op, factor, root, self.timeout_s)
        return self._finish(work, target, array, wait)

    def broadcast(self, array: Any, root: int, *, wait: bool = True) -> Any:
        """Fill the `array` of every rank with that of rank `root`."""
        target = memory(array, "broadcast", written=self.rank != root)
        return self._finish(self.core.broadcast(*target.span, root, self.timeout_s), target, array, wait)

    def allgather(self, array: Any, out: Any, *, wait: bool = True) -> Any:
        """Gather the `array` of all ranks in `out`: one array of `size` times its elements, or a list with an array per
        rank.

        With a list, arrays of different ranks may differ in size.
        """
        source = memory(array, "allgather")
        kept, outs = self._many(out, "allgather", written=True)
        return self._finish(self.core.allgather(outs, source.span, self.timeout_s), (source, kept), out, wait)

    def gather(self, array: Any, out: Any, root: int, *, wait: bool = True) -> Any:
        """As `allgather`, at rank `root` alone; at other ranks `out` is ignored and may be None."""
        source = memory(array, "gather")
        kept, outs = self._many(out, "gather", written=True) if self.rank == root else ((), [])
        return self._finish(self.core.gather(outs, source.span, root, self.timeout_s), (source, kept), out, wait)

    def scatter(self, arrays: Any, out: Any, root: int, *, wait: bool = True) -> Any:
        """Scatter part i of rank `root`'s `arrays` to rank i's `out`: one array cut evenly, or a list with an array per
        rank."""
        target = memory(out, "scatter", written=True)
        kept, ins = self._many(arrays, "scatter") if self.rank == root else ((), [])
        return self._finish(self.core.scatter(target.span, ins, root, self.timeout_s), (target, kept), out, wait)

    def reduce_scatter(self, arrays: Any, out: Any, op: str = "sum", *, factor: float = 1.0, wait: bool = True) -> Any:
        """Combine part i of all ranks in rank i's `out`. arrays: one array cut evenly, or a list with an array per
        rank."""
        target = memory(out, "reduce_scatter", written=True)
        dtype, _ = elements(target, "reduce_scatter", op)
        sources = [memory(each, "reduce_scatter") for each in _list_of(arrays)]
        if any(source.dtype != target.dtype for source in sources):
            raise ValueError(f"netsum reduce_scatter: inputs are {sources[0].dtype}, the output is {target.dtype}")
        if isinstance(arrays, (list, tuple)):
            ins = [(source.address, source.count) for source in sources]
        else:
            ins = sources[0].parts(self.size, "reduce_scatter")
        pairs = 2 if target.dtype in _PAIRS else 1
        ins = [(address, count * pairs) for address, count in ins]
        own = ins[self.rank][1] if len(ins) == self.size else -1
        if own != target.count * pairs:
            raise ValueError(f"netsum reduce_scatter: out has {target.count} elements, its inputs {own // pairs}")
        work = self.core.reduce_scatter(target.address, ins, dtype, op, factor, self.timeout_s)
        return self._finish(work, (target, sources), out, wait)

    def alltoall(self, arrays: Any, out: Any, *, wait: bool = True) -> Any:
        """Send part i of rank r's `arrays` to part r of rank i's `out`; each is one array cut evenly or a list of
        arrays."""
        kept_in, ins = self._many(arrays, "alltoall")
        kept_out, outs = self._many(out, "alltoall", written=True)
        return self._finish(self.core.alltoall(outs, ins, self.timeout_s), (kept_in, kept_out), out, wait)

    def barrier(self, *, wait: bool = True) -> Any:
        """Return when all ranks have called it."""
        return self._finish(self.core.barrier(self.timeout_s), None, None, wait)

    def send(self, array: Any, to: int, tag: int = 0, *, wait: bool = True) -> Any:
        """Send `array` to rank `to`. Messages of one tag between two ranks keep their order."""
        source = memory(array, "send")
        return self._finish(self.core.send(*source.span, to, tag, self.timeout_s), source, None, wait)

    def receive(self, out: Any, source: int | None = None, tag: int = 0, *, wait: bool = True) -> Any:
        """Fill `out` with the next message of rank `source`, or of any rank; the message must have exactly its size."""
        target = memory(out, "receive", written=True)
        work = self.core.recv(*target.span, source, tag, self.timeout_s)
        return self._finish(work, target, out, wait)

    def exchange(self, message: bytes) -> list[bytes]:
        """The `message` of every rank, by rank; messages may differ in length."""
        lengths = bytearray(8 * self.size)
        self.allgather(struct.pack("<Q", len(message)), lengths)
        outs = [bytearray(length) for length in struct.unpack(f"<{self.size}Q", lengths)]
        self.allgather(message, outs)
        return [bytes(out) for out in outs]

    def split(self, members: Sequence[int] | None) -> "Communicator | None":
        """A communicator of a subset of ranks over the hosts' path; all ranks call it, each with its own subset or
        None.

        members: ranks of this communicator, in the order of the new one; all ranks of a subset pass the same list.
        Returns None at a rank that passes None. Raises ValueError if this rank is not among its own members.
        """
        from netsum import _core
        from netsum.config import Settings

        self._splits += 1
        if members is None:
            self.exchange(b"")
            return None
        ranks = list(members)
        if self.rank not in ranks or len(set(ranks)) != len(ranks) or not all(0 <= r < self.size for r in ranks):
            self.exchange(b"")
            raise ValueError(f"netsum split: members {ranks} must be different ranks below {self.size}, with this one")
        settings = Settings.from_environment().host_path_only()
        name = f"{self.name}/{self._splits}"
        rank, size = ranks.index(self.rank), len(ranks)
        core = _core.Group(rank, size, name, None, settings.host, self.timeout_s, settings.options)
        watch(core)
        addresses = self.exchange(bytes(core.address()))
        missing = [each for each in ranks if not addresses[each]]
        if missing:
            raise NetsumError(f"netsum split: ranks {missing} did not name the same members as rank {self.rank}")
        core.connect([addresses[each] for each in ranks])
        return Communicator(core, rank, size, name, self.timeout_s)

    def stats(self) -> GroupStats:
        """Counters and state of the group."""
        found: GroupStats = json.loads(self.core.stats())
        return found

    def close(self) -> None:
        """Leave the group in an orderly way; later calls raise."""
        closing(self.core)
        self.core.close()
        self._held.clear()

    def abort(self, reason: str) -> None:
        """Fail all operations in flight, here and at all other ranks, and every later call."""
        self.core.abort(reason)
        recording.finish(self.core)

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort(f"rank {self.rank} raised {type(error).__name__}: {error}")

    def _place(self, array: Any, out: Any, operation: str) -> Memory:
        """The memory an operation works on in place: `array`, or `out` filled with the values of `array`."""
        if out is None:
            return memory(array, operation, written=True)
        source, target = memory(array, operation), memory(out, operation, written=True)
        if (source.dtype, source.count) != (target.dtype, target.count):
            raise ValueError(
                f"netsum {operation}: {source.count} elements of {source.dtype} do not fit in out, "
                f"{target.count} of {target.dtype}"
            )
        if source.address != target.address:
            copy(target, source)
        return target

    def _many(self, arrays: Any, operation: str, written: bool = False) -> tuple[list[Memory], list[tuple[int, int]]]:
        """The objects to keep alive, and a span per rank."""
        memories = [memory(each, operation, written) for each in _list_of(arrays)]
        if isinstance(arrays, (list, tuple)):
            if len(memories) != self.size:
                raise ValueError(f"netsum {operation}: {len(memories)} arrays for {self.size} ranks")
            return memories, [each.span for each in memories]
        one = memories[0]
        return memories, [(address, count * one.itemsize) for address, count in one.parts(self.size, operation)]

    def _finish(self, work: "Work", kept: Any, result: Any, wait: bool) -> Any:
        pending = Pending(work, kept, result)
        if wait:
            return pending.wait()
        # The operation's memory is kept alive even if the caller drops the returned object.
        with self._lock:
            if len(self._held) >= _HELD_AT:
                self._held = [each for each in self._held if not each.done()]
            self._held.append(pending)
        return pending


def copy(target: Memory, source: Memory) -> None:
    """Copy the bytes of `source` to `target`, which must be of the same size."""
    import ctypes

    ctypes.memmove(target.address, source.address, source.nbytes)


def _list_of(arrays: Any) -> Sequence[Any]:
    return arrays if isinstance(arrays, (list, tuple)) else [arrays]


def elements(found: Memory, operation: str, op: str) -> tuple[str, int]:
    """(name, number) of the elements to combine."""
    if op not in OPERATIONS:
        raise Unsupported(f"netsum {operation}: operation {op!r} does not exist; use one of {', '.join(OPERATIONS)}")
    pairs = _PAIRS.get(found.dtype)
    if pairs is None:
        return found.dtype, found.count
    if op not in ("sum", "avg", "premul_sum"):
        raise Unsupported(f"netsum {operation}: {op!r} is not defined on {found.dtype}")
    return pairs, 2 * found.count
