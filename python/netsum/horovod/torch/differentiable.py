"""Blocking collectives with gradients.

The gradients are Horovod's: those of allgather and broadcast are averaged over the ranks, where a sum would be the
derivative of the sum of all ranks' losses (horovod/torch/mpi_ops.py, as of 0.28).
"""

from typing import Any

import torch

from netsum.horovod import basics
from netsum.horovod.basics import Average, Sum, global_process_set
from netsum.horovod.torch import operations as start
from netsum.horovod.torch.compression import Compression
from netsum.horovod.torch.operations import synchronize


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: Any, op: Any, before: Any, after: Any, process_set: Any, grouped: Any, *tensors: Any
    ) -> Any:
        ctx.how = (op, before, after, process_set)
        if not grouped:
            return synchronize(start.allreduce_async(tensors[0], None, name, op, before, after, process_set))
        return tuple(synchronize(start.grouped_allreduce_async(tensors, None, name, op, before, after, process_set)))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        op, before, after, process_set = ctx.how
        reduced = grouped_allreduce(
            list(gradients), op=op, prescale_factor=before, postscale_factor=after, process_set=process_set
        )
        return (None, None, None, None, None, None, *reduced)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Any, process_set: Any, grouped: Any, *tensors: Any) -> Any:
        ctx.process_set = process_set
        ctx.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        if not grouped:
            return synchronize(start.allgather_async(tensors[0], name, process_set))
        return tuple(synchronize(start.grouped_allgather_async(tensors, name, process_set)))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        averaged = grouped_allreduce(list(gradients), op=Average, process_set=ctx.process_set)
        all_rows = allgather(torch.tensor([ctx.rows], dtype=torch.int64, device="cpu"), process_set=ctx.process_set)
        before = all_rows[: ctx.process_set.rank()].sum(0).tolist()
        own = [each.narrow(0, at, rows) for each, at, rows in zip(averaged, before, ctx.rows, strict=True)]
        return (None, None, None, *own)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: Any, process_set: Any) -> Any:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return synchronize(start.broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        averaged = allreduce(gradient, op=Average, process_set=ctx.process_set)
        return averaged if basics.rank() == ctx.root_rank else torch.zeros_like(averaged), None, None, None


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: Any, process_set: Any) -> Any:
        output, received = synchronize(start.alltoall_async(tensor, splits, name, process_set))
        ctx.process_set, ctx.received = process_set, received
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: Any, _received: Any) -> Any:
        back, _ = alltoall(gradient, splits=ctx.received, process_set=ctx.process_set)
        return back, None, None, None


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: Any, op: Any, process_set: Any, before: Any, after: Any, grouped: Any, *tensors: Any
    ) -> Any:
        ctx.process_set = process_set
        ctx.factor = before * after * (process_set.size() if op is Sum else 1)
        if not grouped:
            return synchronize(start.reducescatter_async(tensors[0], name, op, process_set, before, after))
        return tuple(synchronize(start.grouped_reducescatter_async(tensors, name, op, process_set, before, after)))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        scaled = [gradient * ctx.factor for gradient in gradients]
        return (None, None, None, None, None, None, *grouped_allgather(scaled, process_set=ctx.process_set))


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Any:
    """The average of all ranks' tensors, or the reduction `op`; the input is unchanged. Factors: before and after."""
    op = start.chosen(op, average)
    small, context = compression.compress(tensor)
    result = _Allreduce.apply(name, op, prescale_factor, postscale_factor, process_set, False, small)
    return compression.decompress(result, context)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Any:
    """As `allreduce`, in place and without gradients."""
    return synchronize(
        start.allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    )


def grouped_allreduce(
    tensors: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Any:
    """As `allreduce` for a list of tensors that are reduced as one operation."""
    op = start.chosen(op, average)
    small, contexts = _compressed(compression, tensors)
    results = _Allreduce.apply(name, op, prescale_factor, postscale_factor, process_set, True, *small)
    return _decompressed(compression, results, contexts)


def grouped_allreduce_(
    tensors: Any,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Any:
    """As `grouped_allreduce`, in place and without gradients."""
    return synchronize(
        start.grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    )


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: Any = global_process_set) -> Any:
    """The rows of all ranks, concatenated in rank order; only the number of rows may differ."""
    return _Allgather.apply(name, process_set, False, tensor)


def grouped_allgather(tensors: Any, name: str | None = None, process_set: Any = global_process_set) -> Any:
    """As `allgather` for a list of tensors that are gathered as one operation."""
    return list(_Allgather.apply(name, process_set, True, *tensors))


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """The tensor of global rank `root_rank`; the input is unchanged."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """As `broadcast`, in place and without gradients."""
    return synchronize(start.broadcast_async_(tensor, root_rank, name, process_set))


def alltoall(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """Rows from every rank. splits: how many of this rank's rows go to each rank, equal shares if None.

    With `splits`, also returns how many rows came from each rank.
    """
    output, received = _Alltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's share of the rows of all ranks' tensors combined; the first ranks get the remainder."""
    small, context = compression.compress(tensor)
    result = _Reducescatter.apply(name, op, process_set, prescale_factor, postscale_factor, False, small)
    return compression.decompress(result, context)


def grouped_reducescatter(
    tensors: Any,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """As `reducescatter` for a list of tensors that are reduced as one operation."""
    small, contexts = _compressed(compression, tensors)
    results = _Reducescatter.apply(name, op, process_set, prescale_factor, postscale_factor, True, *small)
    return _decompressed(compression, results, contexts)


def _compressed(compression: Any, tensors: Any) -> tuple[list[Any], list[Any]]:
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [small for small, _ in pairs], [context for _, context in pairs]


def _decompressed(compression: Any, results: Any, contexts: Any) -> list[Any]:
    return [compression.decompress(result, context) for result, context in zip(results, contexts, strict=True)]
