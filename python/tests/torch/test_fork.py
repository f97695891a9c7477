"""A process forked by a rank has its memory, but is no rank: it gets an error, and the ranks are unaffected."""

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import netsum

WAYS = {
    "memory": {},
    "messages": {"NETSUM_SHARED_MEMORY": "off"},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_forked_child_is_refused_and_harms_nobody(ranks, way):
    def child(begun) -> None:
        calls = {
            "all_reduce": lambda: dist.all_reduce(torch.ones(3)),
            "all_reduce, asynchronous": lambda: dist.all_reduce(torch.ones(3), async_op=True).wait(),
            "broadcast": lambda: dist.broadcast(torch.ones(3), 0),
            "send": lambda: dist.send(torch.ones(3), 1 - dist.get_rank()),
            "barrier": lambda: dist.barrier(),
            "what was under way": lambda: begun.wait(timedelta(seconds=5)),
        }
        for name, call in calls.items():
            with pytest.raises(netsum.NetsumError, match=f"belongs to process {os.getppid()}.*forked"):
                call()
                raise AssertionError(f"{name} was let through")
        dist.destroy_process_group()

    def body(rank, size):
        dist.barrier()
        begun = dist.all_reduce(torch.ones(1 << 22), async_op=True) if rank == 0 else None
        forked = os.fork()
        if forked == 0:
            code = 1
            try:
                child(begun) if rank == 0 else dist.destroy_process_group()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(forked, 0)[1] == 0
        if rank == 1:
            begun = dist.all_reduce(torch.ones(1 << 22), async_op=True)
        begun.wait()
        for value in range(3):
            summed = torch.full((3,), float(value + rank))
            dist.all_reduce(summed)
            assert (summed == size * value + 1).all()

    ranks(body, **WAYS[way])
