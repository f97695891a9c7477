"""Keras 3 on several processes: an optimizer that averages its gradients over all of them, on any of Keras' backends.

    import netsum.keras as nk

    nk.init()                                       # RANK, WORLD_SIZE, NETSUM_MEETING
    model.compile(nk.DistributedOptimizer(keras.optimizers.Adam(1e-3)), loss=…, jit_compile=False)
    model.fit(…, callbacks=[nk.BroadcastVariables()])

`optimizer` wraps an optimizer, `gradients` averages, `callbacks` broadcasts the weights of one rank. On TensorFlow a
collective is a callback of the graph into Python (tf.numpy_function), which XLA cannot compile: hence jit_compile=False
there.
"""

from netsum.keras.callbacks import AverageMetrics, BroadcastVariables
from netsum.keras.gradients import broadcast_variables, reduce_gradients
from netsum.keras.job import communicator, init, rank, shutdown, size
from netsum.keras.optimizer import DistributedOptimizer

__all__ = [
    "AverageMetrics",
    "BroadcastVariables",
    "DistributedOptimizer",
    "broadcast_variables",
    "communicator",
    "init",
    "rank",
    "reduce_gradients",
    "shutdown",
    "size",
]
