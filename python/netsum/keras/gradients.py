"""Gradients and variables of all ranks, on each of Keras' backends."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from netsum.keras import job


def reduce_gradients(gradients: Sequence[Any], op: str = "avg") -> list[Any]:
    """The gradients of all ranks combined, as one operation per element type. None entries stay None.

    All ranks must pass the same set. Raises NotImplementedError for a backend other than tensorflow, jax and torch.
    """
    dense = [each for each in gradients if each is not None]
    reduced = iter(_on_backend(dense, op) if dense and job.size() > 1 else dense)
    return [None if each is None else next(reduced) for each in gradients]


def broadcast_variables(variables: Sequence[Any], root: int = 0) -> None:
    """Give variables the values of rank `root`'s, in place."""
    world = job.communicator()
    for variable in variables:
        value = np.array(keras.ops.convert_to_numpy(variable))
        world.broadcast(value, root)
        variable.assign(value)


def _on_backend(gradients: list[Any], op: str) -> list[Any]:
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return _in_graph(gradients, op)
    if backend == "jax":
        from netsum.jax import allreduce

        found: list[Any] = allreduce(gradients, op)
        return found
    if backend == "torch":
        return _torch(gradients, op)
    raise NotImplementedError(f"netsum.keras works on tensorflow, jax and torch, not on Keras' backend {backend!r}")


def _in_graph(gradients: list[Any], op: str) -> list[Any]:
    import tensorflow as tf

    # Sparse gradients, of embeddings, become dense: ranks may have different rows.
    gradients = [tf.convert_to_tensor(each) for each in gradients]
    types = [each.dtype for each in gradients]
    results = tf.numpy_function(lambda *arrays: _arrays(arrays, op), gradients, types, stateful=True)
    # A single result is returned without a list.
    results = results if isinstance(results, (list, tuple)) else [results]
    for result, gradient in zip(results, gradients, strict=True):
        result.set_shape(gradient.shape)
    return list(results)


def _torch(gradients: list[Any], op: str) -> list[Any]:
    import torch

    with torch.no_grad():
        combined = _arrays([each.detach().cpu().numpy() for each in gradients], op)
        return [torch.from_numpy(each).to(gradient) for each, gradient in zip(combined, gradients, strict=True)]


def _arrays(arrays: Sequence[np.ndarray], op: str) -> list[np.ndarray]:
    """The arrays of all ranks combined, those of one type concatenated in one buffer."""
    world, results = job.communicator(), [np.asarray(each) for each in arrays]
    for dtype in dict.fromkeys(each.dtype for each in results):
        mine = [i for i, each in enumerate(results) if each.dtype == dtype]
        flat = np.concatenate([results[i].ravel() for i in mine])
        world.allreduce(flat, op)
        ends = np.cumsum([results[i].size for i in mine])
        for i, part in zip(mine, np.split(flat, ends[:-1]), strict=True):
            results[i] = part.reshape(results[i].shape)
    return results
