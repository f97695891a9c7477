"""An optimizer that reduces its gradients over all ranks as soon as backward has computed them."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from netsum.horovod import basics
from netsum.horovod.basics import Average, ProcessSet, ReduceOp, global_process_set
from netsum.horovod.torch.compression import Compression
from netsum.horovod.torch.functions import broadcast_object
from netsum.horovod.torch.operations import (
    allreduce_async_,
    grouped_allreduce_async_,
    sparse_allreduce_async,
    synchronize,
)

if TYPE_CHECKING:
    _Base: Any = torch.optim.Optimizer
else:
    _Base = object


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Any = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """`optimizer` with `step` preceded by a reduction of all gradients over the ranks of `process_set`.

    The result is an instance of a subclass of the optimizer's class, so that schedulers accept it, and shares its
    parameter groups and state. named_parameters: `model.named_parameters()`; names match gradients across ranks.
    backward_passes_per_step: backward passes per reduction. gradient_predivide_factor: the part of an average's
    division that precedes the sum. groups: number of groups, or lists of parameters, whose gradients are reduced
    together. sparse_as_dense: whether sparse gradients are reduced as dense ones. Raises ValueError for invalid
    arguments, NotImplementedError for op=hvd.Adasum, which is no sum (docs/frameworks.md).
    """
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if num_groups:
        warnings.warn("num_groups has been replaced by groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    if basics.size() > 1:
        _ = op.core
    kind: Any = type(optimizer.__class__.__name__, (_Distributed, optimizer.__class__), {})
    made = kind.__new__(kind)
    made.__dict__.update(optimizer.__dict__)
    made._reducer = _Reducer(made, named_parameters, compression, op, gradient_predivide_factor, groups)
    made._reducer.sparse_as_dense = sparse_as_dense
    made._reducer.process_set = process_set
    made._reducer.passes = backward_passes_per_step
    made._reducer.start()
    return made


class _Distributed(_Base):
    """Methods placed before those of the wrapped optimizer."""

    _reducer: "_Reducer"

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """Names by which gradients are matched; scripts use them to check that ranks agree."""
        return self._reducer.names

    def synchronize(self) -> None:
        """Wait until all gradients are reduced; call `step` within `skip_synchronize` afterwards."""
        self._reducer.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within this context, `step` uses the gradients unchanged: after `synchronize`."""
        self._reducer.steps_synchronize = False
        try:
            yield
        finally:
            self._reducer.steps_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        self._reducer.passes = passes
        self._reducer.reset()

    def step(self, closure: Any = None) -> Any:
        if self._reducer.steps_synchronize:
            if self._reducer.synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
                    "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code.",
                    stacklevel=2,
                )
            self._reducer.synchronize()
        self._reducer.synchronized = False
        return super().step(closure)

    def zero_grad(self, *arguments: Any, **named: Any) -> Any:
        if self._reducer.handles:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        return super().zero_grad(*arguments, **named)

    def load_state_dict(self, *arguments: Any, **named: Any) -> Any:
        self._reducer.reset()
        return super().load_state_dict(*arguments, **named)


class _Reducer:
    """The reductions of one optimizer's gradients."""

    sparse_as_dense = False
    process_set = global_process_set
    passes = 1

    def __init__(
        self, optimizer: Any, named_parameters: Any, compression: Any, op: ReduceOp, predivide: float, groups: Any
    ) -> None:
        self.steps_synchronize = True
        self.synchronized = False
        self.handles: dict[tuple[torch.Tensor, ...], tuple[Any, ...]] = {}
        """Reductions in flight, by the parameters that are reduced together: handle, the compressor's contexts."""
        self._compression = compression
        self._op = op
        self._predivide = predivide
        self._groups = groups
        self._all = [each for group in optimizer.param_groups for each in group["params"]]
        self.names = _named(optimizer, named_parameters)
        self._left: dict[torch.Tensor, int] = {}
        """Backward passes until a parameter's gradient is reduced."""
        self._members: dict[torch.Tensor, tuple[torch.Tensor, ...]] = {}
        self._ready: dict[tuple[torch.Tensor, ...], set[torch.Tensor]] = {}
        _check_groups(groups)

    def start(self) -> None:
        """Register hooks for backward, if there are other ranks."""
        self.reset()
        if not self.process_set.included() or basics.size() == 1:
            return
        wanted = [each for each in self._all if each.requires_grad]
        for group in self._grouped(wanted):
            for parameter in group:
                self._members[parameter] = group
        for parameter in wanted:
            parameter.register_post_accumulate_grad_hook(self._hook)

    def reset(self) -> None:
        self.handles.clear()
        self.synchronized = False
        self._left = dict.fromkeys(self._all, self.passes)
        self._ready.clear()

    def synchronize(self) -> None:
        # Every rank reduces every gradient: another rank may have computed one that this rank has not.
        for group in dict.fromkeys(self._members.values()):
            if group not in self.handles:
                self._reduce(group)
        try:
            for group, (handle, contexts) in self.handles.items():
                reduced = handle() if callable(handle) else synchronize(handle)
                for parameter, gradient, context in zip(group, reduced, contexts, strict=True):
                    self._store(parameter, gradient, context)
        finally:
            self.reset()
        self.synchronized = True

    def _hook(self, parameter: torch.Tensor) -> None:
        if self._left[parameter] <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). "
                "Increase backward_passes_per_step to accumulate gradients locally."
            )
        self._left[parameter] -= 1
        if self._left[parameter] == 0:
            group = self._members[parameter]
            ready = self._ready.setdefault(group, set())
            ready.add(parameter)
            if len(ready) == len(group):
                self._reduce(group)

    def _reduce(self, group: tuple[torch.Tensor, ...]) -> None:
        for parameter in group:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in group]
        name = self.names[group[0]]
        if gradients[0].is_sparse:
            self.handles[group] = self._reduce_sparse(gradients[0], name)
            return
        pairs = [self._compression.compress(each if each.is_contiguous() else each.contiguous()) for each in gradients]
        small, contexts = [each for each, _ in pairs], [context for _, context in pairs]
        factors = {"prescale_factor": 1.0 / self._predivide, "postscale_factor": self._predivide}
        how: dict[str, Any] = {"name": name, "op": self._op, "process_set": self.process_set, **factors}
        if len(group) == 1:
            handle: Any = _Single(allreduce_async_(small[0], **how))
        else:
            handle = grouped_allreduce_async_(small, **how)
        self.handles[group] = handle, contexts

    def _reduce_sparse(self, gradient: torch.Tensor, name: str) -> tuple[Any, ...]:
        if self.sparse_as_dense:
            dense = _Single(allreduce_async_(gradient.to_dense(), name=name, op=self._op, process_set=self.process_set))
            return (lambda: [each.to_sparse() for each in dense()]), [None]
        waits = sparse_allreduce_async(gradient, name, self._op, self.process_set)
        return (lambda: [waits()]), [None]

    def _store(self, parameter: torch.Tensor, gradient: torch.Tensor, context: Any) -> None:
        if gradient.is_sparse:
            parameter.grad = gradient
            return
        gradient = self._compression.decompress(gradient, context)
        if gradient.data_ptr() != parameter.grad.data_ptr():
            with torch.no_grad():
                parameter.grad.copy_(gradient)

    def _grouped(self, parameters: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
        """Parameters that are reduced together; equal at all ranks."""
        if not self._groups:
            return [(parameter,) for parameter in parameters]
        ranks = self.process_set.ranks
        assert ranks is not None, "the set of all ranks knows them after init"
        order = broadcast_object([self.names[each] for each in parameters], ranks[0], process_set=self.process_set)
        parameters = sorted(parameters, key=lambda each: order.index(self.names[each]))
        if isinstance(self._groups, int):
            count = min(self._groups, len(parameters))
            edges = [len(parameters) * i // count for i in range(count + 1)]
            return [tuple(parameters[a:b]) for a, b in pairwise(edges)]
        known = {id(each) for each in parameters}
        lists = [tuple(each for each in group if id(each) in known) for group in self._groups]
        listed = {id(each) for group in lists for each in group}
        return [group for group in lists if group] + [(each,) for each in parameters if id(each) not in listed]


class _Single:
    """A handle whose result is a list of one tensor."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __call__(self) -> list[torch.Tensor]:
        return [synchronize(self._handle)]


def _named(optimizer: Any, named_parameters: Any) -> dict[torch.Tensor, str]:
    """Names by parameter. Raises ValueError for an invalid list of named parameters, or one that omits a parameter."""
    if named_parameters is None:
        named_parameters = [
            (f"noname.{i}.{j}", each)
            for i, group in enumerate(optimizer.param_groups)
            for j, each in enumerate(group["params"])
        ]
    named_parameters = list(named_parameters)
    if any(not isinstance(each, tuple) for each in named_parameters):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    names = [name for name, _ in named_parameters]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}")
    by_parameter = {parameter: name for name, parameter in named_parameters}
    unnamed = [each for group in optimizer.param_groups for each in group["params"] if each not in by_parameter]
    if unnamed:
        shapes = ", ".join(str(tuple(each.shape)) for each in unnamed)
        raise ValueError(
            f"named_parameters was specified, but one or more model parameters were not named: those of shape {shapes}"
        )
    return by_parameter


def _check_groups(groups: Any) -> None:
    if groups is None or isinstance(groups, int):
        if isinstance(groups, int) and groups < 0:
            raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
        return
    seen: set[int] = set()
    for each in (parameter for group in groups for parameter in group):
        if not isinstance(each, torch.Tensor):
            raise ValueError("groups must consist of torch.Tensor.")
        if id(each) in seen:
            raise ValueError("A parameter can only appear once in groups.")
        seen.add(id(each))
