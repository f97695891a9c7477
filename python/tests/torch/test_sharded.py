"""FSDP2, ZeRO, DTensor and meshes by real ranks: parameters equal those of one process, to the bit where each rank's
arithmetic is the same and only the order of additions differs. `sharding` has the model and that process.
"""

import itertools
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from sharding import STEPS, blocks, loss_of, optimizer_of, same_bits, sharded, trained_alone, whole
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from netsum.torch.fsdp import overlap

BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
ALL_BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)


def train(model: nn.Module, rank: int, micro: int = 1, sync_every: bool = False) -> None:
    """`STEPS` steps; rank 1 arrives late at each sum, so that whoever does not wait for it has another result."""
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(micro):
            if not sync_every:
                model.set_requires_gradient_sync(number + 1 == micro)
            loss = loss_of(model, rank, step * micro + number)
            if rank == 1:
                torch.randn(400, 400) @ torch.randn(400, 400)
            loss.backward()
        optimizer.step()


# One dimension.


@pytest.mark.parametrize("overlapped", [False, True], ids=["blocking", "overlapped"])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("reshard", [True, False])
def test_fsdp_has_the_bits_of_one_process(ranks, reshard, size, overlapped):
    def body(rank, size):
        model = sharded(blocks(), mesh=init_device_mesh("cpu", (size,)), reshard_after_forward=reshard)
        if overlapped:
            overlap(model)
        train(model, rank)
        same_bits(model, trained_alone(size))

    ranks(body, size)


@pytest.mark.parametrize("overlapped", [False, True], ids=["blocking", "overlapped"])
@pytest.mark.parametrize(
    ("policy", "reduced"), [(BF16, torch.float32), (ALL_BF16, torch.bfloat16)], ids=["float32 sums", "bfloat16 sums"]
)
def test_the_caller_chooses_the_type_of_the_sums(ranks, policy, reduced, overlapped):
    """With two ranks a bfloat16 sum is rounded once, whatever a backend computes in between."""

    def body(rank, size):
        model = sharded(blocks(), mesh=init_device_mesh("cpu", (size,)), mp_policy=policy)
        if overlapped:
            overlap(model)
        train(model, rank)
        same_bits(model, trained_alone(size, parameters=torch.bfloat16, reduced=reduced))

    ranks(body)


@pytest.mark.parametrize("overlapped", [False, True], ids=["blocking", "overlapped"])
@pytest.mark.parametrize("sync_every", [False, True], ids=["sum at the end", "sum every pass"])
@pytest.mark.parametrize("policy", [MixedPrecisionPolicy(), BF16], ids=["float32", "bfloat16"])
def test_gradients_accumulate(ranks, policy, sync_every, overlapped):
    def body(rank, size):
        model = sharded(blocks(), mesh=init_device_mesh("cpu", (size,)), mp_policy=policy)
        if overlapped:
            overlap(model)
        train(model, rank, micro=3, sync_every=sync_every)
        dtype = policy.param_dtype or torch.float32
        same_bits(model, trained_alone(size, micro=3, parameters=dtype, sync_every=sync_every))

    ranks(body)


@pytest.mark.parametrize("overlapped", [False, True], ids=["blocking", "overlapped"])
def test_hybrid_sharding_has_the_bits_of_one_process(ranks, overlapped):
    def body(rank, size):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
        model = sharded(blocks(), mesh=mesh)
        if overlapped:
            overlap(model)
        train(model, rank)
        same_bits(model, trained_alone(size, copies=2))

    ranks(body, 4)


def test_parameters_may_stay_within_two_ranks_after_forward(ranks):
    """`reshard_after_forward=2`: backward gathers from pairs of ranks, in groups of their own."""

    def body(rank, size):
        model = sharded(blocks(), mesh=init_device_mesh("cpu", (size,)), reshard_after_forward=2)
        overlap(model)
        train(model, rank)
        same_bits(model, trained_alone(size))

    ranks(body, 4)


# What `overlap` must wait for, and what not.


def test_a_rank_computes_while_another_has_not_come_to_the_collectives(ranks):
    """Rank 1 comes to the second block only once rank 0 computes in the first, forward; and to the sums of the last
    block only once rank 0 is past the second, backward. Without overlap rank 0 would wait for rank 1 in both places.
    """

    def body(rank, size):
        store = dist.PrefixStore("turns", dist.distributed_c10d._get_default_store())
        model = blocks()
        first, second, last = model[:3]

        def meet(key):
            """Rank 1 waits here until rank 0 is at the same place."""
            if rank == 0:
                store.set(key, b"")
            else:
                store.wait([key], timedelta(seconds=60))

        def when_gradient_comes(module, hook):
            module.register_forward_hook(lambda _module, _inputs, output: output.register_hook(hook) and None)

        # Before FSDP's own hook: a rank that waits here has not asked for the second block's parameters.
        if rank == 1:
            first.register_forward_pre_hook(lambda *_: meet("forward"))
            when_gradient_comes(last.up, lambda _: meet("backward"))
        sharded(model, mesh=init_device_mesh("cpu", (size,)), reshard_after_forward=False)
        overlap(model)
        if rank == 0:
            first.up.register_forward_hook(lambda *_: meet("forward"))
            when_gradient_comes(second.up, lambda _: meet("backward"))
        loss_of(model, rank, 0).backward()

    ranks(body)


def test_a_hook_that_reads_gradients_during_backward_sees_their_sums(ranks):
    def body(rank, size):
        model = sharded(blocks(), mesh=init_device_mesh("cpu", (size,)))
        overlap(model)
        optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

        def step(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for number in range(STEPS):
            loss_of(model, rank, number).backward()
        same_bits(model, trained_alone(size))

    ranks(body)


def test_an_all_reduce_hook_sees_sums(ranks):
    def body(rank, size):
        model = sharded(blocks(), mesh=init_device_mesh("cpu", (size,)))
        overlap(model)
        for module in [*model[:-1], model]:
            module.set_all_reduce_hook(lambda output: output.mul_(2.0))
        loss_of(model, rank, 0).backward()
        doubled = [parameter.grad.full_tensor() for parameter in model.parameters()]
        plain = sharded(blocks(), mesh=init_device_mesh("cpu", (size,)))
        loss_of(plain, rank, 0).backward()
        for found, parameter in zip(doubled, plain.parameters(), strict=True):
            assert torch.equal(found, 2 * parameter.grad.full_tensor())

    ranks(body)


def test_float16_sums_that_fsdp_divides_itself(ranks):
    policy = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float16)

    def body(rank, size):
        found = []
        for overlapped in (False, True):
            model = sharded(blocks(), mesh=init_device_mesh("cpu", (size,)), mp_policy=policy)
            if overlapped:
                overlap(model)
            train(model, rank)
            found.append(list(whole(model)))
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))

    ranks(body, 4)


def test_a_backward_pass_that_fails_leaves_nothing_behind(ranks):
    def body(rank, size):
        model = sharded(blocks(), mesh=init_device_mesh("cpu", (size,)))
        overlap(model)

        def fail(_grad):
            raise RuntimeError("planned")

        handle = model[0].register_forward_hook(lambda _m, _a, out: out.register_hook(fail) and None)
        with pytest.raises(RuntimeError, match="planned"):
            loss_of(model, rank, 0).backward()
        handle.remove()
        model.reset_iter_state()
        train(model, rank)
        same_bits(model, trained_alone(size))

    ranks(body)


def test_overlap_refuses_what_is_not_sharded():
    with pytest.raises(ValueError, match="fully_shard"):
        overlap(blocks())


# ZeRO.


@pytest.mark.parametrize("size", [2, 3])
def test_zero_has_the_bits_of_plain_data_parallel(ranks, size):
    def body(rank, size):
        trained = []
        for make in (
            torch.optim.SGD,
            lambda parameters, **options: ZeroRedundancyOptimizer(parameters, torch.optim.SGD, **options),
        ):
            model = DistributedDataParallel(blocks())
            optimizer = make(model.parameters(), lr=0.1, momentum=0.9)
            for number in range(STEPS):
                optimizer.zero_grad()
                loss_of(model, rank, number).backward()
                optimizer.step()
            trained.append([parameter.detach().clone() for parameter in model.parameters()])
        assert all(torch.equal(one, other) for one, other in zip(*trained, strict=True))

    ranks(body, size)


# DTensor.


def test_every_redistribution_of_one_dimension(ranks):
    """From each placement to each other that torch supports, of tensors that ranks share unevenly; whole numbers, so
    sums are exact.
    """

    def body(rank, size):
        mesh = init_device_mesh("cpu", (size,))
        full = torch.arange(7.0 * 5).view(7, 5)
        given = {
            Replicate(): distribute_tensor(full, mesh, [Replicate()]),
            Shard(0): distribute_tensor(full, mesh, [Shard(0)]),
            Shard(1): distribute_tensor(full, mesh, [Shard(1)]),
            # The ranks' summands: of rank 0 the tensor with what the others subtract.
            Partial(): DTensor.from_local(
                full + size * (size - 1) // 2 if rank == 0 else -torch.ones(7, 5) * rank, mesh, [Partial()]
            ),
        }
        for (start, tensor), end in itertools.product(given.items(), [Replicate(), Shard(0), Shard(1)]):
            found = tensor.redistribute(mesh, [end])
            assert found.placements == (end,)
            assert torch.equal(found.full_tensor(), full), (start, end)

    ranks(body, 3)


def test_every_redistribution_of_two_dimensions(ranks):
    def body(rank, size):
        mesh = init_device_mesh("cpu", (2, 2))
        full = torch.arange(6.0 * 5).view(6, 5)
        placements = list(itertools.product([Replicate(), Shard(0), Shard(1)], repeat=2))
        for start, end in itertools.product(placements, repeat=2):
            found = distribute_tensor(full, mesh, start).redistribute(mesh, end)
            assert torch.equal(found.full_tensor(), full), (start, end)
            mine = distribute_tensor(full, mesh, end).to_local()
            assert torch.equal(found.to_local(), mine), (start, end)

    ranks(body, 4)


# Meshes of several dimensions.


def test_dimensions_of_a_mesh_are_groups_that_work_at_the_same_time(ranks):
    names = ("stage", "copy", "shard", "tensor")

    def body(rank, size):
        mesh = init_device_mesh("cpu", (2, 2, 2, 2), mesh_dim_names=names)
        place = torch.arange(16).view(2, 2, 2, 2)
        mine = mesh.get_coordinate()
        sums, expected = [], []
        for dimension, name in enumerate(names):
            where = tuple(slice(None) if d == dimension else c for d, c in enumerate(mine))
            expected.append(float(place[where].sum()))
            x = torch.full((1000 + dimension,), float(rank))
            sums.append((x, dist.all_reduce(x, group=mesh.get_group(name), async_op=True)))
        for (x, work), total in zip(sums, expected, strict=True):
            work.wait()
            assert (x == total).all()
        both = mesh["copy", "shard"]._flatten("data")
        parts = torch.empty(4, 3)
        dist.all_gather_into_tensor(parts, torch.full((1, 3), float(rank)), group=both.get_group())
        assert parts[:, 0].tolist() == place[mine[0], :, :, mine[3]].flatten().tolist()

    ranks(body, 16)


def test_copies_of_shards_of_tensor_parallel_layers(ranks):
    """Hybrid sharding and tensor parallelism: 2 copies of 2 shards of 2 halves of each matrix."""

    def body(rank, size):
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("copy", "shard", "tensor"))
        model, alone = (blocks() for _ in range(2))
        for block in model[:-1]:
            parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        sharded(model, mesh=mesh["copy", "shard"])
        overlap(model)
        copy, shard, _ = mesh.get_coordinate()
        optimizer, other = optimizer_of(model), optimizer_of(alone)
        for number in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, 2 * copy + shard, number).backward()
            optimizer.step()
            other.zero_grad()
            for each in range(4):
                (loss_of(alone, each, number) / 4).backward()
            other.step()
        for found, expected in zip(whole(model), alone.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    ranks(body, 8)
