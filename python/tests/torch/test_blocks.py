"""Gradients of which only blocks travel that some rank has: the sums of dense ones, and how many blocks travel."""

import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import netsum
from netsum.torch import BlockSparseState, block_sparse, block_sparse_hook, stats


class Bucket:
    """The hook's argument from DDP."""

    def __init__(self, buffer: torch.Tensor, index: int = 0, last: bool = True) -> None:
        self.buffer, self.index, self.is_last = (lambda: buffer), (lambda: index), (lambda: last)


def patches(generator: np.random.Generator, count: int, block: int, share: float) -> np.ndarray:
    """Whole numbers in some blocks, zeros in the others; within a block most are zero, too."""
    has = (generator.random(-(-count // block)) < share).repeat(block)[:count]
    return (generator.integers(-50, 50, count) * (generator.random(count) < 0.1) * has).astype(np.float32)


def blocks_with_bits(values: np.ndarray, block: int) -> np.ndarray:
    whole = len(values) // block * block
    return (values[:whole].view(np.uint32).reshape(-1, block) != 0).any(1)


@pytest.mark.parametrize(("size", "backend"), [(2, "netsum"), (3, "netsum"), (2, "gloo")])
def test_means_are_those_of_dense_gradients_and_only_blocks_of_some_rank_travel(ranks, size, backend):
    def body(rank, size):
        generator = np.random.default_rng(5)
        for block in (1, 7, 256):
            for count in (0, 5, 256, 10_001):
                for share in (0.0, 0.1, 0.5, 1.0):
                    state = BlockSparseState(block=block, densest=0.75)
                    gradients = [patches(generator, count, block, share) for _ in range(size)]
                    buffer = torch.from_numpy(gradients[rank].copy())
                    answer = block_sparse_hook(state, Bucket(buffer)).wait()
                    assert answer is buffer
                    wanted = sum(gradients) / np.float32(size)
                    np.testing.assert_array_equal(buffer.numpy(), wanted)
                    union = np.logical_or.reduce([blocks_with_bits(each, block) for each in gradients])
                    dense = union.sum() >= 0.75 * len(union)
                    assert (state.blocks, state.travelled) == (len(union), len(union) if dense else union.sum())

    ranks(body, size, backend)


def test_bytes_on_the_wire_are_those_of_the_blocks(ranks):
    def body(rank, size):
        count, block = 1 << 20, 256

        def sent_for(densest: float) -> int:
            gradients = torch.zeros(count)
            gradients[: count // 16] = rank + 1.0
            state = BlockSparseState(block=block, densest=densest)
            before = stats()["host_bytes_tx"]
            block_sparse_hook(state, Bucket(gradients)).wait()
            assert (gradients[: count // 16] == 1.5).all() and not gradients[count // 16 :].any()
            return stats()["host_bytes_tx"] - before

        sparse, dense = sent_for(1.0), sent_for(0.0)
        assert dense > 4 * count * 0.9 and sparse < dense / 16 + 3 * count / block + 10_000, (sparse, dense)

    ranks(body, NETSUM_SHARED_MEMORY="off")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_types_too(ranks, dtype):
    def body(rank, size):
        state, buffer = BlockSparseState(block=8), torch.zeros(100, dtype=dtype)
        buffer[[10 + 40 * rank, 99]] = 2.0
        block_sparse_hook(state, Bucket(buffer)).wait()
        wanted = torch.zeros(100, dtype=dtype)
        wanted[10] = wanted[50] = 1.0
        wanted[99] = 2.0
        assert torch.equal(buffer, wanted) and (state.blocks, state.travelled) == (12, 2)

    ranks(body)


def test_what_is_not_finite_and_negative_zeros_reach_all_ranks(ranks):
    def body(rank, size):
        state, buffer = BlockSparseState(block=16), torch.zeros(160)
        if rank == 1:
            buffer[[5, 40]] = torch.tensor([math.nan, math.inf])
        buffer[100] = -0.0
        block_sparse_hook(state, Bucket(buffer)).wait()
        assert buffer[5].isnan() and buffer[40] == math.inf and math.copysign(1, buffer[100]) == -1
        assert state.travelled == 3 and buffer.count_nonzero() == 2

    ranks(body)


class Words(nn.Module):
    """An embedding whose gradient is dense, and a layer behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(500, 16), nn.Linear(16, 3, bias=False)
        for weight in self.parameters():
            nn.init.ones_(weight)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.last(self.table(words)).sum()


@pytest.mark.parametrize("view", [False, True])
def test_a_model_trains_as_without_the_hook(ranks, view):
    def body(rank, size):
        models = [DistributedDataParallel(Words(), bucket_cap_mb=0.02, gradient_as_bucket_view=view) for _ in range(2)]
        state = block_sparse(models[0], block=16)
        for step in range(6):
            words = torch.randint(500, (20,), generator=torch.Generator().manual_seed(100 * step + rank))
            for model in models:
                model.zero_grad()
                if step % 3 == 2:
                    with model.no_sync():
                        model(words.flip(0)[:7]).backward()
                model(words).backward()
            for mine, plain in zip(models[0].parameters(), models[1].parameters(), strict=True):
                assert torch.equal(mine.grad, plain.grad)
        # 40 words of 500 at the most, and 3 blocks of the layer behind.
        assert 0 < state.travelled < 0.15 * state.blocks

    ranks(body)


def test_buckets_left_by_a_step_that_an_error_ended_are_not_sent(ranks):
    def body(rank, size):
        state = BlockSparseState(block=4)
        left = torch.ones(8)
        block_sparse_hook(state, Bucket(left, last=False))
        buffer = torch.full((8,), 1.0 + rank)
        block_sparse_hook(state, Bucket(buffer)).wait()
        assert (buffer == 1.5).all() and (left == 1).all()

    ranks(body)


def test_errors_name_what_is_wrong(ranks):
    def body(rank, size):
        for numbers in ({"block": 0}, {"densest": 1.5}, {"densest": -0.1}):
            with pytest.raises(ValueError, match="block_sparse"):
                BlockSparseState(**numbers)
        with pytest.raises(netsum.Unsupported, match="complex64"):
            block_sparse_hook(BlockSparseState(), Bucket(torch.zeros(4, dtype=torch.complex64)))
        model = DistributedDataParallel(nn.Linear(3, 1))
        block_sparse(model)
        with pytest.raises(RuntimeError, match="hook"):
            block_sparse(model)
        dist.barrier()

    ranks(body)
