"""Sum of sparse COO tensors, whose indices differ from rank to rank.

All ranks learn all indices. Then, whichever sends fewer bytes: an allreduce of the values at all indices that some rank
has, with zeros where a rank has none, which switches can do; or a gather of all values, which every rank adds.
"""

import json
import math
import zlib
from typing import TYPE_CHECKING, Any

import torch

from netsum import Mismatch, Unsupported
from netsum.torch.engine import Engine, operation_of
from netsum.torch.tensors import ELEMENT_NAMES, Staging, span

if TYPE_CHECKING:
    from netsum._core import Group


def sum_sparse(engine: Engine, tensor: torch.Tensor, opts: Any) -> Any:
    """Replace `tensor` by the sum over ranks. Blocking: sizes must be known before values can be sent.

    All ranks hold identical bits.
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
    # them. Rank 0 says whether switches add: during a change of plan ranks may see different ones.
    form = f"{tuple(tensor.shape)} {mine.sparse_dim()} {mine.dtype}"
    by_switches = engine.rank == 0 and json.loads(core.stats()).get("path") == "trees"
    head = torch.tensor([zlib.crc32(form.encode()), mine._nnz(), by_switches], device="cpu")
    heads = [each.tolist() for each in _gather(core, head, [(3,)] * engine.size, seconds)]
    other = next((rank for rank, each in enumerate(heads) if each[0] != heads[engine.rank][0]), None)
    if other is not None:
        raise Mismatch(
            f"netsum allreduce: rank {engine.rank} called it for a sparse tensor of shape {tuple(tensor.shape)}, "
            f"{mine.sparse_dim()} sparse dimensions and {mine.dtype}, rank {other} for another"
        )
    counts = [count for _, count, _ in heads]
    indices = _gather(core, mine.indices(), [(mine.sparse_dim(), n) for n in counts], seconds)
    union = torch.unique(torch.cat([_places(each, tensor.shape) for each in indices]))
    if mine.dtype in ELEMENT_NAMES and _sums_are_fewer(union.numel(), counts, bool(heads[0][2])):
        total = _summed(core, mine, union, seconds)
    else:
        total = _added(core, mine, indices, counts, seconds)
    with torch.no_grad():
        tensor.copy_(total)
    work = engine.start([], Staging(), [tensor])
    return work if opts.asyncOp else None


def _sums_are_fewer(union: int, counts: list[int], by_switches: bool) -> bool:
    """Whether a rank sends and receives fewer values for a sum at all places than it receives in a gather."""
    ranks = len(counts)
    ring = 2 * (ranks - 1) / ranks
    return union * (1.0 if by_switches else ring) < sum(counts) * (ranks - 1) / ranks


def _summed(core: "Group", mine: torch.Tensor, union: torch.Tensor, seconds: float) -> torch.Tensor:
    """The sum at all places of `union`, by an allreduce."""
    values = torch.zeros((union.numel(), *mine.values().shape[1:]), dtype=mine.dtype, device="cpu")
    values[torch.searchsorted(union, _places(mine.indices(), mine.shape))] = mine.values()
    name = ELEMENT_NAMES[mine.dtype]
    core.allreduce(values.data_ptr(), values.numel(), name, "sum", 1.0, seconds).wait(None)
    indices, rest = torch.empty((mine.sparse_dim(), union.numel()), dtype=torch.int64, device="cpu"), union
    for dimension in reversed(range(mine.sparse_dim())):
        indices[dimension] = rest % mine.shape[dimension]
        rest = rest // mine.shape[dimension]
    return torch.sparse_coo_tensor(indices, values, mine.shape, is_coalesced=True)


def _added(
    core: "Group", mine: torch.Tensor, indices: list[torch.Tensor], counts: list[int], seconds: float
) -> torch.Tensor:
    """The sum of all ranks' values, gathered and added in rank order."""
    dense_shape = tuple(mine.values().shape[1:])
    values = _gather(core, mine.values(), [(n, *dense_shape) for n in counts], seconds)
    total = torch.sparse_coo_tensor(indices[0], values[0], mine.shape)
    for index, value in zip(indices[1:], values[1:], strict=True):
        total = total + torch.sparse_coo_tensor(index, value, mine.shape)
    return total.coalesce()


def _places(indices: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A number for each index, in the order of the indices. indices: (sparse dimensions, n)."""
    sparse = shape[: indices.shape[0]]
    strides = [math.prod(sparse[dimension + 1 :]) for dimension in range(len(sparse))]
    found: torch.Tensor = (indices * torch.tensor(strides, device="cpu").unsqueeze(1)).sum(0)
    return found


def _gather(core: "Group", mine: torch.Tensor, shapes: list[tuple[int, ...]], seconds: float) -> list[torch.Tensor]:
    mine = mine.contiguous()
    outs = [torch.empty(shape, dtype=mine.dtype, device="cpu") for shape in shapes]
    core.allgather([span(out) for out in outs], span(mine), seconds).wait(None)
    return outs
