"""How torch finds the backend, which interface it gets, and the errors of incorrect use."""

import contextlib
import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import netsum


@pytest.mark.parametrize("backend", ["netsum", "NetSum", "cpu:netsum"])
def test_found_without_import(ranks, backend):
    def body(rank, size):
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == size
        assert type(dist.group.WORLD).__name__ == "NetsumProcessGroup"

    ranks(body, backend=backend)


def test_other_devices_keep_their_backends(ranks):
    def body(rank, size):
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == size
        assert type(dist.group.WORLD) is dist.ProcessGroup

    ranks(body, backend="cpu:netsum,meta:gloo")


def test_nan_check_of_torch_is_kept(ranks):
    def body(rank, size):
        dist.all_reduce(torch.ones(1))
        with pytest.raises(RuntimeError, match=r"(?i)nan"):
            dist.all_reduce(torch.tensor([float("nan")]))
        os._exit(0)

    ranks(body, TORCH_DIST_NAN_CHECK="1")


def test_a_second_world_in_the_same_store(ranks):
    def body(rank, size):
        store = dist.distributed_c10d._get_default_store()
        for _ in range(2):
            dist.destroy_process_group()
            dist.init_process_group("netsum", store=store, rank=rank, world_size=size)
            x = torch.ones(1)
            dist.all_reduce(x)
            assert x.item() == size

    ranks(body)


def test_wrong_use_is_named(ranks):
    def body(rank, size):
        with pytest.raises(netsum.Unsupported, match=r"device 'meta'.*x\.cpu\(\)"):
            dist.group.WORLD.allreduce([torch.ones(1, device="meta")], dist.AllreduceOptions())
        with pytest.raises(netsum.Unsupported, match="float8"):
            dist.group.WORLD.allreduce([torch.ones(1).to(torch.float8_e5m2)], dist.AllreduceOptions())
        with pytest.raises(ValueError, match="cannot share"):
            dist.all_to_all_single(torch.empty(3), torch.empty(3))
        with pytest.raises(NotImplementedError, match="NETSUM_TORCH_SHAPE"):
            dist.group.WORLD.register_pre_hook(0, print)
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == size

    ranks(body)


def test_wrong_settings_are_named(ranks):
    def body(rank, size):
        os.environ["NETSUM_CONGESTION"] = "none at all"
        with pytest.raises(ValueError, match="NETSUM_CONGESTION=none at all: expected one of panama"):
            dist.new_group([0, 1])

    ranks(body)


def test_stats(ranks):
    def body(rank, size):
        from netsum.torch import stats

        dist.all_reduce(torch.ones(100))
        found = stats()
        assert found["path"] == "host" and found["reason"]
        assert found["operations"] >= 1

    ranks(body)


@pytest.mark.parametrize("shape", ["auto", "backend"])
def test_short_forms_of_calls(ranks, shape):
    def body(rank, size):
        group = dist.group.WORLD
        x = torch.ones(2)
        group.allreduce([x]).wait()
        group.allreduce(x, dist.ReduceOp.SUM).wait()
        assert x.tolist() == [4.0, 4.0]
        group.broadcast(x.mul_(rank + 1), 1).wait()
        assert x.tolist() == [8.0, 8.0]
        outs = [torch.empty(2) for _ in range(size)]
        group.allgather(outs, x).wait()
        group.barrier().wait()
        assert outs[0].tolist() == outs[1].tolist() == [8.0, 8.0]

    ranks(body, NETSUM_TORCH_SHAPE=shape)


@pytest.mark.parametrize("shape", ["auto", "backend"])
def test_the_profiler_sees_operations_with_shapes(ranks, shape):
    def body(rank, size):
        with torch.autograd.profiler.profile(record_shapes=True) as profile:
            dist.all_reduce(torch.ones(3, 4))
            dist.broadcast(torch.ones(5), 0, async_op=True).wait()
        events = {event.name: event for event in profile.function_events}
        assert events["netsum:all_reduce"].input_shapes == [[3, 4]]
        assert events["netsum:all_reduce"].is_async
        assert events["netsum:broadcast"].input_shapes == [[5]]

    ranks(body, NETSUM_TORCH_SHAPE=shape)


def test_torch_debug_mode_finds_a_mismatch(ranks):
    def body(rank, size):
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == size
        with pytest.raises(RuntimeError, match="mismatch"):
            dist.all_reduce(torch.ones(1 + rank))
        os._exit(0)

    ranks(body, TORCH_DISTRIBUTED_DEBUG="DETAIL")


@pytest.mark.parametrize("shape", ["auto", "backend"])
def test_modes_of_torch_see_every_collective(ranks, shape):
    """CommDebugMode counts what passes torch's dispatcher, which a whole process group of netsum otherwise bypasses."""
    calls = {
        "allreduce_": lambda x, parts: dist.all_reduce(x),
        "allreduce_coalesced_": lambda x, parts: dist.all_reduce_coalesced([x, x + 1]),
        "reduce_": lambda x, parts: dist.reduce(x, 0),
        "broadcast_": lambda x, parts: dist.broadcast(x, 1),
        "allgather_": lambda x, parts: dist.all_gather(parts, x[:2]),
        "_allgather_base_": lambda x, parts: dist.all_gather_into_tensor(x, x[:2].clone()),
        "reduce_scatter_": lambda x, parts: dist.reduce_scatter(x[:2], [each.clone() for each in parts]),
        "_reduce_scatter_base_": lambda x, parts: dist.reduce_scatter_tensor(x[:2].clone(), x),
        "gather_": lambda x, parts: dist.gather(x[:2], parts if dist.get_rank() == 0 else None),
        "scatter_": lambda x, parts: dist.scatter(x[:2], parts if dist.get_rank() == 0 else None),
        "alltoall_": lambda x, parts: dist.all_to_all([x[:2].clone(), x[2:].clone()], list(parts)),
        "alltoall_base_": lambda x, parts: dist.all_to_all_single(x.clone(), x),
    }

    class Names(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.namespace == "c10d":
                self.seen.append(function._schema.name.removeprefix("c10d::"))
            return function(*args, **(kwargs or {}))

    def body(rank, size):
        for name, call in calls.items():
            found = []
            for mode in (contextlib.nullcontext(), Names()):
                x = torch.arange(4.0) + 10 * rank
                parts = [x[:2].clone(), x[2:].clone()]
                with mode:
                    call(x, parts)
                found.append(torch.cat([x, *parts]))
            assert mode.seen == [name], (name, mode.seen)
            assert torch.equal(*found), name
        with CommDebugMode() as debug:
            work = dist.all_reduce(torch.ones(3), async_op=True)
            work.wait()
        assert debug.get_total_counts() == 1

    ranks(body, NETSUM_TORCH_SHAPE=shape)


@pytest.mark.parametrize("shape", ["auto", "backend"])
def test_a_tensor_that_consists_of_others_takes_part(ranks, shape):
    """It has no memory of its own: the collective runs for each of the tensors within."""

    def body(rank, size):
        def pair(value):
            return TwoTensor(torch.tensor([value]), torch.tensor([10 * value]))

        found = pair(0.0)
        dist.scatter(found, [pair(4.0), pair(5.0)] if rank == 0 else None)
        assert (found.a.item(), found.b.item()) == (4.0 + rank, 40.0 + 10 * rank)

    ranks(body, NETSUM_TORCH_SHAPE=shape)
