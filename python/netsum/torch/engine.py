"""One group at run time: the core, its timeout, and the memory of operations in flight."""

import threading
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d

from netsum import Unsupported
from netsum.recorder import closing
from netsum.report import recording
from netsum.torch.device import After, Later
from netsum.torch.reconfiguring import Background, Membership
from netsum.torch.tensors import Staging
from netsum.torch.work import EndedWork, NetsumWork

if TYPE_CHECKING:
    from netsum._core import Group

_OPS = {
    c10d.ReduceOp.RedOpType.SUM: "sum",
    c10d.ReduceOp.RedOpType.AVG: "avg",
    c10d.ReduceOp.RedOpType.PRODUCT: "product",
    c10d.ReduceOp.RedOpType.MIN: "min",
    c10d.ReduceOp.RedOpType.MAX: "max",
    c10d.ReduceOp.RedOpType.BAND: "band",
    c10d.ReduceOp.RedOpType.BOR: "bor",
    c10d.ReduceOp.RedOpType.BXOR: "bxor",
    c10d.ReduceOp.RedOpType.PREMUL_SUM: "premul_sum",
}
_SUM = c10d.ReduceOp.SUM
_ZERO = timedelta(0)
_FORGET_AT = 32
"""Number of works after which completed ones are released: large enough that the cost per operation is negligible."""


class Engine:
    """A connected core group, shared by the interfaces that torch uses.

    core: `netsum._core.Group`, connected. timeout_s: default for operations. membership: set for a group that shrinks
    and grows; `core` is then replaced whenever the ranks change.
    """

    def __init__(
        self, core: "Group", rank: int, size: int, timeout_s: float, name: str, membership: Membership | None = None
    ) -> None:
        self.core = core
        self.rank = rank
        self.size = size
        self.timeout_s = timeout_s
        self.name = name
        self.membership = membership
        self.operations = 0
        self.batch: list[NetsumWork] | None = None
        self.later: Later | None = None
        self.at_close: Callable[[], object] = lambda: None
        self._in_flight: list[NetsumWork] = []
        self._forget_at = _FORGET_AT

    def start(self, parts: list[Any], staging: Staging, result: list[Any]) -> NetsumWork:
        """Wrap started parts as one Work, and hold its memory until they have completed."""
        self.operations += 1
        work = NetsumWork(parts, staging, result)
        self._in_flight.append(work)
        if len(self._in_flight) >= self._forget_at:
            self._in_flight = [each for each in self._in_flight if not all(part.done() for part in each._parts)]
            self._forget_at = max(2 * len(self._in_flight), _FORGET_AT)
        if self.batch is not None:
            self.batch.append(work)
        return work

    def ended(self, result: list[Any]) -> EndedWork:
        """As `start`, for an asynchronous operation that completed successfully within its call."""
        self.operations += 1
        work = EndedWork(result)
        if self.batch is not None:
            self.batch.append(work)
        return work

    def here(self, opts: Any) -> bool:
        """Whether the caller waits for the operation, so that its own thread may run it."""
        return not opts.asyncOp and self.batch is None

    def core_for(self, staging: Staging, opts: Any = None) -> Any:
        """The object on which to call an operation on this memory: the core, or a proxy that calls it after copies
        complete.

        opts: of the operation; a synchronous caller also waits for copies here. None: asynchronous.
        """
        copies = staging.device
        if copies is None and self.later is None:
            return self.core
        if self.later is None:
            self.later = Later()
        if opts is not None and self.here(opts):
            self.later.drain()
            if copies is not None:
                copies.wait()
            return self.core
        if copies is None and self.later.idle():
            return self.core
        return After(self.core, self.later, copies)

    def begun(self) -> Any:
        """The core, once all earlier operations have started: for calls that bypass `core_for`."""
        if self.later is not None:
            self.later.drain()
        return self.core

    def start_or_wait(self, parts: list[Any], staging: Staging, result: list[Any], opts: Any) -> NetsumWork | None:
        """As `start`; for a synchronous caller, wait here and return None, which torch does not wait for.

        A part that is None has completed.
        """
        if parts.count(None):
            parts = [part for part in parts if part is not None]
            if not parts:
                self.operations += 1
                staging.finish()
                return None
        work = self.start(parts, staging, result)
        if opts.asyncOp or self.batch is not None:
            return work
        work.wait()
        return None

    def seconds(self, opts: Any) -> float:
        """The timeout of one operation in seconds: the caller's, or the group's."""
        given = getattr(opts, "timeout", _ZERO)
        if given > _ZERO:
            return given.total_seconds()
        return self.timeout_s

    def terms(self, opts: Any) -> tuple[float, bool]:
        """Arguments of every call of the core: timeout in seconds, and whether the caller's thread may run the
        operation."""
        return self.seconds(opts), self.here(opts)

    def begin_batch(self) -> None:
        if self.batch is not None:
            raise RuntimeError("netsum: coalescing was begun twice; end the first batch before")
        self.batch = []

    def end_batch(self) -> NetsumWork:
        """One Work that covers all operations started since `begin_batch`, point-to-point included."""
        if self.batch is None:
            raise RuntimeError("netsum: coalescing was ended without being begun")
        works, self.batch = self.batch, None
        return Batch(works)

    def reconfigure(self, uuid: int, handles: Collection[str], timeout_s: float | None) -> NetsumWork:
        """Become a group of other members; see `Membership.configure`. Sets the new rank and size.

        Operations in flight in the old group fail.
        """

        def change() -> None:
            old = self.core
            seconds = self.timeout_s if timeout_s is None else timeout_s
            assert self.membership is not None, "the group was made with enable_reconfigure"
            core, rank, size = self.membership.configure(uuid, handles, seconds)
            self.core, self.rank, self.size, self.operations = core, rank, size, 0
            # Lost ranks do not acknowledge the old group's close, so it must not block.
            threading.Thread(target=old.close, name="netsum-leaving", daemon=True).start()

        if self.membership is None:
            raise Unsupported("netsum: make the group with enable_reconfigure=True to reconfigure it")
        return NetsumWork([Background(change)], Staging(), [])

    def close(self) -> None:
        """Leave the job. Later calls raise."""
        closing(self.core)
        self.core.close()
        if self.later is not None:
            self.later.close()
        if self.membership is not None:
            self.membership.close()
        self._in_flight.clear()
        self.at_close()

    def abort(self, reason: str) -> None:
        self.core.abort(reason)
        recording.finish(self.core)


class Batch(NetsumWork):
    """The work of a coalesced batch: completes when all of its works have, and finishes each."""

    def __init__(self, works: list[NetsumWork]) -> None:
        super().__init__(
            [part for work in works for part in work._parts],
            _Together([work._staging for work in works]),
            [tensor for work in works for tensor in work._result],
        )


class _Together(Staging):
    """The staging of several works combined."""

    __slots__ = ("members",)

    def __init__(self, members: list[Staging]) -> None:
        super().__init__()
        self.members = members

    def finish(self) -> None:
        for member in self.members:
            member.finish()

    def follow(self) -> None:
        for member in self.members:
            member.follow()

    def devices(self) -> list[torch.device]:
        return sorted({device for member in self.members for device in member.devices()}, key=str)


def operation_of(reduce_op: Any) -> tuple[str, float]:
    """(name, factor) of a torch ReduceOp; the factor is 1 except for PREMUL_SUM."""
    if reduce_op == _SUM:
        # The most frequent case, and the comparison takes a quarter of the time of asking for the kind.
        return "sum", 1.0
    name = _OPS.get(getattr(reduce_op, "op", reduce_op))
    if name is None:
        raise ValueError(f"netsum: reduce operation {reduce_op} is not known")
    if name != "premul_sum":
        return name, 1.0
    factor = reduce_op.factor
    if isinstance(factor, torch.Tensor):
        if factor.numel() != 1:
            raise ValueError(f"netsum: PREMUL_SUM takes one factor, not {factor.numel()}")
        factor = factor.item()
    return name, float(factor)


def one(tensors: list[torch.Tensor], operation: str) -> torch.Tensor:
    """The only tensor of a list; torch passes lists for historical multi-device groups."""
    if len(tensors) != 1:
        raise ValueError(f"netsum {operation}: expected one tensor, got {len(tensors)}")
    return tensors[0]
