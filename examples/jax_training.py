"""JAX: the gradients of a jitted step are averaged over the ranks, inside XLA.

    netsum run --plain -n 2 examples/jax_training.py

You see the loss fall, and the path of the collectives ("ffi", or "callback" if this JAX does not support it).
"""

from typing import Any

import jax
import jax.numpy as jnp

import netsum.jax as nj

nj.init()
world = nj.communicator()


def loss_of(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    hidden = jnp.tanh(x @ params["inner"])
    return jnp.mean((hidden @ params["outer"] - y) ** 2)


def step(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> Any:
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    gradients = nj.allreduce(gradients, "avg")
    return loss, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


compiled = jax.jit(step)
inner, outer, weights = jax.random.split(jax.random.key(0), 3)
params = {"inner": jax.random.normal(inner, (16, 32)) / 4, "outer": jax.random.normal(outer, (32, 1)) / 6}
truth = jax.random.normal(weights, (16, 1)) / 4
data = jax.random.key(100 + world.rank)  # every rank draws its own samples
for number in range(30):
    data, draw = jax.random.split(data)
    x = jax.random.normal(draw, (64, 16))
    loss, params = compiled(params, x, x @ truth)
    if world.rank == 0 and number % 10 == 9:
        print(f"step {number + 1}: loss {float(loss):.4f}")
if world.rank == 0:
    print("path:", nj.path())
nj.shutdown()
