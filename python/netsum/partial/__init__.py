"""Sums that do not wait for stragglers, as in eager-SGD: a round has the ranks ready in time, late ones join the next.

    partial = PartialAllreduce(world.split(range(world.size)), count, bound_s=0.02)
    for batch in batches:
        for done in partial.exchange(gradient(batch)):      # the rounds since the last call, the same everywhere
            parameters -= rate * done.values / max(len(done.ranks), 1)
    rest = partial.close()

Start reading at `PartialAllreduce`.
"""

from netsum.partial.rounds import PartialAllreduce, Round

__all__ = ["PartialAllreduce", "Round"]
