"""Entry points of every operation: torch's short forms of a call, and events for torch's profiler.

An event spans the operation from its start to its completion on another thread, and records the shapes of its inputs,
as the events of torch's own backends do.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from netsum.torch.work import when_all_done

event_prefix = "netsum"

# Per method: the title of its event in torch's backends, which argument holds its inputs, and the type of its options,
# which come last (None: no options).
_OPERATIONS = {
    "allreduce": ("all_reduce", 0, c10d.AllreduceOptions),
    "allreduce_coalesced": ("all_reduce", 0, c10d.AllreduceCoalescedOptions),
    "reduce": ("reduce", 0, c10d.ReduceOptions),
    "reduce_scatter": ("reduce_scatter", 1, c10d.ReduceScatterOptions),
    "reduce_scatter_single": ("reduce_scatter", 1, c10d.ReduceScatterOptions),
    "reduce_scatter_single_coalesced": ("reduce_scatter", 1, c10d.ReduceScatterOptions),
    "broadcast": ("broadcast", 0, c10d.BroadcastOptions),
    "allgather": ("all_gather", 1, c10d.AllgatherOptions),
    "allgather_coalesced": ("all_gather", 1, c10d.AllgatherOptions),
    "all_gather_single": ("all_gather", 1, c10d.AllgatherOptions),
    "all_gather_single_coalesced": ("all_gather", 1, c10d.AllgatherOptions),
    "gather": ("gather", 1, c10d.GatherOptions),
    "scatter": ("scatter", 1, c10d.ScatterOptions),
    "alltoall": ("all_to_all", 1, c10d.AllToAllOptions),
    "all_to_all_single": ("all_to_all", 1, c10d.AllToAllOptions),
    "barrier": ("barrier", None, c10d.BarrierOptions),
    "send": ("send", 0, None),
    "recv": ("recv", 0, None),
    "recv_anysource": ("recvAnySource", 0, None),
}

# Names of torch before 2.14, by which some callers still call, and the present ones. Torch's own classes have most of
# them, and call the method of the present name.
_RENAMED = {
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    "_allgather_base": "all_gather_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "alltoall_base": "all_to_all_single",
}

# When a model is compiled, torch tries to compile all Python code it meets, also netsum's when C++ (DDP) calls it, and
# fails on it. The functions called by an entry are excluded with it. `torch.compiler.disable` would add a cost per
# call, and seconds to the import.
_frames = torch._C._dynamo.eval_frame
_set_strategy = _frames.set_code_exec_strategy
_NOT_COMPILED = _frames._FrameExecStrategy(_frames._FrameAction.SKIP, _frames._FrameAction.SKIP)


def with_entries(shape: type) -> type:
    """Class decorator: wrap every operation of an interface class in an entry.

    `allreduce(tensor)`, `broadcast(tensor, root)` and other short forms are delegated to the C++ base, which builds the
    full form and calls the method again.
    """
    base = next(parent for parent in shape.__mro__ if parent in (c10d.Backend, c10d.ProcessGroup))
    for name, (title, inputs, options) in _OPERATIONS.items():
        full, short = getattr(shape, name), getattr(base, name, None)
        bypasses = base is c10d.ProcessGroup and options is not None and inputs is not None
        seen = _dispatched(base, name) if bypasses else None
        setattr(shape, name, _entry(full, short, seen, options, title, inputs))
    for old, name in _RENAMED.items():
        # A class that overrides both is called under the old name by the base's operation, and so again and again.
        if not hasattr(base, old):
            setattr(shape, old, getattr(shape, name))
    return shape


def _dispatched(base: type, name: str) -> Callable[..., Any]:
    """The C++ base's operation: through torch's dispatcher to the group's backend."""
    operation = getattr(base, name)

    def call(self: Any, *arguments: Any) -> Any:
        return operation(self, *arguments)

    # pybind11 calls the base, and not the override again, from a frame of the operation's name.
    call.__code__ = call.__code__.replace(co_name=name)
    _set_strategy(call.__code__, _NOT_COMPILED)
    return call


def _entry(
    full: Callable[..., Any],
    short: Callable[..., Any] | None,
    seen: Callable[..., Any] | None,
    options: type | None,
    title: str,
    inputs: int | None,
) -> Callable[..., Any]:
    profiling = torch.autograd._profiler_enabled
    modes = torch._C._len_torch_dispatch_stack
    source = inputs or 0

    # Must not have the operation's name: pybind11 takes a frame of that name for the override that calls its base.
    def entry(self: Any, *arguments: Any, **named: Any) -> Any:
        if options is not None and (named or not arguments or type(arguments[-1]) is not options):
            assert short is not None, "an operation with options overrides one of its base"
            return short(self, *arguments, **named)
        if seen is not None and (modes() > 0 or _dispatches(arguments[0]) or _dispatches(arguments[source])):
            # Somebody watches operations, as CommDebugMode does, or tensors are made of others and have no memory.
            return seen(self, *arguments)
        if profiling():
            tensors = _flatten(arguments[inputs]) if inputs is not None else []
            return _recorded(full, f"{event_prefix}:{title}", tensors, options, self, arguments)
        return full(self, *arguments, **named)

    entry.__doc__ = full.__doc__
    _set_strategy(entry.__code__, _NOT_COMPILED)
    return entry


def _recorded(
    full: Callable[..., Any],
    event: str,
    tensors: list[Any],
    options: type | None,
    group: Any,
    arguments: tuple[Any, ...],
) -> Any:
    """Run an operation within a profiler event. The waiter ends the event, on another thread."""
    if options is not None:
        arguments[-1].asyncOp = True
    handle = torch.autograd._record_function_with_args_enter(event, *tensors)
    try:
        work = full(group, *arguments)
    except BaseException:
        torch.autograd._record_function_with_args_exit(handle)
        raise
    work.recorded = threading.Event()

    def close() -> None:
        torch.autograd._record_function_with_args_exit(handle)
        work.recorded.set()

    # On a separate thread, so that operations that completed within the call are shown like the others.
    when_all_done(work._parts, lambda: threading.Thread(target=close, name="netsum-profiled", daemon=True).start())
    return work


def _dispatches(tensors: Any) -> bool:
    """Whether the first of these tensors is of a class that does operations in its own way."""
    while type(tensors) in (list, tuple):
        if not tensors:
            return False
        tensors = tensors[0]
    return getattr(type(tensors), "__torch_dispatch__", _NO_DISPATCH) is not _NO_DISPATCH


_NO_DISPATCH = torch.Tensor.__torch_dispatch__


def _flatten(tensors: Any) -> list[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor for item in tensors for tensor in _flatten(item)]
