"""Collectives that move data without adding: any element type is allowed."""

from typing import Any

from netsum.torch.engine import Engine, one
from netsum.torch.tensors import Staging, equal_spans, moved, span, split_spans


class Movements:
    """Methods that torch calls; `engine` is their group. Arguments are positional."""

    engine: Engine

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        engine, staging = self.engine, Staging()
        memory = staging.update(one(tensors, "broadcast"), "broadcast")
        part = engine.core_for(staging, opts).broadcast(
            *span(memory), opts.rootRank, *engine.terms(opts), moved(memory)
        )
        return engine.start_or_wait([part], staging, tensors, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        engine, staging = self.engine, Staging()
        parts = [_allgather(engine, staging, outs, source, opts) for outs, source in zip(outputs, inputs, strict=True)]
        return engine.start_or_wait(parts, staging, outputs, opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        # outputs[rank][i] here, where allgather has outputs[i][rank].
        return Movements.allgather(self, [list(column) for column in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single(self, output: Any, source: Any, opts: Any) -> Any:
        engine, staging = self.engine, Staging()
        part = _all_gather_single(engine, staging, output, source, opts)
        return engine.start_or_wait([part], staging, [output], opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        engine, staging = self.engine, Staging()
        parts = [
            _all_gather_single(engine, staging, output, source, opts)
            for output, source in zip(outputs, inputs, strict=True)
        ]
        return engine.start_or_wait(parts, staging, outputs, opts)

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        engine, staging = self.engine, Staging()
        source = staging.read(one(inputs, "gather"), "gather")
        outs = []
        if engine.rank == opts.rootRank:
            outs = [span(staging.write(out, "gather")) for out in _for_all(engine, outputs, "gather")]
        part = engine.core_for(staging, opts).gather(
            outs, span(source), opts.rootRank, *engine.terms(opts), moved(source)
        )
        return engine.start_or_wait([part], staging, outputs, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        engine, staging = self.engine, Staging()
        output = staging.write(one(outputs, "scatter"), "scatter")
        ins = []
        if engine.rank == opts.rootRank:
            ins = [span(staging.read(source, "scatter")) for source in _for_all(engine, inputs, "scatter")]
        part = engine.core_for(staging, opts).scatter(
            span(output), ins, opts.rootRank, *engine.terms(opts), moved(output)
        )
        return engine.start_or_wait([part], staging, outputs, opts)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        engine, staging = self.engine, Staging()
        outs = [span(staging.write(out, "alltoall")) for out in outputs]
        ins = [span(staging.read(source, "alltoall")) for source in inputs]
        part = engine.core_for(staging, opts).alltoall(outs, ins, *engine.terms(opts), moved(inputs[0]))
        return engine.start_or_wait([part], staging, outputs, opts)

    def all_to_all_single(self, output: Any, source: Any, output_splits: Any, input_splits: Any, opts: Any) -> Any:
        engine, staging = self.engine, Staging()
        target = staging.write(output, "alltoall")
        memory = staging.read(source, "alltoall")
        outs = split_spans(target, output_splits, engine.size, "alltoall")
        ins = split_spans(memory, input_splits, engine.size, "alltoall")
        part = engine.core_for(staging, opts).alltoall(outs, ins, *engine.terms(opts), moved(memory))
        return engine.start_or_wait([part], staging, [output], opts)


def _allgather(engine: Engine, staging: Staging, outs: Any, source: Any, opts: Any) -> Any:
    if len(outs) != engine.size:
        raise ValueError(f"netsum allgather: {len(outs)} outputs for {engine.size} ranks")
    memory = staging.read(source, "allgather")
    targets = [span(staging.write(out, "allgather")) for out in outs]
    return engine.core_for(staging, opts).allgather(targets, span(memory), *engine.terms(opts), moved(memory))


def _all_gather_single(engine: Engine, staging: Staging, output: Any, source: Any, opts: Any) -> Any:
    if output.numel() != source.numel() * engine.size or output.dtype != source.dtype:
        raise ValueError(
            f"netsum allgather: the output has {output.numel()} elements of {output.dtype}, expected "
            f"{engine.size} ranks x {source.numel()} elements of {source.dtype}"
        )
    memory = staging.read(source, "allgather")
    target = staging.write(output, "allgather")
    spans = equal_spans(target, engine.size, "allgather")
    return engine.core_for(staging, opts).allgather(spans, span(memory), *engine.terms(opts), moved(memory))


def _for_all(engine: Engine, lists: Any, operation: str) -> list[Any]:
    tensors = one(lists, operation)
    if len(tensors) != engine.size:
        raise ValueError(f"netsum {operation}: {len(tensors)} tensors for {engine.size} ranks")
    found: list[Any] = tensors
    return found
