"""Callbacks for initial weights and metrics."""

from typing import Any

import keras
import numpy as np

from netsum.keras import job
from netsum.keras.gradients import broadcast_variables


class BroadcastVariables(keras.callbacks.Callback):
    """At the start of training, gives all ranks the weights and the optimizer's state of rank `root`."""

    def __init__(self, root: int = 0) -> None:
        super().__init__()
        self.root = root

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        broadcast_variables([*self.model.variables, *self.model.optimizer.variables], self.root)


class AverageMetrics(keras.callbacks.Callback):
    """At the end of an epoch, averages its metrics over all ranks; must precede callbacks that use them."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs:
            names = sorted(logs)
            values = np.array([float(logs[name]) for name in names])
            job.communicator().allreduce(values, "avg")
            logs.update(zip(names, values.tolist(), strict=True))
