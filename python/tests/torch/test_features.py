"""The features of torch that work on netsum, each run by real ranks, with both interfaces of a group to torch.

Features with files of their own: collectives and messages (test_collectives, test_points), DDP with its options and
hooks, FSDP2, tensor parallelism, functional collectives (test_training), names of backends, checks of NaN and of
mismatches (test_shapes), traps and split_group (test_traps), flight recorder, elastic groups, compressed gradients.
"""

import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch._C import _distributed_c10d as c10d
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

STEPS = 3


def small_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def batch(rank: int) -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(rank))


def train(model: nn.Module, rank: int, optimizer: torch.optim.Optimizer | None = None) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch(rank)).pow(2).mean().backward()
        optimizer.step()


def trained_alone(size: int, make=lambda parameters: torch.optim.SGD(parameters, lr=0.1)) -> list[torch.Tensor]:
    """The parameters after the same training in one process."""
    model = small_model()
    optimizer = make(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        sum(model(batch(rank)).pow(2).mean() / size for rank in range(size)).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def near(found, expected, rtol: float = 1e-4) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.detach(), other, rtol=rtol, atol=1e-5)


def whole(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.full_tensor() for parameter in model.parameters()]


# Features for 2 ranks.


def ddp_with_parameters_that_are_not_used(rank, size):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.both, self.one, self.none = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            return self.one(self.both(x)) if rank == 0 else self.both(x)

    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    for _ in range(2):
        model.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
    assert model.module.none.weight.grad is None
    other = [torch.empty(4, 4) for _ in range(size)]
    dist.all_gather(other, model.module.one.weight.grad)
    assert torch.equal(other[0], other[1]) and other[0].abs().sum() > 0


def ddp_compiled(rank, size):
    model = DistributedDataParallel(small_model())
    train(torch.compile(model, backend="aot_eager"), rank)
    near(model.module.parameters(), trained_alone(size))


def collectives_compiled(rank, size):
    def step(x):
        y = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        z = functional.all_gather_tensor(y + rank, 0, dist.group.WORLD)
        return functional.reduce_scatter_tensor(z, "sum", 0, dist.group.WORLD).cos()

    def in_place(x):
        y = x + 1
        dist.all_reduce(y)
        return y * 2

    x = torch.arange(4.0) + rank
    for function in (step, in_place):
        torch.testing.assert_close(torch.compile(function, backend="aot_eager", fullgraph=True)(x), function(x))


def fsdp1(rank, size):
    model = FullyShardedDataParallel(small_model(), device_id=torch.device("cpu"), use_orig_params=True)
    train(model, rank)
    with FullyShardedDataParallel.summon_full_params(model):
        near(model.parameters(), trained_alone(size))


def fsdp2_in_bf16_with_clipping(rank, size):
    model = small_model()
    mesh = init_device_mesh("cpu", (size,))
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(batch(rank)).float().pow(2).mean()
        loss.backward()
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor() > 0
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def dtensor_redistributes(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    x = torch.arange(24.0).view(4, 6)
    rows = distribute_tensor(x, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    assert torch.equal(columns.to_local(), x[:, 3 * rank : 3 * rank + 3])
    assert torch.equal(columns.redistribute(mesh, [Replicate()]).to_local(), x)
    product = distribute_tensor(x, mesh, [Shard(1)]) @ distribute_tensor(x.T.contiguous(), mesh, [Shard(0)])
    assert isinstance(product, DTensor) and torch.equal(product.full_tensor(), x @ x.T)


def zero_redundancy_optimizer(rank, size):
    model = DistributedDataParallel(small_model())
    train(model, rank, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-2))
    near(model.module.parameters(), trained_alone(size, lambda parameters: torch.optim.Adam(parameters, lr=1e-2)))


def zero_redundancy_optimizer_overlapped(rank, size):
    from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step

    model = DistributedDataParallel(small_model(), static_graph=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, overlap_with_ddp=True, parameters_as_bucket_view=True, lr=0.1
    )
    model.register_comm_hook(None, hook_with_zero_step(default_hooks.allreduce_hook, model, optimizer))
    for _ in range(6):
        model(batch(rank)).pow(2).mean().backward()
    mine = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in mine:
        dist.broadcast(parameter, 0)
    near(model.parameters(), mine, rtol=0)


def pipeline(rank, size):
    model = small_model()
    expected = model(batch(0))
    parts = nn.Sequential(*model[:2]) if rank == 0 else nn.Sequential(*model[2:])
    stage = PipelineStage(parts, rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=lambda out, target: (out - target).pow(2).mean())
    if rank == 0:
        schedule.step(batch(0))
    else:
        losses = []
        torch.testing.assert_close(schedule.step(target=torch.zeros(8, 4), losses=losses), expected)
        assert len(losses) == 4
    assert all(parameter.grad is not None for parameter in parts.parameters())


def sharded_checkpoints(rank, size):
    folder = Path(os.environ["CHECKPOINTS"])
    mesh = init_device_mesh("cpu", (size,))

    def sharded(x: torch.Tensor) -> dict:
        return {"x": distribute_tensor(x, mesh, [Shard(0)]), "step": torch.tensor(7)}

    saved = torch.arange(10.0).view(5, 2)
    checkpoint.save(sharded(saved), checkpoint_id=folder / "now")
    checkpoint.async_save(sharded(saved + 1), checkpoint_id=folder / "later").result()
    for name, expected in (("now", saved), ("later", saved + 1)):
        state = sharded(torch.zeros(5, 2))
        checkpoint.load(state, checkpoint_id=folder / name)
        assert torch.equal(state["x"].full_tensor(), expected)


TWO_RANKS = [
    ddp_with_parameters_that_are_not_used,
    ddp_compiled,
    collectives_compiled,
    fsdp1,
    fsdp2_in_bf16_with_clipping,
    dtensor_redistributes,
    zero_redundancy_optimizer,
    zero_redundancy_optimizer_overlapped,
    pipeline,
    sharded_checkpoints,
]


@pytest.mark.parametrize("shape", ["auto", "backend"])
@pytest.mark.parametrize("feature", TWO_RANKS, ids=lambda feature: feature.__name__)
def test_works(ranks, tmp_path, feature, shape):
    ranks(feature, NETSUM_TORCH_SHAPE=shape, CHECKPOINTS=str(tmp_path))


# Features for 4 ranks.


def hsdp(rank, size):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    model = small_model()
    fully_shard(model, mesh=mesh)
    train(model, rank)
    near(whole(model), trained_alone(size))


def hsdp_of_fsdp1(rank, size):
    from torch.distributed.fsdp import ShardingStrategy

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    strategy = ShardingStrategy.HYBRID_SHARD
    device = torch.device("cpu")
    model = FullyShardedDataParallel(
        small_model(), device_mesh=mesh, sharding_strategy=strategy, device_id=device, use_orig_params=True
    )
    train(model, rank)
    with FullyShardedDataParallel.summon_full_params(model):
        near(model.parameters(), trained_alone(size))


def ddp_of_halves(rank, size):
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = DistributedDataParallel(small_model(), process_group=halves[rank // 2])
    train(model, rank % 2)
    near(model.module.parameters(), trained_alone(2))


@pytest.mark.parametrize("shape", ["auto", "backend"])
@pytest.mark.parametrize("feature", [hsdp, hsdp_of_fsdp1, ddp_of_halves], ids=lambda feature: feature.__name__)
def test_works_with_four_ranks(ranks, feature, shape):
    ranks(feature, 4, NETSUM_TORCH_SHAPE=shape)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's inductor needs a C++ compiler")
def test_inductor_compiles_a_model_and_its_collectives(ranks):
    def body(rank, size):
        model = DistributedDataParallel(small_model())
        train(torch.compile(model), rank)
        near(model.module.parameters(), trained_alone(size))

        def function(x):
            return functional.all_reduce(x.sin(), "sum", dist.group.WORLD) * 2

        x = torch.arange(8.0)
        torch.testing.assert_close(torch.compile(function, fullgraph=True)(x), function(x))

    ranks(body, TORCHINDUCTOR_COMPILE_THREADS="1")


# Features that torch rejects or lacks, for this backend or for all: each test fails once torch supports it.


def sync_batch_norm(rank, size):
    layer = nn.SyncBatchNorm(4)
    with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on"):
        layer(torch.randn(2, 4))


def a_device_without_number(rank, size):
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()
    with pytest.raises(ValueError, match="device_id"):
        dist.init_process_group("netsum", store=store, rank=rank, world_size=size, device_id=torch.device("cpu"))


def ddp_hooks_in_cpp(rank, size):
    model = DistributedDataParallel(small_model())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    with pytest.raises(RuntimeError, match="isTensorList"):
        model(batch(rank)).sum().backward()
    os._exit(0)


def torchs_flight_recorder(rank, size):
    dist.all_reduce(torch.ones(4))
    dump = c10d._dump_fr_trace(includeStackTraces=False, backend="netsum")
    states = [entry["state"] for entry in pickle.loads(dump)["entries"]]
    # torch's recorder misses completions of a Python backend, and all operations of a Python group. netsum's does not.
    assert states == (["scheduled"] if os.environ["NETSUM_TORCH_SHAPE"] == "backend" else [])


REFUSED = [sync_batch_norm, a_device_without_number, ddp_hooks_in_cpp, torchs_flight_recorder]


@pytest.mark.parametrize("shape", ["auto", "backend"])
@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.__name__)
def test_torch_refuses(ranks, refused, shape):
    ranks(refused, NETSUM_TORCH_SHAPE=shape, TORCH_FR_BUFFER_SIZE="100")


def test_torchs_holder_of_works_tells_less_than_ours(ranks):
    def body(rank, size):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        work.get_future().wait()
        assert not work.is_completed()
        if rank == 0:
            dist.send(torch.ones(1), 1)
        else:
            with pytest.raises(RuntimeError, match="sourceRank"):
                dist.recv(torch.empty(1))

    ranks(body, NETSUM_TORCH_SHAPE="backend")


# Jobs of several processes.

RESTARTED = """
import os, pathlib, torch, torch.distributed as dist
dist.init_process_group("netsum")
rank, life = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
x = torch.full((1000,), rank + 1.0)
for step in range(20):
    dist.all_reduce(x, dist.ReduceOp.AVG)
    if life < 2 and rank == 1 and step == 10:
        os._exit(3)
assert (x == 1.5).all()
pathlib.Path(os.environ["OUT"], f"{life}-{rank}").touch()
dist.destroy_process_group()
"""


def test_torchrun_starts_all_ranks_again_when_one_dies(tmp_path):
    """Two attempts end by a rank's death; the third must not use their addresses from the store."""
    script = tmp_path / "script.py"
    script.write_text(RESTARTED)
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=2"]
    run += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--monitor-interval=0.1", str(script)]
    environment = os.environ | {"OUT": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment.pop("NETSUM_CONTROLLER", None)
    ended = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert sorted(path.name for path in tmp_path.glob("*-*")) == ["2-0", "2-1"]
    assert re.search(r"netsum.*rank 1|rank 1.*netsum", ended.stderr), "the survivor names who died"


PROGRAM_WHOSE_CALLBACKS_RUN_AT_THE_END = """
import os, sys, time
import torch
import torch.distributed as dist
import netsum.torch

rank = int(sys.argv[2])
dist.init_process_group("netsum", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
dist.all_reduce(torch.ones(4))
if rank == 1:
    os._exit(0)


def late(done):
    for _ in range(50):
        torch.ones(3).sum()
        time.sleep(0.001)
    return done.value()


later = [dist.all_reduce(torch.ones(1000), async_op=True).get_future().then(late) for _ in range(3)]
later[0].wait()
"""


def test_an_error_at_the_end_of_a_program_is_no_crash(tmp_path: Path):
    program = (sys.executable, "-c", PROGRAM_WHOSE_CALLBACKS_RUN_AT_THE_END, str(tmp_path / "meeting"))
    started = [subprocess.Popen([*program, str(rank)], stderr=subprocess.PIPE, text=True) for rank in range(2)]
    said = started[0].communicate(timeout=300)[1]
    started[1].communicate(timeout=300)
    assert started[0].returncode == 1, said
    assert "rank 1" in said, said
