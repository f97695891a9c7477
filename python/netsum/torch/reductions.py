"""Collectives that add: allreduce, reduce, reduce_scatter and their coalesced kinds."""

from typing import Any

import torch

from netsum.torch.engine import Engine, one, operation_of
from netsum.torch.sparse import sum_sparse
from netsum.torch.tensors import ELEMENT_NAMES, Staging, elements


class Reductions:
    """Methods that torch calls; `engine` is their group. Arguments are positional."""

    engine: Engine

    def allreduce(self, tensors: Any, opts: Any) -> Any:
        tensor = one(tensors, "allreduce")
        if tensor.layout is not torch.strided:
            return self.allreduce_sparse(tensors, opts)
        engine = self.engine
        op, factor = operation_of(opts.reduceOp)
        seconds, here = engine.seconds(opts), engine.here(opts)
        name = ELEMENT_NAMES.get(tensor.dtype)
        dense = tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg()
        if dense and name is not None and engine.later is None:
            # The ordinary case: nothing to stage (a type with a name is not complex, so it is not conjugated either),
            # and nothing to hold if it ends within the call.
            part = engine.core.allreduce(tensor.data_ptr(), tensor.numel(), name, op, factor, seconds, here)
            if part is None:
                engine.operations += 1
                return None
            if part.ended_well():
                return engine.ended(tensors)
            return engine.start_or_wait([part], Staging(tensor), tensors, opts)
        staging = Staging()
        part = _allreduce(engine, staging, tensor, op, factor, opts)
        return engine.start_or_wait([part], staging, tensors, opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any) -> Any:
        engine = self.engine
        op, factor = operation_of(opts.reduceOp)
        staging = Staging()
        # Of each type, in the order of the first tensor: the same at all ranks.
        spans: dict[str, list[tuple[int, int]]] = {}
        for tensor in tensors:
            address, count, name = elements(staging.update(tensor, "allreduce"), "allreduce", op)
            spans.setdefault(name, []).append((address, count))
        parts = [
            engine.core_for(staging, opts).allreduce_all(each, name, op, factor, *engine.terms(opts))
            for name, each in spans.items()
        ]
        return engine.start_or_wait(parts, staging, tensors, opts)

    def allreduce_sparse(self, tensors: Any, opts: Any) -> Any:
        """Sum sparse COO tensors in place: indices and values of all ranks are gathered and added at each rank."""
        return sum_sparse(self.engine, one(tensors, "allreduce_sparse"), opts)

    def reduce(self, tensors: Any, opts: Any) -> Any:
        engine = self.engine
        tensor = one(tensors, "reduce")
        op, factor = operation_of(opts.reduceOp)
        staging = Staging()
        memory = staging.update(tensor, "reduce")
        what = elements(memory, "reduce", op)
        part = engine.core_for(staging, opts).reduce(*what, op, factor, opts.rootRank, *engine.terms(opts))
        return engine.start_or_wait([part], staging, tensors, opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        output, sources = one(outputs, "reduce_scatter"), one(inputs, "reduce_scatter")
        engine = self.engine
        if len(sources) != engine.size:
            raise ValueError(f"netsum reduce_scatter: {len(sources)} inputs for {engine.size} ranks")
        staging = Staging()
        memories = [staging.read(source, "reduce_scatter") for source in sources]
        part = _reduce_scatter(engine, staging, output, memories, opts)
        return engine.start_or_wait([part], staging, outputs, opts)

    def reduce_scatter_single(self, output: Any, source: Any, opts: Any) -> Any:
        engine, staging = self.engine, Staging()
        part = _reduce_scatter_single(engine, staging, output, source, opts)
        return engine.start_or_wait([part], staging, [output], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        engine, staging = self.engine, Staging()
        parts = [
            _reduce_scatter_single(engine, staging, output, source, opts)
            for output, source in zip(outputs, inputs, strict=True)
        ]
        return engine.start_or_wait(parts, staging, outputs, opts)


def _allreduce(engine: Engine, staging: Staging, tensor: torch.Tensor, op: str, factor: float, opts: Any) -> Any:
    memory = staging.update(tensor, "allreduce")
    name = ELEMENT_NAMES.get(memory.dtype)
    what = elements(memory, "allreduce", op) if name is None else (memory.data_ptr(), memory.numel(), name)
    return engine.core_for(staging, opts).allreduce(*what, op, factor, *engine.terms(opts))


def _reduce_scatter_single(engine: Engine, staging: Staging, output: Any, source: Any, opts: Any) -> Any:
    memory = staging.read(source, "reduce_scatter")
    if memory.numel() != output.numel() * engine.size:
        raise ValueError(
            f"netsum reduce_scatter: the input has {memory.numel()} elements, expected {engine.size} ranks x "
            f"{output.numel()} elements of the output"
        )
    pieces = list(memory.view(-1).tensor_split(engine.size)) if memory.numel() else [memory.view(-1)] * engine.size
    return _reduce_scatter(engine, staging, output, pieces, opts)


def _reduce_scatter(engine: Engine, staging: Staging, output: Any, pieces: list[Any], opts: Any) -> Any:
    mine = pieces[engine.rank]
    if output.numel() != mine.numel() or any(piece.dtype != output.dtype for piece in pieces):
        raise ValueError(
            f"netsum reduce_scatter: the output has {output.numel()} elements of {output.dtype}, input "
            f"{engine.rank} has {mine.numel()} of {mine.dtype}; they must be equal"
        )
    op, factor = operation_of(opts.reduceOp)
    memory = staging.write(output, "reduce_scatter")
    spans = [elements(piece, "reduce_scatter", op) for piece in pieces]
    return engine.core_for(staging, opts).reduce_scatter(
        memory.data_ptr(),
        [(address, count) for address, count, _ in spans],
        spans[0][2],
        op,
        factor,
        *engine.terms(opts),
    )
