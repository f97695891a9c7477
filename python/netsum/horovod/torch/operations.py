"""Collectives on torch tensors that return a handle at once; `synchronize` returns the result, `poll` whether it is
available.

Names match operations across ranks; without one, the n-th call of a kind on a process set matches the n-th of the other
ranks. Tensors must be in host memory. Raises ValueError for arguments; `synchronize` raises HorovodInternalError if
ranks disagree.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from netsum.communicator import Memory
from netsum.horovod import basics
from netsum.horovod.basics import Average, ProcessSet, ReduceOp, Sum, global_process_set
from netsum.horovod.operation import Operation
from netsum.horovod.requests import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, Request
from netsum.torch.tensors import ELEMENT_NAMES, check_device


class TorchOutputs:
    """Results of one operation. targets: tensors for the results; None if a tensor is to be allocated."""

    def __init__(self, inputs: Sequence[torch.Tensor], targets: Sequence[torch.Tensor] | None, grouped: bool) -> None:
        self.inputs = inputs
        self.tensors: list[torch.Tensor | None] = list(targets) if targets is not None else [None] * len(inputs)
        self._grouped = grouped

    def allocate(self, index: int, shape: tuple[int, ...]) -> Memory:
        target = self.tensors[index]
        if target is None:
            target = self.tensors[index] = torch.empty(shape, dtype=self.inputs[index].dtype, device="cpu")
        return memory_of(target)

    def scale(self, index: int, factor: float) -> None:
        scale_(self.tensors[index], factor)

    def result(self, details: dict[str, Any]) -> Any:
        return list(self.tensors) if self._grouped else self.tensors[0]


class AlltoallOutputs(TorchOutputs):
    """The tensor, and how many rows came from each rank."""

    def __init__(self, tensor: torch.Tensor, place: int) -> None:
        super().__init__([tensor], None, grouped=False)
        self._place = place

    def result(self, details: dict[str, Any]) -> Any:
        received = [splits[self._place] for splits in details["splits"]]
        return self.tensors[0], torch.tensor(received, dtype=torch.int32, device="cpu")


def memory_of(tensor: torch.Tensor) -> Memory:
    tensor = tensor.detach()
    dtype = ELEMENT_NAMES.get(tensor.dtype, str(tensor.dtype))
    return Memory(tensor.data_ptr(), tensor.numel(), tensor.element_size(), dtype, tuple(tensor.shape), True, tensor)


def scale_(tensor: torch.Tensor, factor: float) -> None:
    """Multiply in place: integers in float64 and rounded towards zero, float16 in float32, as Horovod does on CPUs."""
    with torch.no_grad():
        if not tensor.is_floating_point() and not tensor.is_complex():
            tensor.copy_(tensor.double() * factor)
        elif tensor.dtype in (torch.float16, torch.bfloat16):
            tensor.copy_(tensor.float() * factor)
        else:
            tensor.mul_(factor)


def poll(handle: Operation) -> bool:
    """Whether `synchronize` would return at once."""
    return handle.done()


def synchronize(handle: Operation) -> Any:
    """Wait for an operation; its result. Raises HorovodInternalError where it failed."""
    return handle.wait()


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Operation:
    op = chosen(op, average)
    return _reduce(ALLREDUCE, [tensor], None, name, op, prescale_factor, postscale_factor, process_set, False)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Operation:
    op = chosen(op, average)
    return _reduce(ALLREDUCE, [tensor], [tensor], name, op, prescale_factor, postscale_factor, process_set, False)


def grouped_allreduce_async(
    tensors: Any,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Operation:
    op = chosen(op, average)
    return _reduce(ALLREDUCE, list(tensors), None, name, op, prescale_factor, postscale_factor, process_set, True)


def grouped_allreduce_async_(
    tensors: Any,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Operation:
    op, tensors = chosen(op, average), list(tensors)
    return _reduce(ALLREDUCE, tensors, tensors, name, op, prescale_factor, postscale_factor, process_set, True)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Any = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Operation:
    return _reduce(REDUCESCATTER, [tensor], None, name, op, prescale_factor, postscale_factor, process_set, False)


def grouped_reducescatter_async(
    tensors: Any,
    name: str | None = None,
    op: Any = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Operation:
    return _reduce(REDUCESCATTER, list(tensors), None, name, op, prescale_factor, postscale_factor, process_set, True)


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: Any = global_process_set) -> Operation:
    return _start(ALLGATHER, [tensor], lambda dense: TorchOutputs(dense, None, False), name, process_set)


def grouped_allgather_async(tensors: Any, name: str | None = None, process_set: Any = global_process_set) -> Operation:
    return _start(ALLGATHER, list(tensors), lambda dense: TorchOutputs(dense, None, True), name, process_set)


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Operation:
    return _broadcast([tensor], None, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Operation:
    return _broadcast([tensor], [tensor], root_rank, name, process_set)


def alltoall_async(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: Any = global_process_set
) -> Operation:
    number = basics.set_of(process_set)
    members = basics.runtime().sets[number]
    rows = tensor.shape[0] if tensor.dim() else 0
    if splits is None:
        if rows % len(members):
            raise ValueError(f"alltoall: {rows} rows cannot be shared equally by {len(members)} ranks; pass splits")
        splits = [rows // len(members)] * len(members)
    elif isinstance(splits, torch.Tensor) and splits.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"alltoall: splits are {splits.dtype}; they must be 32-bit integers")
    splits = tuple(int(each) for each in splits)
    if len(splits) != len(members) or min(splits) < 0 or sum(splits) > rows:
        raise ValueError(
            f"alltoall: splits {list(splits)} must be {len(members)} numbers, one per rank, of at most {rows} in sum"
        )
    place = members.index(basics.rank()) if basics.rank() in members else 0
    return _start(ALLTOALL, [tensor], lambda dense: AlltoallOutputs(dense[0], place), name, process_set, splits=splits)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: Any, op: Any, process_set: Any = global_process_set
) -> Callable[[], torch.Tensor]:
    """Sum of sparse COO tensors: indices and values of all ranks, gathered. A function that waits for the result."""
    if op not in (Sum, Average):
        raise ValueError(f"sparse_allreduce_async: {op} is not possible; use hvd.Sum or hvd.Average")
    # Not coalesced first: an index may occur several times, and its values are added at the end.
    by_row = tensor._indices().transpose(0, 1).contiguous()
    indices = allgather_async(by_row, f"{name}.indices" if name else None, process_set)
    values = allgather_async(tensor._values(), f"{name}.values" if name else None, process_set)

    def wait() -> torch.Tensor:
        all_values, all_indices = synchronize(values), synchronize(indices)
        if op is Average:
            all_values = all_values / process_set.size()
        return torch.sparse_coo_tensor(all_indices.transpose(0, 1), all_values, tensor.size(), check_invariants=False)

    return wait


def chosen(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """The operation selected by `op`, or by the older argument `average`."""
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        return op
    return Sum if average is False else Average


def _reduce(
    kind: Any,
    tensors: Any,
    targets: Any,
    name: Any,
    op: ReduceOp,
    before: Any,
    after: Any,
    process_set: Any,
    grouped: Any,
) -> Operation:
    return _start(
        kind,
        tensors,
        lambda dense: TorchOutputs(dense, targets, grouped),
        name,
        process_set,
        op=op.core,
        prescale=float(before),
        postscale=float(after),
        in_place=targets is not None,
    )


def _broadcast(tensors: Any, targets: Any, root_rank: int, name: Any, process_set: Any) -> Operation:
    return _start(
        BROADCAST,
        tensors,
        lambda dense: TorchOutputs(dense, targets, False),
        name,
        process_set,
        root=int(root_rank),
        in_place=targets is not None,
    )


def _start(
    kind: Any, tensors: Any, outputs: Any, name: Any, process_set: ProcessSet, in_place: bool = False, **fields: Any
) -> Operation:
    runtime, number = basics.runtime(), basics.set_of(process_set)
    if basics.rank() not in runtime.sets[number]:
        raise ValueError(f"{kind}: rank {basics.rank()} is not in process set {number}")
    for tensor in tensors:
        check_device(tensor, kind)
        if in_place and not tensor.is_contiguous():
            raise ValueError(f"{kind}: a tensor must be contiguous to be changed in place")
    dense = [tensor.detach() if tensor.is_contiguous() else tensor.detach().contiguous() for tensor in tensors]
    memories = [memory_of(tensor) for tensor in dense]
    described = tuple((memory.dtype, memory.shape) for memory in memories)
    request = Request(kind, runtime.name(kind, name, number), number, described, **fields)
    return runtime.start(Operation(request, memories, outputs(dense)))
