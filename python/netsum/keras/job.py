"""The job of a Keras process; on Keras' JAX backend it is that of `netsum.jax`."""

import atexit
from typing import Any

import keras

from netsum.communicator import Communicator, connect

_world: Communicator | None = None


def init(rank: int | None = None, size: int | None = None, at: str | None = None, **options: Any) -> Communicator:
    """Meet the other ranks; arguments as `netsum.communicator.connect`. A second call has no effect."""
    global _world
    if keras.backend.backend() == "jax":
        from netsum.jax import job

        return job.init(rank, size, at, **options)
    if _world is None:
        _world = connect(rank, size, at, name="keras", **options)
        atexit.register(shutdown)
    return _world


def shutdown() -> None:
    """Leave the job."""
    global _world
    if keras.backend.backend() == "jax":
        from netsum.jax import job

        job.shutdown()
    elif _world is not None:
        atexit.unregister(shutdown)
        ending, _world = _world, None
        ending.close()


def communicator() -> Communicator:
    """The job's communicator. Raises RuntimeError before `init`."""
    if keras.backend.backend() == "jax":
        from netsum.jax import job

        return job.communicator()
    if _world is None:
        raise RuntimeError("netsum.keras has not been initialised; call netsum.keras.init() first")
    return _world


def rank() -> int:
    return communicator().rank


def size() -> int:
    return communicator().size
