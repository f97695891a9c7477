"""Sum of sparse COO tensors, whose indices differ from rank to rank: a gather, then the same adds at every rank."""

import zlib
from typing import TYPE_CHECKING, Any

import torch

from netsum import Mismatch, Unsupported
from netsum.torch.engine import Engine, operation_of
from netsum.torch.tensors import Staging, span

if TYPE_CHECKING:
    from netsum._core import Group


def sum_sparse(engine: Engine, tensor: torch.Tensor, opts: Any) -> Any:
    """Replace `tensor` by the sum over ranks. Blocking: sizes must be known before values can be sent.

    Ranks are added in rank order, so all hold identical bits.
    """
    op, _ = operation_of(opts.reduceOp)
    if op != "sum" or tensor.layout is not torch.sparse_coo or not tensor.is_cpu:
        raise Unsupported(
            f"netsum allreduce: of sparse tensors only the sum of COO tensors in host memory is supported, not "
            f"'{op}' of {tensor.layout} on {tensor.device}; pass `x.to_dense()`"
        )
    seconds = engine.seconds(opts)
    mine = tensor.detach().coalesce()
    core = engine.begun()
    # The properties that ranks must agree on are sent first, with the number of values: later messages do not contain
    # them.
    form = f"{tuple(tensor.shape)} {mine.sparse_dim()} {mine.dtype}"
    head = torch.tensor([zlib.crc32(form.encode()), mine._nnz()], device="cpu")
    heads = [each.tolist() for each in _gather(core, head, [(2,)] * engine.size, seconds)]
    other = next((rank for rank, each in enumerate(heads) if each[0] != heads[engine.rank][0]), None)
    if other is not None:
        raise Mismatch(
            f"netsum allreduce: rank {engine.rank} called it for a sparse tensor of shape {tuple(tensor.shape)}, "
            f"{mine.sparse_dim()} sparse dimensions and {mine.dtype}, rank {other} for another"
        )
    counts = [count for _, count in heads]
    dense_shape = tuple(mine.values().shape[1:])
    indices = _gather(core, mine.indices(), [(mine.sparse_dim(), n) for n in counts], seconds)
    values = _gather(core, mine.values(), [(n, *dense_shape) for n in counts], seconds)
    total = torch.sparse_coo_tensor(indices[0], values[0], tensor.shape)
    for index, value in zip(indices[1:], values[1:], strict=True):
        total = total + torch.sparse_coo_tensor(index, value, tensor.shape)
    with torch.no_grad():
        tensor.copy_(total.coalesce())
    work = engine.start([], Staging(), [tensor])
    return work if opts.asyncOp else None


def _gather(core: "Group", mine: torch.Tensor, shapes: list[tuple[int, ...]], seconds: float) -> list[torch.Tensor]:
    mine = mine.contiguous()
    outs = [torch.empty(shape, dtype=mine.dtype, device="cpu") for shape in shapes]
    core.allgather([span(out) for out in outs], span(mine), seconds).wait(None)
    return outs
