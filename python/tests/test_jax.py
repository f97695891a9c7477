"""`netsum.jax` between real processes: values, order and gradients, inside XLA and by the callback."""

import pytest
from processes import run_ranks

from netsum.communicator import memory

# Ranks are forked before JAX has started anything but its import.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
jax = pytest.importorskip("jax", reason="JAX is not installed; make setup-frameworks installs it")

RANKS = 3
PATHS = ("ffi", "callback")


def spmd(body, path: str, size: int = RANKS) -> list:
    """body(rank, jnp, nj) at every rank."""

    def with_job(rank: int):
        import jax.numpy as jnp

        import netsum.jax as nj

        jax.config.update("jax_enable_x64", True)
        nj.init()
        answer = body(rank, jnp, nj)
        assert nj.path() == path
        nj.communicator().barrier()
        nj.shutdown()
        return answer

    return run_ranks(with_job, size, JAX_PLATFORMS="cpu", NETSUM_JAX_PATH=path)


def test_arrays_of_jax_are_values():
    def body(rank: int):
        import jax.numpy as jnp

        for dtype in (jnp.float32, jnp.bfloat16, jnp.int8):
            found = memory(jnp.ones(3, dtype), "test")
            assert (found.dtype, found.count, found.writable) == (jnp.dtype(dtype).name, 3, False)

    run_ranks(body, 1, JAX_PLATFORMS="cpu")


@pytest.mark.parametrize("path", PATHS)
def test_collectives_with_and_without_jit(path):
    def body(rank: int, jnp, nj):
        x = jnp.arange(6.0).reshape(2, 3) + 10 * rank
        total = sum(jnp.arange(6.0).reshape(2, 3) + 10 * each for each in range(RANKS))
        parts = jnp.arange(6.0).reshape(3, 2) + 10 * rank
        for wrap in (jax.jit, lambda function: function):
            assert (wrap(nj.allreduce)(x) == total).all()
            assert (wrap(lambda x: nj.allreduce(x, "avg"))(x) == total / 3).all()
            assert (wrap(lambda x: nj.allreduce(x, "max"))(x) == jnp.arange(6.0).reshape(2, 3) + 20).all()
            tree = {"a": x, "b": [x[0], jnp.int32(rank)], "c": x.astype(jnp.bfloat16)}
            reduced = wrap(nj.allreduce)(tree)
            assert (reduced["b"][0] == total[0]).all() and reduced["b"][1] == 3
            assert reduced["c"].dtype == jnp.bfloat16 and (reduced["c"] == total).all()
            assert wrap(nj.allgather)(x).shape == (3, 2, 3)
            assert (wrap(nj.allgather)(x)[2] == jnp.arange(6.0).reshape(2, 3) + 20).all()
            assert (wrap(nj.reduce_scatter)(parts) == 3 * jnp.arange(2.0) + 6 * rank + 30).all()
            assert (wrap(lambda x: nj.broadcast(x, 1))(x) == jnp.arange(6.0).reshape(2, 3) + 10).all()
            swapped = wrap(nj.alltoall)(parts)
            assert (swapped[:, 0] == 2 * rank + 10 * jnp.arange(3)).all()
            assert wrap(nj.allreduce)(jnp.zeros((0, 4))).shape == (0, 4)

    spmd(body, path)


@pytest.mark.parametrize("path", PATHS)
def test_many_collectives_keep_their_order(path):
    def body(rank: int, jnp, nj):
        @jax.jit
        def program(x):
            # Independent of each other, and of different sizes: ranks can match them by their order only.
            many = [nj.allreduce(jnp.full((n,), x + n)).sum() / n for n in range(1, 20)]

            def step(carry, _):
                return nj.allreduce(carry) / RANKS + 1, nj.allgather(carry).sum()

            last, gathered = jax.lax.scan(step, x, None, length=10)
            return jnp.stack(many), last, gathered

        many, last, gathered = program(float(rank))
        assert jnp.allclose(many, 3 + 3.0 * jnp.arange(1, 20))
        assert last == 11 and gathered.shape == (10,) and gathered[0] == 3

    spmd(body, path)


@pytest.mark.parametrize("path", PATHS)
def test_gradients_are_those_of_all_losses_together(path):
    def body(rank: int, jnp, nj):
        weights = jnp.arange(1.0, 4.0)
        x = jnp.arange(3.0) + rank

        def losses(function):
            """All ranks' losses as functions of all ranks' inputs, computed in one process."""
            return jax.grad(lambda everything: sum(function(r, everything) for r in range(RANKS)))

        everything = jnp.stack([jnp.arange(3.0) + each for each in range(RANKS)])
        factor = jnp.array([1.0, 2.0, 5.0])
        loss = jax.jit(jax.grad(lambda x: factor[rank] * (nj.allreduce(x) ** 2 * weights).sum()))
        expected = losses(lambda r, all_: factor[r] * (all_.sum(0) ** 2 * weights).sum())(everything)[rank]
        assert jnp.allclose(loss(x), expected)
        loss = jax.grad(lambda x: factor[rank] * (nj.allgather(x) ** 3).sum())
        expected = losses(lambda r, all_: factor[r] * (all_**3).sum())(everything)[rank]
        assert jnp.allclose(loss(x), expected)
        loss = jax.grad(lambda x: factor[rank] * nj.reduce_scatter(x, "avg") ** 2)
        expected = losses(lambda r, all_: factor[r] * (all_.mean(0)[r] ** 2))(everything)[rank]
        assert jnp.allclose(loss(x), expected)
        loss = jax.grad(lambda x: factor[rank] * (nj.broadcast(x, 1) ** 2).sum())
        expected = losses(lambda r, all_: factor[r] * (all_[1] ** 2).sum())(everything)[rank]
        assert jnp.allclose(loss(x), expected)
        loss = jax.grad(lambda x: (nj.alltoall(x) ** 2 * factor[rank]).sum())
        expected = losses(lambda r, all_: (all_[:, r] ** 2 * factor[r]).sum())(everything)[rank]
        assert jnp.allclose(loss(x), expected)
        with pytest.raises(NotImplementedError, match="op='max' has no gradient"):
            jax.grad(lambda x: nj.allreduce(x, "max").sum())(x)

    spmd(body, path)


@pytest.mark.parametrize("path", PATHS)
def test_training_gives_what_one_process_gives(path):
    import numpy as np

    data = np.random.default_rng(1).normal(size=(12, 4)).astype(np.float32)
    targets = data @ np.array([1.0, -2.0, 3.0, 0.5], np.float32)

    def train(rows, reduce) -> list[float]:
        import jax.numpy as jnp

        @jax.jit
        def step(params):
            def loss(params):
                return jnp.mean((data[rows] @ params["w"] + params["b"] - targets[rows]) ** 2)

            return jax.tree.map(lambda p, g: p - 0.1 * g, params, reduce(jax.grad(loss)(params)))

        params = {"w": jnp.zeros(4, jnp.float32), "b": jnp.float32(0)}
        for _ in range(20):
            params = step(params)
        return [*params["w"].tolist(), float(params["b"])]

    def body(rank: int, jnp, nj):
        return train(slice(4 * rank, 4 * rank + 4), lambda grads: nj.allreduce(grads, "avg"))

    first, *others = spmd(body, path)
    assert others == [first, first]
    assert np.allclose(first, run_ranks(lambda rank: train(slice(0, 12), lambda grads: grads), 1)[0], atol=1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_errors_reach_the_caller(path):
    def body(rank: int, jnp, nj):
        with pytest.raises(ValueError, match=r"shape \(4,\); the first dimension must have 2, one per rank"):
            nj.alltoall(jnp.zeros(4))
        with pytest.raises(ValueError, match="op='mean'; use sum, avg"):
            nj.allreduce(jnp.zeros(4), "mean")
        nj.communicator().timeout_s = 60.0
        with pytest.raises(Exception, match=r"rank \d called allreduce float64\[\d\] sum"):
            jax.block_until_ready(jax.jit(nj.allreduce)(jnp.zeros(4 + rank)))

    def with_job(rank: int):
        import jax.numpy as jnp

        import netsum.jax as nj

        jax.config.update("jax_enable_x64", True)
        nj.init()
        body(rank, jnp, nj)

    run_ranks(with_job, 2, JAX_PLATFORMS="cpu", NETSUM_JAX_PATH=path)
