"""The job of a JAX process."""

import atexit
from typing import Any

from netsum.communicator import Communicator, connect

_world: Communicator | None = None


def init(rank: int | None = None, size: int | None = None, at: str | None = None, **options: Any) -> Communicator:
    """Meet the other ranks; arguments as `netsum.communicator.connect`. A second call has no effect."""
    global _world
    if _world is None:
        _world = connect(rank, size, at, name="jax", **options)
        atexit.register(shutdown)
    return _world


def shutdown() -> None:
    """Leave the job; compiled programs can no longer run their collectives."""
    global _world
    if _world is not None:
        atexit.unregister(shutdown)
        ending, _world = _world, None
        ending.close()


def communicator() -> Communicator:
    """The job's communicator. Raises RuntimeError before `init`."""
    if _world is None:
        raise RuntimeError("netsum.jax has not been initialised; call netsum.jax.init() first")
    return _world


def rank() -> int:
    return communicator().rank


def size() -> int:
    return communicator().size
