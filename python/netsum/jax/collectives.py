"""Collectives on arrays and pytrees of arrays, with their derivatives.

The derivative of a collective is that of all ranks' programs together, as if the losses of all ranks were added: that
of a sum is the sum of the returned gradients, that of a gather is their scattered sum. So `jax.grad` through a
collective gives every rank the gradient of the sum of all losses with respect to its own inputs.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from netsum.jax import job
from netsum.jax.paths import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCE_SCATTER, run

_LINEAR = ("sum", "avg")


def allreduce(tree: Any, op: str = "sum") -> Any:
    """The arrays of all ranks combined, at all ranks. op: sum, avg, min, max or product; sum and avg have gradients.

    All floating-point leaves of one type are sent as one buffer. Raises ValueError for another op.
    """
    if op not in ("sum", "avg", "min", "max", "product"):
        raise ValueError(f"netsum.jax.allreduce: op={op!r}; use sum, avg, min, max or product")
    leaves, shape_of = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    results = list(leaves)
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        mine = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        flat = jnp.concatenate([leaves[i].ravel() for i in mine]) if len(mine) > 1 else leaves[mine[0]]
        combined = _allreduce(op, flat)
        if len(mine) == 1:
            results[mine[0]] = combined
            continue
        at = 0
        for i in mine:
            results[i] = combined[at : at + leaves[i].size].reshape(leaves[i].shape)
            at += leaves[i].size
    return jax.tree.unflatten(shape_of, results)


def allgather(x: Any) -> Any:
    """The arrays of all ranks, stacked along a new first dimension in rank order."""
    return _allgather(jnp.asarray(x))


def reduce_scatter(x: Any, op: str = "sum") -> Any:
    """Element `rank` of the first dimension, whose size is the number of ranks, combined over all. op: sum or avg."""
    x = jnp.asarray(x)
    if op not in _LINEAR:
        raise ValueError(f"netsum.jax.reduce_scatter: op={op!r}; use sum or avg")
    _check_first(x, "reduce_scatter")
    return _reduce_scatter(op, x)


def broadcast(tree: Any, root: int = 0) -> Any:
    """The arrays of rank `root`, at all ranks."""
    if not 0 <= root < job.size():
        raise ValueError(f"netsum.jax.broadcast: root={root} is not one of {job.size()} ranks")
    return jax.tree.map(lambda leaf: _broadcast(root, jnp.asarray(leaf)), tree)


def alltoall(x: Any) -> Any:
    """Element i of the first dimension, whose size is the number of ranks, goes to rank i; the result has the same
    shape."""
    x = jnp.asarray(x)
    _check_first(x, "alltoall")
    return _alltoall(x)


def _check_first(x: Any, name: str) -> None:
    if not x.ndim or x.shape[0] != job.size():
        raise ValueError(
            f"netsum.jax.{name}: shape {x.shape}; the first dimension must have {job.size()}, one per rank"
        )


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _allreduce(op: Any, x: Any) -> Any:
    return run(ALLREDUCE, x, x.shape, op=op)


def _allreduce_back(op: Any, _: Any, gradient: Any) -> Any:
    if op not in _LINEAR:
        raise NotImplementedError(f"netsum.jax.allreduce: op={op!r} has no gradient; use sum or avg")
    return (_allreduce(op, gradient),)


@jax.custom_vjp
def _allgather(x: Any) -> Any:
    return run(ALLGATHER, x, (job.size(), *x.shape))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _reduce_scatter(op: Any, x: Any) -> Any:
    return run(REDUCE_SCATTER, x, x.shape[1:], op=op)


def _reduce_scatter_back(op: Any, _: Any, gradient: Any) -> Any:
    gathered = _allgather(gradient)
    return (gathered / job.size() if op == "avg" else gathered,)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _broadcast(root: int, x: Any) -> Any:
    return run(BROADCAST, x, x.shape, root=root)


def _broadcast_back(root: int, _: Any, gradient: Any) -> Any:
    total = _allreduce("sum", gradient)
    return (total if job.rank() == root else jnp.zeros_like(total),)


@jax.custom_vjp
def _alltoall(x: Any) -> Any:
    return run(ALLTOALL, x, x.shape)


_allreduce.defvjp(lambda op, x: (_allreduce(op, x), None), _allreduce_back)
_allgather.defvjp(lambda x: (_allgather(x), None), lambda _, gradient: (_reduce_scatter("sum", gradient),))
_reduce_scatter.defvjp(lambda op, x: (_reduce_scatter(op, x), None), _reduce_scatter_back)
_broadcast.defvjp(lambda root, x: (_broadcast(root, x), None), _broadcast_back)
_alltoall.defvjp(lambda x: (_alltoall(x), None), lambda _, gradient: (_alltoall(gradient),))
