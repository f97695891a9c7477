"""FSDP2 of models in host memory, with communication beside computation.

`fully_shard` overlaps the two by streams of an accelerator. A CPU has none: on every backend, each all-gather and each
reduce-scatter of such a model blocks the training. `overlap` starts them, and waits where their results are read.
"""

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate

_NO_BACKWARD = -1
"""What torch calls the current backward where there is none."""


def overlap(model: nn.Module, order: Sequence[nn.Module] | None = None, in_flight: int = 2) -> None:
    """Let the collectives of a model in host memory run while it computes. Call it after the last `fully_shard`.

    Parameters of a module are gathered while the module before it computes, forward and backward. Gradients are summed
    while the backward pass goes on; it ends when all sums have ended. Results have the same bits as without. Works
    on every backend.

    model: the root. order: its sharded modules in the order of their forward calls; the order of `model.modules()`
    by default. in_flight: number of reduce-scatters at a time, each of which holds the gradients of one module.
    Raises ValueError for what is not sharded, and for modules with several meshes, as `set_custom_reduce_scatter` does.
    """
    modules = [module for module in (order or model.modules()) if isinstance(module, FSDPModule)]
    if not modules or (order is not None and len(modules) != len(order)):
        raise ValueError("netsum overlap: call fully_shard for the model, and for each module of `order`, before")
    pending = _Pending(in_flight)
    for module in modules:
        module.set_custom_all_gather(cast(Any, _AllGather()))
        module.set_custom_reduce_scatter(cast(Any, _ReduceScatter(module, pending)))
    for module, following in pairwise(modules):
        module.set_modules_to_forward_prefetch([following])


class _Memory:
    """The part of torch's interface of such communication that says where buffers are."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Memory):
    """An all-gather that FSDP waits for before it reads the parameters."""

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> Any:
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op=True)


class _ReduceScatter(_Memory):
    """A reduce-scatter that ends within the call only if FSDP reads the sums during the backward pass."""

    def __init__(self, module: FSDPModule, pending: "_Pending") -> None:
        inner = [child for child in cast(nn.Module, module).modules() if child is not module]
        theirs = {
            id(p) for child in inner if isinstance(child, FSDPModule) for p in cast(nn.Module, child).parameters()
        }
        own = [p for p in cast(nn.Module, module).parameters() if id(p) not in theirs]
        self._module = module
        # Those that FSDP ignores are no DTensors.
        self._parameters = [p for p in own if isinstance(p, DTensor)]
        self._pending = pending

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        work: Any = dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op=True)
        if self._is_read_at_once(output_tensor, op):
            work.wait()
        else:
            self._pending.add(work)

    def _is_read_at_once(self, output: torch.Tensor, op: Any) -> bool:
        """Whether FSDP does more with the sums than to keep them as gradients."""
        # It asks for a plain sum where it divides by itself.
        divided = op == dist.ReduceOp.SUM
        hooked = any(group._all_reduce_hook is not None for group in self._module._get_fsdp_state()._fsdp_param_groups)
        return divided or hooked or any(_reads(parameter, output.dtype) for parameter in self._parameters)


def _reads(parameter: DTensor, dtype: torch.dtype) -> bool:
    """Whether a new gradient of that type is added to another, reduced once more, cast, or seen by a hook."""
    replicated = any(isinstance(placement, Replicate) for placement in parameter.placements)
    cast_to = getattr(parameter, "grad_dtype", parameter.dtype)
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None)
    return parameter.grad is not None or replicated or not dtype == parameter.dtype == cast_to or bool(hooks)


class _Pending:
    """The reduce-scatters of a backward pass that have not been waited for."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._works: deque[Any] = deque()
        self._backward = _NO_BACKWARD

    def add(self, work: Any) -> None:
        """Have `work` waited for by the end of the backward pass; now, if there is none."""
        backward = torch._C._current_graph_task_id()
        if backward == _NO_BACKWARD:
            work.wait()
            return
        if backward != self._backward:
            # A backward pass that failed has left its works; they end by themselves.
            self._works.clear()
            self._backward = backward
            Variable._execution_engine.queue_callback(self._finish)
        self._works.append(work)
        while len(self._works) > self._limit:
            self._works.popleft().wait()

    def _finish(self) -> None:
        while self._works:
            self._works.popleft().wait()
        self._backward = _NO_BACKWARD
