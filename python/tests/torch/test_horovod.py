"""`netsum.horovod.torch` between real processes: cases that Horovod's own tests omit, and training."""

import os
import signal
import warnings

import pytest
import torch
from processes import Latch, run_ranks, wait_until

import netsum.horovod.torch as hvd

# Modules that torch imports with the first optimizer are imported here once rather than by every forked rank.
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1).step()


def spmd(body, size: int = 3, **environment: str) -> list:
    """body(rank) at every rank, between init and shutdown."""

    def with_horovod(rank: int):
        hvd.init()
        assert (hvd.rank(), hvd.size()) == (rank, size)
        answer = body(rank)
        # As at the end of a script: no rank leaves while others still sum.
        hvd.barrier()
        hvd.shutdown()
        return answer

    return run_ranks(with_horovod, size, **environment)


def test_operations_meet_by_name_in_any_order():
    def body(rank: int):
        order = [(rank * 7 + 3 * i) % 20 for i in range(20)]
        handles = {i: hvd.allreduce_async(torch.full((i + 1,), float(rank)), name=f"t{i}", op=hvd.Sum) for i in order}
        assert all(hvd.synchronize(handles[i]).tolist() == [3.0] * (i + 1) for i in range(20))

    spmd(body)


def test_every_result_is_alike_at_all_ranks():
    def body(rank: int):
        torch.manual_seed(rank)
        return hvd.allreduce(torch.randn(10_000)).sum().item(), hvd.grouped_allreduce([torch.randn(9)] * 3)[2].tolist()

    first, *others = spmd(body)
    assert others == [first, first]


def test_large_small_and_mixed_tensors_in_one_group():
    def body(rank: int):
        tensors = [torch.full((n,), rank + 1, dtype=dtype) for n in (1, 100_000, 300, 0) for dtype in DTYPES]
        for tensor in hvd.grouped_allreduce(tensors, op=hvd.Sum):
            assert (tensor == 6).all()
        assert all((tensor == rank + 1).all() for tensor in tensors)
        hvd.grouped_allreduce_(tensors, op=hvd.Average)
        assert all((tensor == 2).all() for tensor in tensors)

    spmd(body)


DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)


def test_unnamed_operations_meet_again_after_a_join():
    def body(rank: int):
        for first in range(3):
            if rank != first:
                assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2
            last = hvd.join()
            assert last != first
            assert hvd.allgather_object(last) == [last] * 3
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3

    spmd(body)


@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.fp16])
def test_training_gives_what_one_process_gives_on_all_the_data(groups, compression):
    data, targets = torch.randn(24, 6), torch.randn(24, 1)

    def model_and_optimizer():
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train(model, optimizer, rows) -> list[float]:
        for _ in range(5):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(data[rows]), targets[rows]).backward()
            optimizer.step()
        return torch.cat([each.detach().ravel() for each in model.parameters()]).tolist()

    def body(rank: int):
        model, optimizer = model_and_optimizer()
        if rank:
            torch.nn.init.zeros_(model[0].weight)
        optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), compression=compression, groups=groups
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert isinstance(optimizer, torch.optim.SGD)
        torch.optim.lr_scheduler.StepLR(optimizer, 10)
        return train(model, optimizer, slice(8 * rank, 8 * rank + 8))

    first, *others = spmd(body)
    assert others == [first, first]
    alone = train(*model_and_optimizer(), slice(0, 24))
    precision = 1e-5 if compression is hvd.Compression.none else 1e-2
    assert torch.allclose(torch.tensor(first), torch.tensor(alone), atol=precision)


def test_gradients_of_several_passes_are_reduced_once():
    def body(rank: int):
        weight = torch.nn.Parameter(torch.zeros(3))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=1.0),
            named_parameters=[("w", weight)],
            backward_passes_per_step=2,
            gradient_predivide_factor=2.0,
        )
        for step in range(1, 3):
            for _ in range(2):
                (weight * (rank + 1.0)).sum().backward()
            optimizer.synchronize()
            assert weight.grad.tolist() == [4.0] * 3
            with optimizer.skip_synchronize(), warnings.catch_warnings():
                warnings.simplefilter("error")
                optimizer.step()
            assert weight.tolist() == [-4.0 * step] * 3
            optimizer.zero_grad()
        for _ in range(2):
            (weight * 1.0).sum().backward()
        with pytest.raises(AssertionError, match="more than backward_passes_per_step times"):
            (weight * 1.0).sum().backward()
        with pytest.raises(AssertionError, match="This is prohibited as it can cause a race"):
            optimizer.zero_grad()
        optimizer.synchronize()

    spmd(body)


def test_gradients_that_only_some_ranks_have_are_reduced_all_the_same():
    def body(rank: int):
        used = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(used, lr=1.0))
        for step in range(1, 3):
            optimizer.zero_grad()
            (used[rank] * 3.0).sum().backward()
            optimizer.step()
            assert all(each.tolist() == [-step] * 2 for each in used)

    spmd(body)


def test_gradients_flow_through_every_collective():
    def body(rank: int):
        x = torch.arange(6.0).reshape(3, 2).requires_grad_()
        gathered = hvd.allgather(x * (rank + 1))
        (gathered * gathered).sum().backward()
        assert torch.allclose(x.grad, 2 * x.detach() * (rank + 1) ** 2)
        x.grad = None
        hvd.alltoall(x * 3).sum().backward()
        hvd.broadcast(x, 1).sum().backward()
        assert (x.grad == 3 + (rank == 1)).all()
        x.grad = None
        hvd.reducescatter(x, op=hvd.Sum, prescale_factor=0.5).sum().backward()
        assert (x.grad == 1.5).all()

    spmd(body)


def test_batch_norm_over_all_ranks():
    values, weights = torch.randn(6, 4, 5), torch.randn(6, 4, 5)

    def body(rank: int):
        alone, together = torch.nn.BatchNorm1d(4), hvd.SyncBatchNorm(4)
        mine = values[2 * rank : 2 * rank + 2].clone().requires_grad_()
        everything = values.clone().requires_grad_()
        (alone(everything) * weights).sum().backward()
        out = together(mine)
        (out * weights[2 * rank : 2 * rank + 2]).sum().backward()
        assert torch.allclose(mine.grad, everything.grad[2 * rank : 2 * rank + 2], atol=1e-5)
        assert torch.allclose(hvd.allreduce(together.weight.grad, op=hvd.Sum), alone.weight.grad, atol=1e-4)
        assert torch.allclose(together.running_var, alone.running_var)
        assert torch.allclose(together.eval()(mine), alone.eval()(mine))

    spmd(body)


def test_objects_and_sparse_tensors():
    def body(rank: int):
        assert hvd.broadcast_object({"rank": rank} if rank == 1 else None, root_rank=1) == {"rank": 1}
        assert hvd.allgather_object("x" * rank) == ["", "x", "xx"]
        sparse = torch.sparse_coo_tensor([[rank, 3]], [1.0, 2.0], (5,))
        total = hvd.sparse_allreduce_async(sparse, "s", hvd.Sum)()
        assert total.to_dense().tolist() == [1.0, 1.0, 1.0, 6.0, 0.0]

    spmd(body)


def test_shutdown_of_one_rank_fails_the_others_by_name():
    told = Latch()

    def body(rank: int):
        hvd.init()
        if rank == 1:
            hvd.allreduce_async(torch.ones(3), name="mine")
            hvd.shutdown()
            with pytest.raises(ValueError, match=r"use hvd\.init"):
                hvd.rank()
            return None
        with pytest.raises(hvd.HorovodInternalError, match="rank 1 has shut down"):
            hvd.allreduce(torch.ones(3), name="theirs")
        # Whoever shuts down is what ranks that have not failed yet are told.
        told.set()
        told.wait(2)
        hvd.shutdown()

    run_ranks(body, 3)


def test_a_rank_that_dies_fails_the_others_by_name():
    waiting, told = Latch(), Latch()

    def body(rank: int):
        hvd.init()
        if rank == 1:
            waiting.wait(2)
            os.kill(os.getpid(), signal.SIGKILL)
        handle = hvd.allreduce_async(torch.ones(3))
        waiting.set()
        with pytest.raises(hvd.HorovodInternalError, match="rank 1"):
            hvd.synchronize(handle)
        told.set()
        told.wait(2)
        hvd.shutdown()
        return "told"

    assert run_ranks(body, 3) == ["told", None, "told"]


def test_who_keeps_others_waiting_is_told():
    def body(rank: int):
        if rank < 2:
            hvd.allreduce_async(torch.ones(1), name="late")
        if rank == 0:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                wait_until(lambda: any("for ranks [2]" in str(each.message) for each in caught))
            told = "; ".join(str(each.message) for each in caught)
            assert "allreduce 'allreduce.late' waits since" in told

    spmd(body, HOROVOD_STALL_CHECK_TIME_SECONDS="0.2")


def test_what_is_left_out_says_so():
    def body(rank: int):
        with pytest.raises(NotImplementedError, match=r"Adasum is not supported; use op=hvd\.Average"):
            hvd.allreduce(torch.ones(3), op=hvd.Adasum)
        with pytest.raises(ValueError, match="has not been added"):
            hvd.allreduce(torch.ones(3), process_set=hvd.ProcessSet([0]))
        with pytest.raises(ValueError, match="supersedes average"):
            hvd.allreduce(torch.ones(3), average=True, op=hvd.Sum)
        with pytest.raises(ValueError, match="must be contiguous"):
            hvd.allreduce_(torch.ones(3, 3).T)
        alone = hvd.add_process_set([1])
        if rank != 1:
            with pytest.raises(ValueError, match=f"rank {rank} is not in process set 1"):
                hvd.allreduce(torch.ones(3), process_set=alone)
        else:
            assert hvd.allreduce(torch.full((2,), 5.0), process_set=alone).tolist() == [5.0, 5.0]
        with pytest.raises(AttributeError, match="has no elastic jobs"):
            _ = hvd.elastic
        assert not hvd.nccl_built() and hvd.gloo_built()

    spmd(body, 2)


def test_a_timeline_is_valid_and_has_both_phases(tmp_path):
    import json

    def body(rank: int):
        hvd.start_timeline(str(tmp_path / "trace"), mark_cycles=True)
        hvd.allreduce(torch.ones(3), name="traced")
        hvd.barrier()
        hvd.stop_timeline()

    spmd(body, 2)
    events = json.loads((tmp_path / "trace").read_text())
    phases = {event.get("name") for event in events}
    assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "CYCLE_START", "start_time_since_epoch_in_micros"} <= phases
    assert any(event.get("args", {}).get("name") == "allreduce.traced" for event in events)


def test_an_old_script_runs_under_torchrun(tmp_path):
    """torchrun holds MASTER_PORT itself: ranks meet through its store."""
    from netsum.launch import Workers

    script = tmp_path / "script.py"
    script.write_text(
        "import netsum.horovod.torch as hvd, torch\n"
        "hvd.init()\n"
        "assert (hvd.size(), hvd.local_size(), hvd.cross_size()) == (2, 2, 1)\n"
        "assert hvd.allreduce(torch.tensor(float(hvd.rank())), op=hvd.Sum).item() == 1.0\n"
        "hvd.shutdown()\n"
        "hvd.init()\n"
        "assert hvd.allgather_object(hvd.rank()) == [0, 1]\n"
        "hvd.barrier()\n"
    )
    workers = Workers([str(script)], 2, {"NETSUM_CONTROLLER": ""}, tmp_path / "log")
    try:
        assert workers.wait() == 0, (tmp_path / "log").read_text()
    finally:
        workers.stop()
