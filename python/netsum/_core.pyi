"""The compiled core: `crates/py`. The types of `str` results that are JSON are in `netsum.reports`."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal, final, overload

__all__ = [
    "CONGESTION_RULES",
    "NETWORKS",
    "PROTOCOLS",
    "ControllerUnavailable",
    "CredentialsError",
    "Enrolment",
    "Group",
    "Meeting",
    "Mismatch",
    "NetsumError",
    "OperationTimeout",
    "PeerLost",
    "SharedScale",
    "Unsupported",
    "Work",
    "answer_stacks",
    "ask_process",
    "ask_ranks",
    "ca_init",
    "ca_issue",
    "ca_join",
    "ca_renew",
    "ca_revoke",
    "ca_token",
    "credentials",
    "distance_bound",
    "estimate_allreduce",
    "explain_allreduce",
    "explain_hosts",
    "export_trees",
    "gpu_classes",
    "graph_without",
    "job_operations",
    "meet",
    "ocs_answer",
    "ocs_check",
    "ocs_compare",
    "ocs_curve",
    "ocs_share",
    "pack_front",
    "pack_groups",
    "pack_kinds",
    "pack_orbits",
    "pack_trees",
    "rekey_job",
    "replan_trees",
    "socket_folder",
    "status",
    "stop_job",
    "stragglers",
    "topology",
    "training_steps",
    "verify_proven",
    "verify_trees",
    "version",
    "xla_handler",
]

_Span = tuple[int, int]
"""Address and bytes (for the inputs of `reduce_scatter`, elements) of host memory."""
_Numbers = tuple[int, int, int, int]
"""Workers, ports of each, devices, ports of each."""

PROTOCOLS: tuple[str, ...]
"""Aggregation protocols that a job may request; with `auto` the controller chooses."""
CONGESTION_RULES: tuple[str, ...]
"""Reactions to congestion marks that a job may request."""
NETWORKS: tuple[str, ...]
"""Networks between hosts."""

class NetsumError(RuntimeError):
    """An operation failed; the group may be unusable."""

class PeerLost(NetsumError):
    """A rank is lost: `rank`."""

    rank: int

class OperationTimeout(NetsumError):
    """An operation took longer than its timeout."""

class Mismatch(NetsumError):
    """Ranks called different operations at the same position."""

class Unsupported(NetsumError):
    """An invalid or unsupported argument."""

class ControllerUnavailable(NetsumError):
    """The controller does not answer, or rejects the request."""

class CredentialsError(NetsumError):
    """A certificate, a key or their authority cannot be used; the text names the file and the remedy."""

@final
class Work:
    """An operation in flight; its memory may be reused once it is done."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the operation is done, at most `timeout_s` seconds (None: no limit)."""

    def done(self) -> bool:
        """Whether it has completed, successfully or not."""

    def ended_well(self) -> bool:
        """Whether it has completed without an error."""

    def error(self) -> str | None:
        """The error message; None if it has not failed."""

    def source_rank(self) -> int | None:
        """The sender of the message that a receive got."""

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call `callback()` once when the operation is done, on a pool of two threads."""

@final
class Group:
    """One rank's handle to its group.

    Buffers are passed as addresses and sizes: the caller keeps them alive until the Work is done. With `here`, a
    collective may run on the caller's own thread, and then returns None in place of a Work.
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
        """This rank's address for the other ranks; opaque."""

    def connect(self, addresses: Sequence[bytes]) -> None:
        """Block until all ranks are connected and, with a controller, the first plan has arrived."""

    def number(self) -> int:
        """The number that identifies the group in programs compiled by XLA."""

    def stats(self) -> str:
        """Counters and state of the group: JSON of `netsum.reports.GroupStats`."""

    def explain(self, operation: str, nbytes: int, dtype: str, op: str) -> str:
        """The algorithm of the hosts' path and the costs of all: JSON of `netsum.reports.Choice`."""

    def ask(self, patience_s: float) -> str:
        """What all ranks are doing: JSON by rank, without those that do not answer within `patience_s`."""

    def recorded(self, why: str = "") -> str:
        """The group and its last operations, oldest first: JSON of `netsum.reports.Recorded`; "{}" once closed."""

    def dump(self, folder: str | PathLike[str], why: str = "") -> Path:
        """Write the result of `recorded` into a folder; returns the path of the file."""

    def close(self) -> None:
        """Leave the job in an orderly way."""

    def abort(self, reason: str) -> None:
        """Fail all operations in flight, and every later call."""

    @overload
    def allreduce(
        self, ptr: int, numel: int, dtype: str, op: str, factor: float, timeout_s: float, here: Literal[False] = False
    ) -> Work: ...
    @overload
    def allreduce(
        self, ptr: int, numel: int, dtype: str, op: str, factor: float, timeout_s: float, here: bool
    ) -> Work | None: ...
    def allreduce_all(
        self,
        buffers: list[tuple[int, int]],
        dtype: str,
        op: str,
        factor: float,
        timeout_s: float,
        here: bool = False,
    ) -> Work | None:
        """Sum several buffers, each (address, elements); small ones travel together. The work ends with the last."""

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
        """src None: from any rank; the Work then reports which."""

@final
class SharedScale:
    """Rounding to 8-bit numbers with a scale per block that all ranks share; `crates/wire/src/shared_scale.rs`.

    Tensors are addresses of dense host memory with `numel` elements, which nothing else uses during a call. `kept`,
    `values` and a mean are float32; magnitudes are bfloat16, one per block; numbers and sums have the dtype.
    """

    def __new__(cls, dtype: str, ranks: int, block: int) -> SharedScale:
        """dtype: "int8", or a type with narrow contributions, such as "int16_from_int8". block: values with one scale.

        Raises Unsupported if so many ranks cannot add it exactly.
        """

    def top(self) -> float:
        """The largest number that a rank sends, in steps of the scale."""

    def blocks(self, numel: int) -> int:
        """Number of blocks of so many values."""

    def largest(self, kept: int, values: int, numel: int, out: int) -> None:
        """Add `values` to `kept`; write the largest magnitude of each block."""

    def round(self, kept: int, numel: int, magnitudes: int, out: int) -> None:
        """Round `kept` to numbers, and leave the rounding errors in it. magnitudes: the largest over all ranks."""

    def mean(self, sums: int, numel: int, magnitudes: int, out: int) -> None:
        """The mean over the ranks, from the sums of their numbers."""

@final
class Meeting:
    """An open meeting, hosted by one rank; all ranks then call `meet`."""

    def __new__(cls, at: str, token: bytes, timeout_s: float, credentials: Path | None = None) -> Meeting: ...
    def port(self) -> int:
        """The port it listens at."""

def meet(
    at: str,
    token: bytes,
    rank: int,
    size: int,
    address: bytes,
    timeout_s: float,
    credentials: Path | None = None,
) -> list[bytes]:
    """The address of every rank, by rank, from the meeting at `at`; blocks until all have joined.

    credentials: the folder of this process's certificates; all ranks have some, or none.
    """

def version() -> str:
    """Version of the core."""

def status(controller: str, timeout_s: float, credentials: Path | None = None) -> str:
    """The status of the controller at `controller` ("host:port"): JSON of `netsum.reports.ControllerStatus`.

    credentials: the folder of this process's certificates, if the controller demands one."""

def stragglers(before: str, now: str, elapsed_s: float) -> str:
    """Children of jobs' trees for which the others wait, from two results of `status`: JSON of a list of
    `netsum.reports.Straggler`."""

def ask_ranks(controller: str, job: int, patience_s: float, timeout_s: float, credentials: Path | None = None) -> str:
    """What the ranks of a job are doing: JSON by rank, without those that do not answer within `patience_s`."""

def ask_process(socket: Path, group: str, patience_s: float) -> str:
    """What the process at a socket is doing, or, with the name of a group, all ranks of that group: JSON."""

def socket_folder() -> Path:
    """The folder of the sockets at which this user's processes answer."""

def answer_stacks(socket: int) -> None:
    """Take over a socket whose other end answers each line, a number, with a line of JSON that has it as "id"."""

def job_operations(controller: str, job: int, timeout_s: float, credentials: Path | None = None) -> str:
    """The last collectives of a job's ranks: JSON of a list of `reports.RankOperations`."""

def training_steps(called: Sequence[tuple[str, int, float, float | None]]) -> str:
    """The training steps in collectives, oldest first (name and type, bytes, time of the call, time of the end or
    None): JSON of a list of `reports.TrainingStep`, empty if the calls do not repeat."""

def stop_job(controller: str, job: int, reason: str, timeout_s: float, credentials: Path | None = None) -> None:
    """End a job of the controller at `controller` ("host:port"); its ranks are told `reason`."""

def rekey_job(controller: str, job: int, timeout_s: float, credentials: Path | None = None) -> None:
    """Give a job new keys and a new plan; packets under the old keys are refused."""

def ca_init(folder: Path, fabric: str) -> None:
    """Create the certificate authority of a fabric in a folder, or check that it is there."""

def ca_issue(authority: Path, role: str, out: Path, days: int) -> tuple[str, int]:
    """Issue a certificate of a role, as "switch/rack0", and write the files of its owner into `out`.

    Returns the identity, and the end of its validity in seconds since 1970."""

def ca_renew(authority: Path, folder: Path, days: int) -> tuple[str, int]:
    """Replace the certificate and the key in `folder`; returns as `ca_issue`."""

def ca_revoke(authority: Path, role: str | None = None) -> tuple[int, Path]:
    """Revoke all certificates of a role; returns their number and the revocation list's file.

    Without a role, only sign the list anew."""

def ca_token(authority: Path, role: str, address: str, seconds: float) -> str:
    """A token by which one machine gets a certificate of a role within `seconds`, from the authority at `address`."""

def ca_join(token: str, out: Path) -> tuple[str, int]:
    """Get the certificate of a token, and write the files of its owner into `out`; returns as `ca_issue`."""

@final
class Enrolment:
    """The authority in a folder, served at `listen` ("address:port") for machines that join by a token."""

    def __new__(cls, authority: Path, listen: str, days: int) -> Enrolment: ...
    def address(self) -> str:
        """The listening address; empty once it is closed."""

    def open_tokens(self) -> int:
        """How many tokens can be used."""

    def next(self, timeout_s: float) -> tuple[str, str | None, str | None] | None:
        """The next attempt: a machine's address, and the identity that it got, or why it got none."""

    def close(self) -> None:
        """Stop serving."""

def credentials(folder: Path) -> tuple[str, int]:
    """The owner of the credentials in a folder; returns as `ca_issue`. CredentialsError if they cannot be used."""

def explain_hosts(
    ranks: int, latency_s: float, bytes_per_s: float, operation: str, nbytes: int, dtype: str, op: str
) -> str:
    """As `Group.explain`, for `ranks` on links like `link`, without a group."""

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

def pack_trees(
    graph: str,
    collective: str,
    method: str,
    pieces: int,
    seconds: float | None = None,
    progress: Callable[[float, float], bool] | None = None,
) -> str:
    """The best plan for a collective: JSON of `netsum_plan::pack::Report`."""

def pack_front(graph: str, collective: str) -> str:
    """Pareto-optimal plans in rate, number of trees and height, `points`, and from which sizes on one is `fastest`."""

def pack_orbits(graph: str, collective: str) -> str:
    """The best trees that are alike for all ranks: JSON of a plan by automorphisms."""

def pack_groups(graph: str, groups: Sequence[tuple[str, Sequence[int], str, int]]) -> str:
    """The best trees of several process groups together, JSON. groups: name, ranks, collective, bytes."""

def verify_proven(text: str, graph: str) -> tuple[str, str | None] | None:
    """Rate and proven bound (fractions) of a plan by `pack_orbits` or `pack_groups`; None for other plans."""

def pack_kinds(graph: str, collective: str, kinds: Sequence[tuple[str, float]], bytes: float) -> str:
    """The best trees on each kind of links separately, all finishing together: JSON of `netsum_plan::pack::Hybrid`."""

def distance_bound(graph: str, lengths: str) -> str:
    """The rate (bit/s, a fraction) that no all-to-all on a graph exceeds, by the lengths of links (JSON)."""

def verify_trees(text: str, graph: str | None = None) -> str | None:
    """What is wrong with a plan on a graph, or without a graph with a program; None if it is valid."""

def export_trees(plan: str, graph: str, format: str) -> tuple[str, str]:
    """A plan in another form: "msccl" (XML), "mscclpp" (JSON) or "svg"."""

def graph_without(graph: str, lost: Sequence[str], degraded: Sequence[tuple[str, str]]) -> tuple[str, list[str]]:
    """The graph without the lost parts, and a description of each."""

def replan_trees(
    graph: str, plan: str, lost: Sequence[str], degraded: Sequence[tuple[str, str]]
) -> tuple[str, list[str], bool, float]:
    """The best plan without the lost parts, from the plan in use.

    Returns JSON of a report, a description of each loss, whether the plan was mended (else its trees are new), and the
    part of the buffer that keeps its trees.
    """

def explain_allreduce(graph: str, sizes: Sequence[float]) -> str:
    """When aggregation speeds up an allreduce of `sizes` bytes: JSON of `netsum_plan::pack::Explanation`."""

def estimate_allreduce(graph: str, method: str, sizes: Sequence[float]) -> list[float]:
    """Seconds of an allreduce of `sizes` bytes over the plan of a method, by the cost model."""

def gpu_classes(graph: str) -> list[tuple[list[int], int]]:
    """Classes of equivalent sets of three or more GPUs: numbers of the first set, and the number of sets."""

def ocs_answer(numbers: _Numbers, paired: bool, method: str) -> str:
    """A checked plan by `method`, with the rates of the alternatives, as JSON."""

def ocs_compare(numbers: _Numbers, paired: bool) -> str:
    """The achievable rates, without a plan, as JSON."""

def ocs_curve(numbers: _Numbers, paired: bool, method: str) -> list[str]:
    """algbw for 0 to M devices by `method`, as texts like "16/15"."""

def ocs_check(plan: str) -> str:
    """Replay a plan in JSON, and return its report as JSON."""

def ocs_share(jobs: Sequence[tuple[int, int]], pool: int, device_ports: int, paired: bool, method: str) -> str:
    """Share `pool` devices among jobs (N, D), as JSON: devices, algbw and gain of each."""
