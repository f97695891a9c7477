"""Functions of every framework's module: start and end, ranks, process sets, join and barrier."""

import atexit
from collections.abc import Sequence

from netsum.horovod.errors import NotInitializedError
from netsum.horovod.operation import Operation
from netsum.horovod.requests import ADD_SET, BARRIER, JOIN, REMOVE_SET, Request
from netsum.horovod.runtime import Runtime

_runtime: Runtime | None = None


class ReduceOp:
    """How elements are combined: one of Average, Sum, Adasum, Min, Max, Product."""

    def __init__(self, name: str, core: str | None) -> None:
        self.name = name
        self._core = core

    @property
    def core(self) -> str:
        """netsum's name of the operation. Adasum raises NotImplementedError: it is no sum (docs/frameworks.md)."""
        if self._core is None:
            raise NotImplementedError(
                "netsum.horovod: Adasum is not supported; use op=hvd.Average, with a learning rate scaled by hvd.size()"
            )
        return self._core

    def __repr__(self) -> str:
        return f"hvd.{self.name}"


Average = ReduceOp("Average", "avg")
Sum = ReduceOp("Sum", "sum")
Adasum = ReduceOp("Adasum", None)
Min = ReduceOp("Min", "min")
Max = ReduceOp("Max", "max")
Product = ReduceOp("Product", "product")


class ProcessSet:
    """Ranks that run collectives among themselves. ranks: global ones; `add_process_set` assigns the number."""

    def __init__(self, ranks: Sequence[int]) -> None:
        if not isinstance(ranks, (list, tuple, range, set)) or not all(isinstance(rank, int) for rank in ranks):
            raise ValueError("a ProcessSet takes a list of global ranks; MPI communicators are not supported")
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = sorted(ranks)

    def size(self) -> int | None:
        """Number of ranks in it; None before it is added."""
        return None if self.process_set_id is None else len(runtime().sets[self.process_set_id])

    def rank(self) -> int | None:
        """This process's rank in it; None before it is added. Raises ValueError if it is not a member."""
        if self.process_set_id is None:
            return None
        members = runtime().sets[self.process_set_id]
        if rank() not in members:
            raise ValueError(f"rank {rank()} is not in process set {self.process_set_id}")
        return members.index(rank())

    def included(self) -> bool | None:
        """Whether this process is a member."""
        return None if self.ranks is None else rank() in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0


def init(comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Meet the other ranks; a second call has no effect.

    Rank and size come from the environment (`netsum.communicator.connecting`). process_sets: to be added at once;
    "dynamic" is accepted, since sets can always be added later. comm: must be None; use a ProcessSet for a subset of
    the ranks.
    """
    global _runtime
    if comm:
        raise ValueError("netsum.horovod: init(comm=…) is not supported; use process_sets=[hvd.ProcessSet(ranks)]")
    if _runtime is not None:
        return
    _runtime = Runtime()
    global_process_set.ranks = list(_runtime.sets[0])
    atexit.register(shutdown)
    for process_set in [] if process_sets is None or isinstance(process_sets, str) else process_sets:
        add_process_set(process_set)


def shutdown() -> None:
    """Leave the job; operations in flight at other ranks fail. `init` may be called again."""
    global _runtime
    if _runtime is not None:
        atexit.unregister(shutdown)
        ending, _runtime = _runtime, None
        ending.close()


def is_initialized() -> bool:
    return _runtime is not None


def runtime() -> Runtime:
    """This process's runtime. Raises NotInitializedError, a ValueError, before `init`."""
    if _runtime is None:
        raise NotInitializedError
    return _runtime


def rank() -> int:
    return runtime().world.rank


def size() -> int:
    return runtime().world.size


def local_rank() -> int:
    """This process's index on its machine."""
    return runtime().place.local_rank


def local_size() -> int:
    """Ranks on this machine."""
    return runtime().place.local_size


def cross_rank() -> int:
    """This machine's index; requires the same number of ranks on all machines."""
    return rank() // local_size()


def cross_size() -> int:
    """Number of machines; requires the same number of ranks on all machines."""
    return -(-size() // local_size())


def is_homogeneous() -> bool:
    """Whether all machines have the same number of ranks, judged by this machine's numbers."""
    return size() % local_size() == 0


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write a trace for chrome://tracing from now on, at rank 0; no effect at other ranks."""
    if rank() == 0:
        runtime().timeline.start(file_path, mark_cycles)


def stop_timeline() -> None:
    """End the trace that `start_timeline` began."""
    runtime().timeline.stop()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set; all ranks call it, members or not. Raises ValueError if a set of these ranks exists."""
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    ranks = tuple(process_set.ranks or ())
    request = Request(ADD_SET, runtime().name(ADD_SET, None, 0), ranks=ranks)
    try:
        process_set.process_set_id = runtime().start(Operation(request)).wait()["set"]
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set; all ranks call it. Returns False for the global set, and for one that was not added."""
    set_id, process_set.process_set_id = process_set.process_set_id, None
    if set_id is None or set_id == 0:
        process_set.process_set_id = set_id
        return False
    request = Request(REMOVE_SET, runtime().name(REMOVE_SET, None, 0), root=set_id)
    runtime().start(Operation(request)).wait()
    return True


def join(device: int = -1) -> int:
    """Join: until all ranks have joined, sums run with zeros for this rank. Returns the last rank to join.

    device: for compatibility; Horovod uses it on GPUs only.
    """
    found: int = runtime().start(Operation(Request(JOIN, JOIN))).wait()["last"]
    return found


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all members of the set have called it."""
    set_id = set_of(process_set)
    runtime().start(Operation(Request(BARRIER, runtime().name(BARRIER, None, set_id), set_id))).wait()


def set_of(process_set: ProcessSet) -> int:
    """The number of a process set that has been added. Raises ValueError for any other."""
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} has not been added; use hvd.add_process_set() or hvd.init(process_sets=…)")
    return process_set.process_set_id


def not_built() -> bool:
    """False: of Horovod's build options, only CPU operations as with Gloo are available."""
    return False


def gloo_built() -> bool:
    return True


mpi_threads_supported = mpi_enabled = mpi_built = not_built
nccl_built = ddl_built = ccl_built = cuda_built = rocm_built = not_built
gloo_enabled = gloo_built
