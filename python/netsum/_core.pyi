"""The compiled core: `crates/py`. Texts in `str` that are JSON have their types in `netsum.reports`."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal, final, overload

__all__ = [
    "PROTOCOLS",
    "ControllerUnavailable",
    "Group",
    "Meeting",
    "Mismatch",
    "NetsumError",
    "OperationTimeout",
    "PeerLost",
    "Unsupported",
    "Work",
    "estimate_allreduce",
    "explain_allreduce",
    "explain_hosts",
    "export_trees",
    "gpu_classes",
    "graph_without",
    "meet",
    "ocs_answer",
    "ocs_check",
    "ocs_compare",
    "ocs_curve",
    "ocs_share",
    "pack_front",
    "pack_kinds",
    "pack_trees",
    "replan_trees",
    "status",
    "topology",
    "verify_trees",
    "version",
    "xla_handler",
]

_Span = tuple[int, int]
"""Address and bytes (for the inputs of `reduce_scatter`, elements) of host memory."""
_Numbers = tuple[int, int, int, int]
"""Workers, ports of each, devices, ports of each."""

PROTOCOLS: tuple[str, ...]
"""Aggregation protocols that a job may ask for; with `auto` the controller chooses."""

class NetsumError(RuntimeError):
    """An operation failed; the group may be unusable."""

class PeerLost(NetsumError):
    """A rank is gone; `rank` says which."""

    rank: int

class OperationTimeout(NetsumError):
    """An operation took longer than its timeout."""

class Mismatch(NetsumError):
    """Ranks called different operations in the same place."""

class Unsupported(NetsumError):
    """An argument that is not possible."""

class ControllerUnavailable(NetsumError):
    """The controller does not answer, or refuses."""

@final
class Work:
    """An operation under way; its memory is free when it is done."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the operation is done, at most `timeout_s` seconds (None: for as long as it takes)."""

    def done(self) -> bool:
        """Whether it has ended, well or not."""

    def ended_well(self) -> bool:
        """Whether it has ended without an error."""

    def error(self) -> str | None:
        """Why it failed, in words; None if it has not."""

    def source_rank(self) -> int | None:
        """The sender of the message that a receive took."""

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call `callback()` once when the operation is done, on a pool of two threads."""

@final
class Group:
    """One rank's handle to its group.

    Buffers come as addresses and sizes: whoever calls keeps them alive until the Work is done. With `here`, a
    collective may be done by the caller's own thread, and then returns None in place of a Work.
    """

    def __new__(
        cls,
        rank: int,
        size: int,
        name: str,
        controller: str | None,
        host: str | None,
        timeout_s: float,
        options: Mapping[str, str],
    ) -> Group: ...
    def address(self) -> bytes:
        """What the other ranks must be given; opaque."""

    def connect(self, addresses: Sequence[bytes]) -> None:
        """Block until all ranks are connected and, with a controller, the first plan is here."""

    def number(self) -> int:
        """A number by which programs that XLA has compiled name the group."""

    def stats(self) -> str:
        """What the group has done and how it stands: JSON of `netsum.reports.GroupStats`."""

    def explain(self, operation: str, nbytes: int, dtype: str, op: str) -> str:
        """The algorithm of the hosts' path and the costs of all: JSON of `netsum.reports.Choice`."""

    def recorded(self, why: str = "") -> str:
        """The group and its last operations, oldest first: JSON of `netsum.reports.Recorded`; "{}" once closed."""

    def dump(self, folder: str | PathLike[str], why: str = "") -> Path:
        """Write what `recorded` gives into a folder; the path of the file."""

    def close(self) -> None:
        """Leave the job in good order."""

    def abort(self, reason: str) -> None:
        """Fail everything that is under way, and every later call."""

    @overload
    def allreduce(
        self, ptr: int, numel: int, dtype: str, op: str, factor: float, timeout_s: float, here: Literal[False] = False
    ) -> Work: ...
    @overload
    def allreduce(
        self, ptr: int, numel: int, dtype: str, op: str, factor: float, timeout_s: float, here: bool
    ) -> Work | None: ...
    @overload
    def reduce(
        self,
        ptr: int,
        numel: int,
        dtype: str,
        op: str,
        factor: float,
        root: int,
        timeout_s: float,
        here: Literal[False] = False,
    ) -> Work: ...
    @overload
    def reduce(
        self, ptr: int, numel: int, dtype: str, op: str, factor: float, root: int, timeout_s: float, here: bool
    ) -> Work | None: ...
    @overload
    def broadcast(
        self, ptr: int, nbytes: int, root: int, timeout_s: float, here: Literal[False] = False, elements: str = ""
    ) -> Work: ...
    @overload
    def broadcast(
        self, ptr: int, nbytes: int, root: int, timeout_s: float, here: bool, elements: str = ""
    ) -> Work | None: ...
    @overload
    def allgather(
        self, outs: Sequence[_Span], in_: _Span, timeout_s: float, here: Literal[False] = False, elements: str = ""
    ) -> Work: ...
    @overload
    def allgather(
        self, outs: Sequence[_Span], in_: _Span, timeout_s: float, here: bool, elements: str = ""
    ) -> Work | None: ...
    @overload
    def gather(
        self,
        outs: Sequence[_Span],
        in_: _Span,
        root: int,
        timeout_s: float,
        here: Literal[False] = False,
        elements: str = "",
    ) -> Work: ...
    @overload
    def gather(
        self, outs: Sequence[_Span], in_: _Span, root: int, timeout_s: float, here: bool, elements: str = ""
    ) -> Work | None: ...
    @overload
    def scatter(
        self,
        out: _Span,
        ins: Sequence[_Span],
        root: int,
        timeout_s: float,
        here: Literal[False] = False,
        elements: str = "",
    ) -> Work: ...
    @overload
    def scatter(
        self, out: _Span, ins: Sequence[_Span], root: int, timeout_s: float, here: bool, elements: str = ""
    ) -> Work | None: ...
    @overload
    def reduce_scatter(
        self,
        out_ptr: int,
        ins: Sequence[_Span],
        dtype: str,
        op: str,
        factor: float,
        timeout_s: float,
        here: Literal[False] = False,
    ) -> Work: ...
    @overload
    def reduce_scatter(
        self, out_ptr: int, ins: Sequence[_Span], dtype: str, op: str, factor: float, timeout_s: float, here: bool
    ) -> Work | None: ...
    @overload
    def alltoall(
        self,
        outs: Sequence[_Span],
        ins: Sequence[_Span],
        timeout_s: float,
        here: Literal[False] = False,
        elements: str = "",
    ) -> Work: ...
    @overload
    def alltoall(
        self, outs: Sequence[_Span], ins: Sequence[_Span], timeout_s: float, here: bool, elements: str = ""
    ) -> Work | None: ...
    @overload
    def barrier(self, timeout_s: float, here: Literal[False] = False) -> Work: ...
    @overload
    def barrier(self, timeout_s: float, here: bool) -> Work | None: ...
    def send(self, ptr: int, nbytes: int, dst: int, tag: int, timeout_s: float) -> Work: ...
    def recv(self, ptr: int, nbytes: int, src: int | None, tag: int, timeout_s: float) -> Work:
        """src None: from any rank; the Work then says which."""

@final
class Meeting:
    """An open meeting, hosted by one rank; all ranks then call `meet`."""

    def __new__(cls, at: str, token: bytes, timeout_s: float) -> Meeting: ...
    def port(self) -> int:
        """The port it listens at."""

def meet(at: str, token: bytes, rank: int, size: int, address: bytes, timeout_s: float) -> list[bytes]:
    """Everybody's address by rank, from the meeting at `at`; blocks until all have come."""

def version() -> str:
    """Version of the core."""

def status(controller: str, timeout_s: float) -> str:
    """What the controller at `controller` ("host:port") knows: JSON of `netsum.reports.ControllerStatus`."""

def explain_hosts(
    ranks: int, latency_s: float, bytes_per_s: float, operation: str, nbytes: int, dtype: str, op: str
) -> str:
    """As `Group.explain`, for `ranks` on such links, without a group."""

def xla_handler() -> int:
    """The address of the handler, for `jax.ffi.register_ffi_target`."""

def topology(
    source: str,
    file: str | None = None,
    format: str | None = None,
    gpus: Sequence[str] = ...,
    kinds: Sequence[str] = ...,
) -> str:
    """A topology as netsum's JSON. source: the text of `file`, or with None the name of a known machine."""

def pack_trees(graph: str, collective: str, method: str, pieces: int) -> str:
    """The best plan for a collective: JSON of `netsum_plan::pack::Report`."""

def pack_front(graph: str, collective: str) -> str:
    """Plans of which none is worse in rate, trees and height together: a list of reports."""

def pack_kinds(graph: str, collective: str, kinds: Sequence[tuple[str, float]], bytes: float) -> str:
    """The best trees on each kind of links by itself, all ending together: JSON of `netsum_plan::pack::Hybrid`."""

def verify_trees(text: str, graph: str | None = None) -> str | None:
    """What is wrong with a plan on a graph, or without one with a program; None if it is right."""

def export_trees(plan: str, graph: str, format: str) -> str:
    """A plan in another form: "msccl" (XML), "mscclpp" (JSON) or "svg"."""

def graph_without(graph: str, lost: Sequence[str], degraded: Sequence[tuple[str, str]]) -> tuple[str, list[str]]:
    """The graph without what was lost, and what that was, in words."""

def replan_trees(
    graph: str, collective: str, lost: Sequence[str], degraded: Sequence[tuple[str, str]]
) -> tuple[str, list[str]]:
    """The best plan without what was lost: JSON of a report, and what was lost in words."""

def explain_allreduce(graph: str, sizes: Sequence[float]) -> str:
    """When aggregation helps an allreduce of `sizes` bytes: JSON of `netsum_plan::pack::Explanation`."""

def estimate_allreduce(graph: str, method: str, sizes: Sequence[float]) -> list[float]:
    """Seconds of an allreduce of `sizes` bytes over the plan of a method, by the cost model."""

def gpu_classes(graph: str) -> list[tuple[list[int], int]]:
    """Classes of alike GPU sets of three or more: numbers of the first set, and how many there are."""

def ocs_answer(numbers: _Numbers, paired: bool, method: str) -> str:
    """A checked plan by `method`, beside what else could be had, as JSON."""

def ocs_compare(numbers: _Numbers, paired: bool) -> str:
    """What the numbers allow, without a plan, as JSON."""

def ocs_curve(numbers: _Numbers, paired: bool, method: str) -> list[str]:
    """algbw for 0 to M devices by `method`, as texts like "16/15"."""

def ocs_check(plan: str) -> str:
    """Replay a plan written as JSON, and say what it does, as JSON."""

def ocs_share(jobs: Sequence[tuple[int, int]], pool: int, device_ports: int, paired: bool, method: str) -> str:
    """Share `pool` devices among jobs (N, D), as JSON: devices, algbw and gain of each."""
