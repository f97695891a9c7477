"""Messages between two ranks, barriers, batches."""

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from processes import Latch


def test_send_and_receive(ranks):
    def body(rank, size):
        if rank == 0:
            dist.send(torch.arange(5.0), 1)
            dist.send(torch.tensor([7]), 1, tag=3)
        else:
            by_tag, plain = torch.empty(1, dtype=torch.int64), torch.empty(5)
            dist.recv(by_tag, 0, tag=3)
            dist.recv(plain, 0)
            assert by_tag.item() == 7 and plain.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]

    ranks(body)


def test_receive_from_any_names_its_source(ranks):
    def body(rank, size):
        if rank:
            dist.send(torch.tensor([rank]), 0)
        else:
            sources = set()
            for _ in range(size - 1):
                x = torch.empty(1, dtype=torch.int64)
                source = dist.recv(x)
                assert source == x.item()
                sources.add(source)
            assert sources == {1, 2}

    ranks(body, 3)


def test_batch_of_messages_round_the_ring(ranks):
    def body(rank, size):
        out, into = torch.full((100_000,), float(rank)), torch.empty(100_000)
        batch = [
            dist.P2POp(dist.isend, out, (rank + 1) % size),
            dist.P2POp(dist.irecv, into, (rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        assert (into == (rank - 1) % size).all()

    ranks(body, 3)


def test_message_is_kept_until_it_is_sent(ranks):
    asked = Latch()

    def body(rank, size):
        if rank == 0:
            for i in range(20):
                dist.isend(torch.full((50_000,), float(i)), 1)
            asked.set()
            dist.barrier()
        else:
            asked.wait()
            for i in range(20):
                x = torch.empty(50_000)
                dist.recv(x, 0)
                assert (x == i).all()
            dist.barrier()

    ranks(body)


def test_barrier_waits_for_the_last(ranks):
    called, last = Latch(), Latch()

    def body(rank, size):
        if rank == 1:
            called.wait(2)
            time.sleep(0.2)
            last.set()
        called.set()
        dist.barrier()
        assert last.count() == 1, "it ended before rank 1 had called it"

    ranks(body, 3)


@pytest.mark.parametrize("wait_all", [False, True])
def test_monitored_barrier_names_who_is_missing(ranks, wait_all):
    waited_s, told = 3, Latch()

    def body(rank, size):
        dist.monitored_barrier()
        if rank in (1, 2):
            told.wait(2)
            os._exit(0)
        pattern = "Ranks 1, 2 failed" if wait_all else "Rank 1 failed"
        with pytest.raises(RuntimeError, match=pattern if rank == 0 else "successfully reached monitoredBarrier"):
            dist.monitored_barrier(timeout=timedelta(seconds=waited_s), wait_all_ranks=wait_all)
        told.set()
        os._exit(0)

    ranks(body, 4)
