"""`netsum.keras` between real processes: parallel training has the result of one process on all the data."""

import importlib.util
import os

import numpy as np
import pytest
from processes import run_ranks

BACKENDS = ("tensorflow", "jax", "torch")
RANKS = 2
pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("keras") is None, reason="Keras is not installed; make setup-frameworks installs it"
    ),
    # Each rank imports its framework again.
]


def train(rank: int) -> list[float]:
    """Some steps on this rank's half of the data, or on all of it with one rank; returns the weights."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras

    import netsum.keras as nk

    nk.init()
    random = np.random.default_rng(1)
    data = random.normal(size=(32, 5)).astype("float32")
    targets = data @ np.array([[1.0], [-2.0], [3.0], [0.5], [0.0]], "float32")
    keras.utils.set_random_seed(7 + rank)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    if rank == 0:
        keras.utils.set_random_seed(7)
        for variable in model.trainable_variables:
            variable.assign(np.linspace(-1, 1, int(np.prod(variable.shape))).reshape(variable.shape))
    optimizer = nk.DistributedOptimizer(keras.optimizers.Adam(0.05))
    assert isinstance(optimizer, keras.optimizers.Adam)
    model.compile(optimizer, loss="mse", jit_compile=False)
    history = model.fit(
        data[rank :: nk.size()],
        targets[rank :: nk.size()],
        batch_size=32 // nk.size(),
        epochs=8,
        shuffle=False,
        verbose=0,
        callbacks=[nk.BroadcastVariables(), nk.AverageMetrics()],
    )
    losses = [float(loss) for loss in history.history["loss"]]
    assert losses[-1] < losses[0]
    gradients = nk.reduce_gradients([None, keras.ops.ones((3,)) * rank], "sum")
    assert gradients[0] is None and float(gradients[1][0]) == sum(range(nk.size()))
    with pytest.raises(ValueError, match="op='max'; use avg or sum"):
        nk.DistributedOptimizer(keras.optimizers.SGD(), "max")
    with pytest.raises(TypeError, match="int is no optimizer of Keras 3"):
        nk.DistributedOptimizer(1)
    nk.communicator().barrier()
    nk.shutdown()
    return losses + [float(x) for variable in model.trainable_variables for x in np.ravel(variable)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_ranks_train_as_one(backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed; make setup-frameworks installs it")
    settings = {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    first, second = run_ranks(train, RANKS, "spawn", **settings)
    assert second == first
    (alone,) = run_ranks(train, 1, "spawn", **settings)
    assert np.allclose(first, alone, atol=2e-3)
