"""How a compiled program reaches the communicator: inside XLA, or by a callback into Python.

Both are one operation with JAX's ordered input-output effect, so that all collectives of a program, and its output,
keep their order. XLA's foreign function interface (https://docs.jax.dev/en/latest/ffi.html) gives a handler in the
compiled core direct access to the buffers; ordering it requires JAX's tokens, which are not public: if they are not
found, the callback is used, which is public, and slower by the interpreter and two copies.
"""

import ctypes
import os
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from netsum.jax import job

ALLREDUCE, ALLGATHER, REDUCE_SCATTER, BROADCAST, ALLTOALL = range(5)
"""Kinds of collectives, as numbered by the handler in crates/py/src/xla."""
OPERATIONS = ("sum", "avg", "min", "max", "product")
"""Reductions, as numbered by the handler."""
_TARGET = "netsum_collective"


def path() -> str:
    """ "ffi" inside XLA, or "callback" through Python."""
    return "callback" if _bind() is None else "ffi"


def run(kind: int, x: Any, shape: tuple[int, ...], *, op: str = "sum", root: int = 0) -> Any:
    """A collective of `kind` on `x`, with a result of `shape`; also during JAX's tracing."""
    bind = _bind()
    result = jax.ShapeDtypeStruct(shape, x.dtype)
    if bind is not None:
        return bind(x, result, kind, op, root)
    return io_callback(lambda array: _call(kind, np.asarray(array), shape, op, root), result, x, ordered=True)


def _call(kind: int, array: np.ndarray, shape: tuple[int, ...], op: str, root: int) -> np.ndarray:
    """Run the collective in Python."""
    world = job.communicator()
    array = np.ascontiguousarray(array).reshape(array.shape)
    if kind == BROADCAST:
        out = array.copy()
        world.broadcast(out, root)
        return out
    out = np.empty(shape, array.dtype)
    if kind == ALLREDUCE:
        world.allreduce(array, op, out=out)
    elif kind == ALLGATHER:
        world.allgather(array, out)
    elif kind == REDUCE_SCATTER:
        world.reduce_scatter(array, out, op)
    else:
        world.alltoall(array, out)
    return out


@cache
def _bind() -> Any:
    """A function that runs a collective inside XLA, or None if that is impossible or disabled."""
    if os.environ.get("NETSUM_JAX_PATH", "").strip() == "callback":
        return None
    try:
        from jax._src import core
        from jax._src.callback import _OrderedIOEffect as effect
        from jax.interpreters import mlir
    except ImportError:
        return None
    from netsum import _core

    handler = jax.ffi.pycapsule(ctypes.c_void_p(_core.xla_handler()))
    try:
        jax.ffi.register_ffi_target(_TARGET, handler, platform="cpu")
    except RuntimeError:
        # XLA's interface has another version than the handler.
        return None
    primitive = core.Primitive(_TARGET)

    @primitive.def_effectful_abstract_eval
    def _(x: Any, *, result: Any, **_parameters: Any) -> Any:
        return core.ShapedArray(result.shape, result.dtype), {effect}

    @primitive.def_impl
    def _(x: Any, **parameters: Any) -> Any:
        return jax.jit(lambda x: primitive.bind(x, **parameters))(x)

    def lower(context: Any, x: Any, *, result: Any, kind: Any, op: Any, root: int, group: Any) -> Any:
        token = context.tokens_in.get(effect)
        both = context.replace(
            avals_in=[core.abstract_token, *context.avals_in], avals_out=[core.abstract_token, *context.avals_out]
        )
        numbers = {"kind": kind, "op": OPERATIONS.index(op), "root": root, "group": group}
        attributes = {name: np.int64(number) for name, number in numbers.items()}
        token, out = jax.ffi.ffi_lowering(_TARGET, has_side_effect=True)(both, token, x, **attributes)
        context.set_tokens_out(context.tokens_in.update_tokens(mlir.TokenSet({effect: token})))
        return [out]

    mlir.register_lowering(primitive, lower, platform="cpu")

    def bind(x: Any, result: Any, kind: int, op: str, root: int) -> Any:
        group = job.communicator().core.number()
        return primitive.bind(x, result=result, kind=kind, op=op, root=root, group=group)

    return bind
