"""Groups that shrink and grow: torch's reconfigure contract, deaths, new members, and rejected requests."""

import multiprocessing
import os
import signal
import time
import traceback
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from processes import Latch
from torch.nn.parallel import DistributedDataParallel

import netsum
from netsum.torch.elastic import Members

BOUND_S = 300.0
"""Guards against tests that hang."""


def _process(body, name: int, file: Path, end, environment: dict[str, str]) -> None:
    os.environ.pop("NETSUM_CONTROLLER", None)
    os.environ.update(environment)
    try:
        dist.set_debug_level_from_env()
        store = dist.FileStore(str(file), -1)
        timeout = timedelta(seconds=10)
        own = dist.PrefixStore(f"{name}", store)
        dist.init_process_group("netsum", store=own, rank=0, world_size=1, timeout=timeout, enable_reconfigure=True)
        end.send((name, body(name, store), None))
    except BaseException:
        end.send((name, None, traceback.format_exc()))
    os._exit(0)


def run(body, count: int, tmp_path: Path, **environment: str) -> dict[int, object]:
    """body(name, store) in `count` processes connected by a file only; returns their results, None for dead ones."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    file = tmp_path / "store"
    processes = [
        context.Process(target=_process, args=(body, name, file, sending, environment)) for name in range(count)
    ]
    for process in processes:
        process.start()
    sending.close()
    answers: dict[int, object] = dict.fromkeys(range(count))
    failures, until = [], time.monotonic() + BOUND_S
    try:
        while receiving.poll(max(until - time.monotonic(), 0)):
            name, answer, failure = receiving.recv()
            answers[name] = answer
            failures += [f"process {name}:\n{failure}"] if failure else []
    except EOFError:
        pass
    for process in processes:
        process.kill()
        process.join()
    assert not failures, "\n".join(failures)
    return answers


def _sum(value: float) -> float:
    tensor = torch.tensor([value])
    dist.all_reduce(tensor)
    return tensor.item()


def test_before_the_first_configuration_calls_say_what_to_do(tmp_path):
    def body(name, store):
        assert dist._supports_reconfigure()
        with pytest.raises(netsum.NetsumError, match="_reconfigure"):
            dist.all_reduce(torch.ones(1))
        handle = dist._get_reconfigure_handle()
        with pytest.raises(ValueError, match="not among"):
            dist._reconfigure(1, ["netsum1|127.0.0.1:9|h,1|x"]).wait()
        with pytest.raises(ValueError, match="different"):
            dist._reconfigure(1, [handle, handle]).wait()
        with pytest.raises(ValueError, match="no handle"):
            dist._reconfigure(1, [handle, "gloo"]).wait()
        dist._reconfigure(1, {handle}).wait()
        assert (dist.get_rank(), dist.get_world_size(), _sum(3.0)) == (0, 1, 3.0)
        with pytest.raises(RuntimeError, match="already used"):
            dist._reconfigure(1, [handle]).wait()
        dist.destroy_process_group()

    run(body, 1, tmp_path)


def test_a_member_that_does_not_come_is_named_at_the_timeout(tmp_path):
    told = Latch()

    def body(name, store):
        store.set(f"handle{name}", dist._get_reconfigure_handle())
        handles = [store.get(f"handle{each}").decode() for each in range(3)]
        if name == 2:
            told.wait(2)
            return
        with pytest.raises(netsum.OperationTimeout, match=r"rank 2 \(host .*pid") as error:
            dist._reconfigure(1, handles, timeout=timedelta(seconds=2)).wait()
        told.set()
        assert name == 1 or "ranks [2] of 3 did not come" in str(error.value)
        dist._reconfigure(2, handles[:2]).wait()
        return _sum(name + 1.0)

    assert run(body, 3, tmp_path) == {0: 3.0, 1: 3.0, 2: None}


def test_ranks_of_a_set_are_the_same_everywhere(tmp_path):
    def body(name, store):
        store.set(f"handle{name}", dist._get_reconfigure_handle())
        dist._reconfigure(5, {store.get(f"handle{each}").decode() for each in range(3)}).wait()
        gathered = [None] * 3
        dist.all_gather_object(gathered, (dist.get_rank(), name))
        assert [rank for rank, _ in gathered] == [0, 1, 2]
        dist.barrier()

    run(body, 3, tmp_path)


@pytest.mark.parametrize("shared_memory", ["on", "off"])
def test_training_survives_a_death_and_takes_in_a_newcomer(tmp_path, shared_memory):
    steps, settle_s = 12, 30.0

    def body(name, store):
        members = Members(store, timeout_s=60.0, settle_s=settle_s)
        model = torch.nn.Linear(4, 1)
        torch.nn.init.constant_(model.weight, float(name))
        if name == 3:
            store.wait(["shrunk"], timedelta(seconds=BOUND_S))
        members.enter(3)
        step, pause, sizes = torch.zeros(1), 0.0, set()

        def spread() -> None:
            dist.broadcast(step, group_src=0)
            for parameter in model.parameters():
                dist.broadcast(parameter.data, group_src=0)

        spread()
        while step.item() < steps or dist.get_world_size() < 3:
            if name == 1 and step.item() == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            sizes.add(dist.get_world_size())
            try:
                if members.wanted():
                    members.change()
                    spread()
                    continue
                for parameter in model.parameters():
                    gradient = torch.full_like(parameter, dist.get_rank() + 1.0)
                    dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
                    parameter.data -= 0.1 * gradient
                step += 1
                if dist.get_world_size() == 2:
                    store.set("shrunk", "1")
            except netsum.NetsumError as error:
                assert isinstance(error, netsum.PeerLost), error
                start = time.monotonic()
                members.change(error)
                pause = time.monotonic() - start
                spread()
        dist.barrier()
        dist.destroy_process_group()
        return [p.tolist() for p in model.parameters()], step.item(), pause, sorted(sizes)

    answers = run(body, 4, tmp_path, NETSUM_SHARED_MEMORY=shared_memory)
    assert answers[1] is None
    (weights, step, pause, sizes), newcomer = answers[0], answers[3]
    assert answers[2][0] == weights == newcomer[0]
    assert step >= steps and answers[2][1] == step == newcomer[1]
    # The dead rank was named, so no member waited for it.
    assert sizes == [2, 3] and pause < settle_s


def test_ddp_goes_on_with_the_group_of_another_size(tmp_path):
    def body(name, store):
        members = Members(store, timeout_s=60.0, settle_s=5.0)
        members.enter(3)
        torch.manual_seed(1)
        model = DistributedDataParallel(torch.nn.Linear(4, 2))

        def gradient() -> torch.Tensor:
            model.zero_grad()
            model(torch.full((1, 4), float(name))).sum().backward()
            return model.module.weight.grad.clone()

        assert torch.equal(gradient(), torch.full((2, 4), 1.0))
        if name == 2:
            os._exit(0)
        try:
            gradient()
            raise AssertionError("nobody noticed")
        except RuntimeError:
            members.change(netsum.NetsumError())
        model._update_process_group(dist.group.WORLD)
        assert dist.get_world_size() == 2
        assert torch.equal(gradient(), torch.full((2, 4), 0.5))
        dist.barrier()

    run(body, 3, tmp_path)


def test_what_cannot_change_its_size_is_refused(tmp_path):
    def refused(name, store):
        raise AssertionError("it was made")

    with pytest.raises(AssertionError, match="must be netsum's alone"):
        run(refused, 1, tmp_path, NETSUM_TORCH_SHAPE="backend")


def test_other_groups_say_that_they_keep_their_size(ranks):
    def body(rank, size):
        assert not dist._supports_reconfigure()
        with pytest.raises(RuntimeError, match="enable_reconfigure"):
            dist._get_reconfigure_handle()

    ranks(body, size=1)


def test_in_the_network_every_configuration_is_a_job_with_trees(tmp_path, fabric):
    seen = Latch()

    def body(name, store):
        from netsum.torch import stats

        members = Members(store, timeout_s=60.0, settle_s=5.0)
        members.enter(4)
        jobs = []
        while len(jobs) < 2:
            size = dist.get_world_size()
            try:
                for _ in range(5):
                    values = torch.full((50_000,), float(name))
                    dist.all_reduce(values)
                    if size == 4:
                        assert (values == 6.0).all()
                found = stats()
                assert found["path"] == "trees" and found["network_operations"] >= 5
                jobs.append(found["job"])
                if size == 4:
                    seen.set()
                    seen.wait(4)
                if name == 3:
                    os._exit(0)
                dist.barrier()
            except netsum.NetsumError as error:
                members.change(error)
        assert dist.get_world_size() == 3 and (values == 3.0).all()
        dist.barrier()
        return jobs

    answers = run(body, 4, tmp_path, **fabric.environment(), NETSUM_MIN_BYTES="0")
    assert answers[3] is None
    assert answers[0] == answers[1] == answers[2] and len(set(answers[0])) == 2
