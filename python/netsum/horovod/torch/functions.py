"""Broadcast of models' and optimizers' state, and of Python objects."""

import pickle
from typing import Any

import torch

from netsum.horovod import basics
from netsum.horovod.basics import ProcessSet, global_process_set
from netsum.horovod.torch.differentiable import allgather, broadcast_
from netsum.horovod.torch.operations import broadcast_async_, synchronize


def broadcast_parameters(params: Any, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Fill tensors with those of rank `root_rank`, in place. params: a state_dict, or a list of named or bare ones."""
    if isinstance(params, dict):
        named = sorted(params.items())
    elif isinstance(params, list) or hasattr(params, "__iter__"):
        named = [each if isinstance(each, tuple) else (None, each) for each in params]
    else:
        raise ValueError(f"broadcast_parameters: {type(params).__name__} is neither a dict nor a list of tensors")
    handles = []
    for name, tensor in named:
        if isinstance(tensor, torch.Tensor):
            target = tensor.detach() if tensor.is_contiguous() else tensor.detach().contiguous()
            handles.append((tensor, target, broadcast_async_(target, root_rank, name, process_set)))
    for tensor, target, handle in handles:
        synchronize(handle)
        if target.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(target)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """Give `optimizer` the state and the options of rank `root_rank`'s.

    An optimizer that has not stepped yet has no state and adopts the received one. Missing gradients become zeros, as
    with Horovod, which steps with them to create state. model: for compatibility, unused.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    for parameter in [each for group in optimizer.param_groups for each in group["params"]]:
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    own = optimizer.state_dict()
    arrived = broadcast_object(own if basics.rank() == root_rank else None, root_rank, "optimizer_state")
    if basics.rank() != root_rank:
        optimizer.load_state_dict(arrived)


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """The object of rank `root_rank`, sent as a pickle; `obj` is ignored at other ranks."""
    name = name or basics.runtime().name("object", None, basics.set_of(process_set))
    own = basics.rank() == root_rank
    message = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8) if own else torch.empty(0, device="cpu")
    length = broadcast_(torch.tensor([message.numel()], device="cpu"), root_rank, f"{name}.length", process_set)
    if not own:
        message = torch.empty(int(length), dtype=torch.uint8, device="cpu")
    broadcast_(message, root_rank, f"{name}.bytes", process_set)
    return obj if own else pickle.loads(message.numpy().tobytes())


def allgather_object(obj: Any, name: str | None = None, process_set: Any = global_process_set) -> list[Any]:
    """The object of every rank, by rank, sent as pickles."""
    name = name or basics.runtime().name("objects", None, basics.set_of(process_set))
    message = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
    lengths = allgather(torch.tensor([message.numel()], device="cpu"), f"{name}.lengths", process_set).tolist()
    together = allgather(message, f"{name}.bytes", process_set)
    return [pickle.loads(part.numpy().tobytes()) for part in together.split(lengths)]
