"""Ray on netsum: groups of `ray.util.collective`, Ray Train with actors that die, sweeps over several nodes."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="no ray; make setup-sim installs it")
pytest.importorskip("pandas", reason="no pandas, which Ray Train needs; make setup-sim installs it")

from ray.cluster_utils import Cluster  # noqa: E402

from netsum import sim  # noqa: E402
from netsum.fabric.local import LocalFabric  # noqa: E402
from netsum.sim.sweep import Sweep  # noqa: E402

BOUND_S = 240.0
HOSTS = 4


@pytest.fixture
def cluster(fabric: LocalFabric, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster with a node of Ray for each of four hosts of the fabric, which its workers take for their machines."""
    for variable, value in {"RAY_USAGE_STATS_ENABLED": "0", **fabric.environment()}.items():
        monkeypatch.setenv(variable, value)
    made = Cluster()
    try:
        for number, host in enumerate(fabric.description.hosts[:HOSTS]):
            # Ray's workers have the environment of their node's raylet.
            monkeypatch.setenv("NETSUM_HOST", host.name)
            made.add_node(num_cpus=1, resources={f"host{number}": 1}, object_store_memory=100 << 20)
        monkeypatch.delenv("NETSUM_HOST")
        ray.init(address=made.address, log_to_driver=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@ray.remote(num_cpus=1)
class Rank:
    """An actor of a group of `ray.util.collective`."""

    def join(self, size: int, rank: int, group: str) -> None:
        from ray.util import collective

        import netsum.ray

        netsum.ray.register()
        netsum.ray.register()
        collective.init_collective_group(size, rank, backend="netsum", group_name=group)

    def all_collectives(self, size: int, rank: int, group: str) -> dict[str, list]:
        from ray.util import collective
        from ray.util.collective.types import ReduceOp

        values = np.arange(8, dtype=np.float32) + rank
        found = {}
        for op in ReduceOp:
            array = values.copy()
            collective.allreduce(array, group, op)
            found[f"allreduce {op.name}"] = array
        array = values.copy()
        collective.reduce(array, dst_rank=1, group_name=group)
        found["reduce"] = array
        array = values.copy()
        collective.broadcast(array, src_rank=2, group_name=group)
        found["broadcast"] = array
        gathered = [np.zeros_like(values) for _ in range(size)]
        collective.allgather(gathered, values, group)
        found["allgather"] = np.concatenate(gathered)
        part = np.zeros(2, np.float32)
        collective.reducescatter(part, [values[2 * i : 2 * i + 2].copy() for i in range(size)], group)
        found["reducescatter"] = part
        if rank == 0:
            collective.send(values, 3, group)
        if rank == 3:
            array = np.zeros_like(values)
            collective.recv(array, 0, group)
            found["recv"] = array
        collective.barrier(group)
        return {name: array.tolist() for name, array in found.items()}

    def large_sum(self, rank: int, group: str) -> tuple[int, int, str]:
        """(wrong elements of a sum, operations of switches, name of the job's group)."""
        from ray.util import collective
        from ray.util.collective import collective as registry

        array = np.arange(200_000, dtype=np.int32) + rank
        collective.allreduce(array, group)
        wrong = np.count_nonzero(array != HOSTS * np.arange(200_000) + sum(range(HOSTS)))
        stats = registry._group_mgr.get_group_by_name(group).communicator.stats()
        return int(wrong), stats["network_operations"], os.environ["NETSUM_HOST"]

    def pid(self) -> int:
        return os.getpid()

    def refused(self, group: str) -> str:
        from ray.util import collective

        try:
            collective.allreduce(np.arange(8)[::2], group)
        except Exception as error:
            return str(error)
        return ""

    def leave(self, group: str) -> None:
        from ray.util import collective

        collective.destroy_collective_group(group)


def test_groups_of_ray_util_collective(cluster: Cluster, fabric: LocalFabric):
    ranks = [
        Rank.options(resources={f"host{number}": 1}).remote()  # type: ignore[attr-defined]
        for number in range(HOSTS)
    ]
    for group in ("first", "second"):
        ray.get([each.join.remote(HOSTS, rank, group) for rank, each in enumerate(ranks)], timeout=BOUND_S)
    found = ray.get([each.all_collectives.remote(HOSTS, rank, "first") for rank, each in enumerate(ranks)])
    values = np.array([np.arange(8) + rank for rank in range(HOSTS)], dtype=np.float32)
    for rank, each in enumerate(found):
        assert each["allreduce SUM"] == values.sum(0).tolist()
        assert each["allreduce PRODUCT"] == values.prod(0).tolist()
        assert each["allreduce MIN"] == values.min(0).tolist()
        assert each["allreduce MAX"] == values.max(0).tolist()
        assert each["reduce"] == (values.sum(0) if rank == 1 else values[rank]).tolist()
        assert each["broadcast"] == values[2].tolist()
        assert each["allgather"] == values.reshape(-1).tolist()
        assert each["reducescatter"] == values.sum(0)[2 * rank : 2 * rank + 2].tolist()
    assert found[3]["recv"] == values[0].tolist()
    sums = ray.get([each.large_sum.remote(rank, "second") for rank, each in enumerate(ranks)])
    assert [(wrong, operations > 0) for wrong, operations, _ in sums] == [(0, True)] * HOSTS
    assert len({host for *_, host in sums}) == HOSTS
    job = ray.get_runtime_context().get_job_id()
    assert {each["name"] for each in fabric.status()["jobs"]} == {f"ray-{job}/first", f"ray-{job}/second"}
    assert "contiguous" in ray.get(ranks[0].refused.remote("first"))
    for group in ("first", "second"):
        ray.get([each.leave.remote(group) for each in ranks])
    _wait_for_free_switches(fabric)


def test_switches_are_free_after_all_actors_were_killed_at_once(cluster: Cluster, fabric: LocalFabric):
    """Nobody of the job is left to say that it is over; the controller sees their connections end."""
    ranks = [
        Rank.options(resources={f"host{number}": 1}, max_restarts=0).remote()  # type: ignore[attr-defined]
        for number in range(HOSTS)
    ]
    ray.get([each.join.remote(HOSTS, rank, "killed") for rank, each in enumerate(ranks)], timeout=BOUND_S)
    sums = ray.get([each.large_sum.remote(rank, "killed") for rank, each in enumerate(ranks)], timeout=BOUND_S)
    assert all(operations > 0 for _, operations, _ in sums)
    assert any(switch["memory_leased_bytes"] for switch in fabric.status()["switches"])
    pids = ray.get([each.pid.remote() for each in ranks])
    began = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    _wait_for_free_switches(fabric, 0.02)
    print(f"memory of switches was free {time.monotonic() - began:.2f} s after SIGKILL of all ranks")
    assert {each["state"] for each in fabric.status()["jobs"]} == {"abandoned"}


def test_ray_train_goes_on_after_an_actor_has_died(cluster: Cluster, fabric: LocalFabric, tmp_path: Path):
    """One of four workers is killed in the middle: Ray starts the group anew from its checkpoint, and the parameters
    are what they would be if nobody had died."""
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    elements, steps, dies_at = 40_000, 6, 3

    def gradient(step: int, rank: int) -> np.ndarray:
        # Whole numbers: their sums do not depend on the order of additions, which follows the ranks' places.
        return np.random.default_rng([step, rank]).integers(-100, 100, elements).astype(np.float32)

    def train(config: dict) -> None:
        import tempfile

        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        from netsum.torch import stats

        rank, folder = dist.get_rank(), Path(config["folder"])
        linear = torch.nn.Module()
        linear.register_parameter("value", torch.nn.Parameter(torch.zeros(elements)))
        linear.forward = lambda inputs: (inputs * linear.value).sum()
        model = DistributedDataParallel(linear)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        begin, checkpoint = 0, ray.train.get_checkpoint()
        if checkpoint:
            with checkpoint.as_directory() as kept:
                state = torch.load(Path(kept) / "state.pt")
            model.load_state_dict(state["model"])
            begin = state["step"]
        for step in range(begin, steps):
            if rank == 1 and step == dies_at and not (folder / "died").exists():
                (folder / "died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(torch.from_numpy(gradient(step, rank))).backward()
            optimizer.step()
            with tempfile.TemporaryDirectory() as kept:
                torch.save({"model": model.state_dict(), "step": step + 1}, Path(kept) / "state.pt")
                ray.train.report({"step": step}, checkpoint=ray.train.Checkpoint.from_directory(kept))
        found = stats()
        report = {"path": found["path"], "sums": found["network_operations"], "begin": begin}
        (folder / f"{rank}.json").write_text(json.dumps(report))
        np.save(folder / f"{rank}.npy", linear.value.detach().numpy())

    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": str(tmp_path)},
        torch_config=TorchConfig(backend="netsum"),
        scaling_config=ScalingConfig(num_workers=HOSTS),
        run_config=RunConfig(
            storage_path=str(tmp_path / "storage"),
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    )
    trainer.fit()
    assert (tmp_path / "died").exists()
    expected = -sum(gradient(step, rank) for step in range(steps) for rank in range(HOSTS)) / HOSTS
    for rank in range(HOSTS):
        report = json.loads((tmp_path / f"{rank}.json").read_text())
        # The last checkpoint before the death may not have been registered.
        assert report["path"] == "trees" and report["sums"] > 0 and report["begin"] <= dies_at
        assert np.array_equal(np.load(tmp_path / f"{rank}.npy"), expected)
    job = ray.get_runtime_context().get_job_id()
    names = [each["name"] for each in fabric.status()["jobs"]]
    assert names and all(name.startswith(f"ray-{job}/") for name in names)
    _wait_for_free_switches(fabric)


def test_a_sweep_on_several_nodes(cluster: Cluster, tmp_path: Path):
    """Nodes with one processor each share the runs of a sweep; results are those of a sweep on this machine."""
    plan = Sweep(
        {
            "duration": "1ms",
            "drain": "1s",
            "fabric": {"kind": "fat-tree", "k": 4},
            "flows": [{"kind": "poisson", "load": 0.3, "sizes": "web-search"}],
            "jobs": [{"compute": "50us", "bytes": 200_000, "workers": 6, "steps": 3}],
        },
        {"seed": list(range(8))},
    )
    there, here = sim.sweep(plan, tmp_path / "ray", engine="ray"), sim.sweep(plan, tmp_path / "local")
    assert len(plan.runs()) == 8
    for name in plan.runs():
        assert there[name].summary == here[name].summary


def _wait_for_free_switches(fabric: LocalFabric, look_s: float = 0.2) -> None:
    """All jobs are over, and no switch keeps memory for one."""
    deadline = time.monotonic() + BOUND_S
    while True:
        status = fabric.status()
        if all(job["state"] in ("ended", "abandoned") for job in status["jobs"]) and not any(
            switch["memory_reserved_bytes"] for switch in status["switches"]
        ):
            return
        assert time.monotonic() < deadline, f"memory is still reserved: {status['switches']}"
        time.sleep(look_s)
