"""A Keras optimizer that combines the gradients of all ranks."""

from typing import TYPE_CHECKING, Any

import keras

from netsum.keras.gradients import reduce_gradients

if TYPE_CHECKING:
    _Base: Any = keras.optimizers.Optimizer
else:
    _Base = object


def DistributedOptimizer(optimizer: keras.optimizers.Optimizer, op: str = "avg") -> keras.optimizers.Optimizer:
    """`optimizer`, with gradients combined over all ranks before they are applied.

    The result is an optimizer of the same kind, with the same state and configuration. op: avg or sum. Clipping and
    weight decay apply to the combined gradients. Raises TypeError if `optimizer` is not from Keras 3, ValueError for
    another op.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"netsum.keras.DistributedOptimizer: {type(optimizer).__name__} is no optimizer of Keras 3")
    if op not in ("avg", "sum"):
        raise ValueError(f"netsum.keras.DistributedOptimizer: op={op!r}; use avg or sum")
    kind = type(optimizer).__name__
    optimizer.__class__ = type(kind, (_Distributed, type(optimizer)), {"_reduction": op})
    return optimizer


class _Distributed(_Base):
    """Overrides `apply`, which every way of applying gradients calls."""

    _reduction = "avg"

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        return super().apply(reduce_gradients(list(grads), self._reduction), trainable_variables)
