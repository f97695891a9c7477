"""Every collective that moves or adds tensors, against values computed by hand."""

import pytest
import torch
import torch.distributed as dist

import netsum
from netsum.torch import stats

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_allreduce_sums_every_type(ranks, size):
    def body(rank, size):
        for dtype in FLOATS + INTEGERS:
            x = torch.arange(7).to(dtype) + rank
            dist.all_reduce(x)
            assert torch.equal(x, (torch.arange(7) * size + size * (size - 1) // 2).to(dtype)), dtype

    ranks(body, size)


def test_allreduce_operations(ranks):
    def body(rank, size):
        expected = {
            dist.ReduceOp.SUM: 6.0,
            dist.ReduceOp.AVG: 2.0,
            dist.ReduceOp.PRODUCT: 6.0,
            dist.ReduceOp.MIN: 1.0,
            dist.ReduceOp.MAX: 3.0,
        }
        for op, value in expected.items():
            x = torch.full((5,), rank + 1.0)
            dist.all_reduce(x, op)
            assert (x == value).all(), (op, x)
        x = torch.full((5,), rank + 1.0)
        dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
        assert (x == 3.0).all()
        for op, value in {dist.ReduceOp.BAND: 0, dist.ReduceOp.BOR: 7, dist.ReduceOp.BXOR: 7}.items():
            x = torch.full((5,), 1 << rank)
            dist.all_reduce(x, op)
            assert (x == value).all(), (op, x)

    ranks(body, 3)


def test_allreduce_of_complex_numbers_adds_pairs(ranks):
    def body(rank, size):
        for dtype in (torch.complex64, torch.complex128):
            x = torch.tensor([1 + 2j, 3j], dtype=dtype) * (rank + 1)
            dist.all_reduce(x)
            assert torch.equal(x, torch.tensor([3 + 6j, 9j], dtype=dtype))
            lazy = (torch.tensor([1 + 2j], dtype=dtype) * (rank + 1)).conj()
            dist.group.WORLD.allreduce([lazy], dist.AllreduceOptions()).wait()
            assert torch.equal(lazy, torch.tensor([3 - 6j], dtype=dtype))

    ranks(body)


def test_tensors_that_are_not_contiguous_are_staged(ranks):
    def body(rank, size):
        x = torch.arange(6.0).view(2, 3).t()
        dist.all_reduce(x)
        assert torch.equal(x, 2 * torch.arange(6.0).view(2, 3).t())
        column = torch.zeros(4, 2)
        dist.broadcast(column[:, 1] if rank else torch.arange(4.0), 0)
        assert rank == 0 or torch.equal(column[:, 1], torch.arange(4.0))
        work = dist.all_reduce(column[:, 0].add_(1), async_op=True)
        work.wait()
        assert rank == 0 or torch.equal(column[:, 0], torch.full((4,), 2.0))

    ranks(body)


def test_empty_tensors(ranks):
    def body(rank, size):
        empty = torch.empty(0)
        dist.all_reduce(empty)
        dist.broadcast(empty, 1)
        outs = [torch.empty(0) for _ in range(size)]
        dist.all_gather(outs, empty)
        dist.all_gather_into_tensor(torch.empty(0), empty)
        dist.reduce_scatter_tensor(torch.empty(0), empty)

    ranks(body)


def test_large_allreduce_gives_identical_bits(ranks):
    def body(rank, size):
        x = torch.randn(300_007, generator=torch.Generator().manual_seed(rank))
        dist.all_reduce(x)
        all_of_them = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(all_of_them, x)
        for other in all_of_them:
            assert torch.equal(other.view(torch.int32), x.view(torch.int32))

    ranks(body, 3)


def test_rooted_collectives(ranks):
    def body(rank, size):
        for root in range(size):
            x = torch.full((3,), float(rank))
            dist.reduce(x, root)
            assert rank != root or (x == sum(range(size))).all()
            outs = [torch.empty(2) for _ in range(size)] if rank == root else None
            dist.gather(torch.full((2,), float(rank)), outs, dst=root)
            assert rank != root or [int(out[0]) for out in outs] == list(range(size))
            ins = [torch.full((2,), 10.0 * r) for r in range(size)] if rank == root else None
            mine = torch.empty(2)
            dist.scatter(mine, ins, src=root)
            assert (mine == 10.0 * rank).all()

    ranks(body, 3)


def test_gathers_and_scatters(ranks):
    def body(rank, size):
        outs = [torch.empty(r + 1) for r in range(size)]
        dist.all_gather(outs, torch.full((rank + 1,), float(rank)))
        assert [out.tolist() for out in outs] == [[float(r)] * (r + 1) for r in range(size)]
        flat = torch.empty(2 * size, dtype=torch.int64)
        dist.all_gather_into_tensor(flat, torch.tensor([rank, -rank]))
        assert flat.tolist() == [v for r in range(size) for v in (r, -r)]
        out = torch.empty(2)
        dist.reduce_scatter_tensor(out, torch.arange(2.0 * size) + rank)
        base = torch.arange(2.0) + 2 * rank
        assert torch.equal(out, base * size + sum(range(size)))
        dist.reduce_scatter(out, [torch.full((2,), float(r)) for r in range(size)])
        assert (out == rank * size).all()

    ranks(body, 3)


def test_all_to_all(ranks):
    def body(rank, size):
        outs = [torch.empty(2) for _ in range(size)]
        dist.all_to_all(outs, [torch.full((2,), 10.0 * rank + r) for r in range(size)])
        assert [out[0].item() for out in outs] == [10.0 * r + rank for r in range(size)]
        out = torch.empty(size)
        dist.all_to_all_single(out, torch.arange(float(size)) + 10 * rank)
        assert out.tolist() == [10.0 * r + rank for r in range(size)]
        given = [r + 1 for r in range(size)]
        taken = [rank + 1] * size
        out = torch.empty(sum(taken), 2)
        dist.all_to_all_single(out, torch.full((sum(given), 2), float(rank)), taken, given)
        assert out[:, 0].tolist() == [float(r) for r in range(size) for _ in range(rank + 1)]

    ranks(body, 3)


def test_small_sums_that_are_called_together_are_one_operation(ranks):
    def body(rank, size):
        def operations():
            return stats()["operations"]

        whole = [torch.arange(n) for n in range(1, 200)]
        floats = [each.to(torch.float32) * (rank + 1) for each in whole]
        numbers = [each * (rank + 1) for each in whole]
        # Copied for its gaps; and too large to be copied.
        gaps, large = torch.full((20, 2), float(rank))[:, 0], torch.full((100_000,), float(rank))
        before = operations()
        with dist._coalescing_manager():
            for tensor in [*floats, gaps, *numbers, large]:
                dist.all_reduce(tensor)
        assert operations() - before == 3
        factor = size * (size + 1) // 2
        assert all(torch.equal(x, each * factor) for x, each in zip(floats, whole, strict=True))
        assert all(torch.equal(x, each * factor) for x, each in zip(numbers, whole, strict=True))
        assert (gaps == factor - size).all() and (large == factor - size).all()
        averages = [torch.full((3,), rank + 1.0), torch.full((5,), 2.0 * rank)]
        dist.all_reduce_coalesced(averages, dist.ReduceOp.AVG)
        assert (averages[0] == factor / size).all() and (averages[1] == 2 * (factor / size - 1)).all()

    ranks(body, 3)


def test_coalesced_collectives(ranks):
    def body(rank, size):
        tensors = [torch.full((n,), rank + 1.0) for n in (3, 0, 5)]
        with dist._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)
        assert all((tensor == 3.0).all() for tensor in tensors)
        outs = [torch.empty(2 * n) for n in (1, 4)]
        with dist._coalescing_manager(async_ops=True) as batch:
            for out in outs:
                dist.all_gather_into_tensor(out, torch.full((out.numel() // 2,), float(rank)))
        batch.wait()
        assert outs[1].tolist() == [0.0] * 4 + [1.0] * 4
        dist.all_reduce_coalesced(tensors)
        assert (tensors[2] == 6.0).all()

    ranks(body)


def test_sparse_tensors_are_summed(ranks):
    def body(rank, size):
        index = torch.tensor([[0, 1 + rank]])
        x = torch.sparse_coo_tensor(index, torch.ones(2, 3), (5, 3), check_invariants=True)
        dist.all_reduce(x)
        assert x.to_dense()[:, 0].tolist() == [2.0, 1.0, 1.0, 0.0, 0.0]

    ranks(body)


def sparse_case(case: int, rank: int) -> torch.Tensor:
    """A sparse tensor of whole numbers; places of ranks overlap much, little or not at all, and repeat."""
    generator = torch.Generator().manual_seed(100 * case + rank)
    sparse, dense = [(40,), (7, 9), (300,)][case % 3], [(), (3,), (2, 5)][case // 3 % 3]
    count = [0, 1, 12, 60][torch.randint(4, (), generator=generator)]
    first = sparse[0] // 2 if case % 2 and rank % 2 else 0
    rows = [torch.randint(first if d == 0 else 0, n, (count,), generator=generator) for d, n in enumerate(sparse)]
    values = torch.randint(-8, 9, (count, *dense), generator=generator).to([torch.float32, torch.int64][case % 2])
    return torch.sparse_coo_tensor(torch.stack(rows), values, sparse + dense, check_invariants=True)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_sparse_sums_are_those_of_dense_tensors(ranks, size):
    def body(rank, size):
        for case in range(36):
            x = sparse_case(case, rank)
            dist.all_reduce(x)
            expected = sum(sparse_case(case, other).to_dense() for other in range(size))
            given = [sparse_case(case, other).coalesce().indices().t().tolist() for other in range(size)]
            places = {tuple(place) for each in given for place in each}
            assert torch.equal(x.to_dense(), expected) and x.is_coalesced(), case
            assert {tuple(i) for i in x.indices().t().tolist()} == places and x._nnz() == len(places), case

    ranks(body, size)


@pytest.mark.parametrize(
    "theirs",
    [
        lambda: torch.eye(4).to_sparse(),
        lambda: torch.eye(3, dtype=torch.int32).to_sparse(),
        lambda: torch.eye(3).to_sparse(sparse_dim=1),
    ],
)
def test_sparse_tensors_that_differ_are_told_apart_at_all_ranks(ranks, theirs):
    def body(rank, size):
        x = torch.eye(3).to_sparse() if rank == 0 else theirs()
        with pytest.raises(netsum.Mismatch, match=f"rank {1 - rank} for another"):
            dist.all_reduce(x)
        y = torch.ones(2)
        dist.all_reduce(y)
        assert y.tolist() == [2.0, 2.0]

    ranks(body)


@pytest.mark.parametrize("operation", ["broadcast", "all_gather", "gather", "scatter", "all_to_all"])
def test_what_only_moves_bytes_agrees_on_their_type(ranks, operation):
    def body(rank, size):
        x = torch.ones(4, dtype=torch.int32 if rank == 0 else torch.float32)
        parts = [torch.empty_like(x) for _ in range(size)]
        call = {
            "broadcast": lambda: dist.broadcast(x, 0),
            "all_gather": lambda: dist.all_gather(parts, x),
            "gather": lambda: dist.gather(x, parts if rank == 0 else None),
            "scatter": lambda: dist.scatter(x, parts if rank == 0 else None),
            "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(x), x),
        }[operation]
        # The sender may learn of the error only with the reply.
        with pytest.raises(netsum.NetsumError, match=r"(float32|int32).*called.*(float32|int32)"):
            call()
            for _ in range(3):
                dist.barrier()

    ranks(body)


def test_object_collectives(ranks):
    def body(rank, size):
        found = [None] * size
        dist.all_gather_object(found, {"rank": rank})
        assert found == [{"rank": r} for r in range(size)]
        shared = [("a", 1) if rank == 0 else None]
        dist.broadcast_object_list(shared, 0)
        assert shared == [("a", 1)]
        got = [None]
        dist.scatter_object_list(got, [f"to {r}" for r in range(size)] if rank == 1 else None, src=1)
        assert got == [f"to {rank}"]

    ranks(body)


def test_sub_groups_and_a_group_of_gloo_beside(ranks):
    def body(rank, size):
        pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=pairs[rank % 2])
        assert x.item() == {0: 2.0, 1: 4.0}[rank % 2]
        gloo = dist.new_group(backend="gloo")
        y = torch.ones(1)
        dist.all_reduce(y, group=gloo)
        assert y.item() == size

    ranks(body, 4)
