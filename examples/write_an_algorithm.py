"""Write a collective: recursive doubling, from sends and receives.

    netsum run --plain -n 4 examples/write_an_algorithm.py

Each rank exchanges its sum with the rank whose number differs in one bit, for every bit. You see that the result has
the bits of the library's allreduce: both add in the balanced order over ranks. docs/algorithms.md shows how an
algorithm becomes part of the library.
"""

import numpy as np

from netsum.communicator import Communicator, connect


def recursive_doubling(world: Communicator, values: np.ndarray) -> np.ndarray:
    """The sum of all ranks' values; the number of ranks is a power of two."""
    total, received = values.copy(), np.empty_like(values)
    distance = 1
    while distance < world.size:
        peer = world.rank ^ distance
        sent = world.send(total, peer, tag=distance, wait=False)
        world.receive(received, peer, tag=distance)
        sent.wait()
        # The lower rank's half comes first, so that all ranks round equally.
        total = total + received if world.rank < peer else received + total
        distance *= 2
    return total


with connect() as world:
    if world.size & (world.size - 1):
        raise SystemExit("recursive doubling needs a power of two of ranks")
    mine = np.random.default_rng(world.rank).standard_normal(100_000).astype(np.float32)
    ours = recursive_doubling(world, mine)
    theirs = mine.copy()
    world.allreduce(theirs)
    if world.rank == 0:
        print("same bits as the library:", ours.tobytes() == theirs.tobytes())
