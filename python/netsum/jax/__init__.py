"""Collectives for JAX programs on CPUs, inside `jax.jit` and with gradients.

    import netsum.jax as nj

    nj.init()                                       # RANK, WORLD_SIZE, NETSUM_MEETING
    grads = nj.allreduce(jax.grad(loss)(params), op="avg")

Every process runs the same program. Collectives keep the order of the program under jit, scan and while, by JAX's own
ordered effects, which also means that they cannot be vmapped. They run inside XLA through its foreign function
interface if this version of JAX supports it, and otherwise as a callback into Python; `path()` returns which.
NETSUM_JAX_PATH=callback forces the second. Start reading at `collectives`, then `paths`.
"""

from netsum.jax.collectives import allgather, allreduce, alltoall, broadcast, reduce_scatter
from netsum.jax.job import communicator, init, rank, shutdown, size
from netsum.jax.paths import path

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "communicator",
    "init",
    "path",
    "rank",
    "reduce_scatter",
    "shutdown",
    "size",
]
