"""Training groups on a real local fabric: switches aggregate, are killed, restart, and every sum stays exact."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from netsum.demo import control_sum
from netsum.fabric.description import Description
from netsum.fabric.local import LocalFabric


def test_switches_add(ranks, fabric):
    def body(rank, size):
        from netsum.torch import stats

        for step in range(10):
            assert control_sum.check(rank, size, step) == 0
        # The counters of the trees are reported shortly after the sums.
        _sum_until(rank, size, lambda: len(stats()["trees"]) == 2)
        found = stats()
        assert found["path"] == "trees" and found["network_operations"] >= 10
        assert all(tree["results"] > 0 for tree in found["trees"])

    ranks(body, 4, **fabric.environment())


@pytest.mark.parametrize("size", [2, 3])
def test_results_have_the_same_bits_on_both_paths(ranks, fabric, size):
    def body(rank, size):
        values = torch.randn(50_000, generator=torch.Generator().manual_seed(rank))
        by_switches, by_hosts = values.clone(), values.clone()
        dist.all_reduce(by_switches)
        dist.all_reduce(by_hosts, group=dist.new_group(list(range(size))))
        assert torch.equal(by_switches.view(torch.int32), by_hosts.view(torch.int32))

    ranks(body, size, **fabric.environment())


def test_switches_add_gradients_of_embeddings(ranks, fabric):
    def body(rank, size):
        from netsum.torch import stats

        torch.manual_seed(1)
        table = torch.nn.Embedding(2000, 64, sparse=True)
        model = torch.nn.parallel.DistributedDataParallel(table)
        # Frequent words are at every rank, as in a text.
        words = [
            torch.randn(800, generator=torch.Generator().manual_seed(r)).abs().mul(300).long() for r in range(size)
        ]
        before = stats()["network_operations"]
        model(words[rank]).sum().backward()
        assert stats()["network_operations"] == before + 1
        counts = torch.zeros(2000)
        for each in words:
            counts += torch.bincount(each, minlength=2000)
        found = table.weight.grad
        assert found.is_sparse and torch.equal(found.to_dense(), (counts / size).unsqueeze(1).expand(-1, 64))

    ranks(body, 4, **fabric.environment())


@pytest.mark.parametrize("switch", ["spine1", "rack0"])
def test_a_killed_switch_costs_a_pause_and_no_sum(ranks, fabric, switch):
    victim = fabric.process(switch)

    def body(rank, size):
        for step in range(200):
            if rank == 0 and step == 50:
                os.kill(victim.pid(), 9)
            assert control_sum.check(rank, size, step) == 0

    ranks(body, 4, **fabric.environment())


def test_a_switch_that_comes_back_is_used_again(ranks, fabric):
    environment = fabric.environment()

    def body(rank, size):
        from netsum.torch import stats

        assert control_sum.check(rank, size, 0) == 0
        if rank == 0:
            fabric.process("spine1").kill()
        _sum_until(rank, size, lambda: len(stats()["trees"]) == 1)
        if rank == 0:
            fabric.daemon("spine1").start(tied=False)
        _sum_until(rank, size, lambda: len(stats()["trees"]) == 2)

    ranks(body, 4, **environment)
    fabric.process("spine1").stop()


def _sum_until(rank: int, size: int, reached, bound_s: float = 200.0) -> None:
    """Exact sums until all ranks have reached a state; fails after `bound_s`."""
    deadline = time.monotonic() + bound_s
    step = 0
    while True:
        assert control_sum.check(rank, size, step) == 0
        waiting = torch.tensor([0 if reached() else 1, int(time.monotonic() > deadline)])
        dist.all_reduce(waiting)
        if waiting[0] == 0:
            return
        assert waiting[1] == 0, f"not reached in {bound_s} s"
        step += 1


def test_the_controller_may_be_away(ranks, fabric):
    def body(rank, size):
        if rank == 0:
            fabric.process("controller").kill()
        for step in range(100):
            assert control_sum.check(rank, size, step) == 0

    ranks(body, 4, **fabric.environment())


def test_run_starts_a_fabric_and_passes_the_exit_code(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os, sys, torch, torch.distributed as dist\n"
        "from netsum.torch import stats\n"
        "dist.init_process_group('netsum')\n"
        "x = torch.ones(100_000)\n"
        "dist.all_reduce(x)\n"
        "if dist.get_rank() == 0:\n"
        "    print(json.dumps([x[0].item(), stats()['path'], sys.argv[1:]]))\n"
        "dist.destroy_process_group()\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    environment.pop("NETSUM_CONTROLLER", None)
    command = [sys.executable, "-c", "from netsum.cli import main; main()", "run", "-n", "3", str(script)]
    for code in (0, 1):
        ended = subprocess.run([*command, str(code)], env=environment, capture_output=True, text=True, timeout=300)
        assert ended.returncode == code, ended.stderr
        assert json.loads(ended.stdout.splitlines()[0]) == [3.0, "trees", [str(code)]]
    assert not LocalFabric(Description.read(next((tmp_path / "state").rglob("fabric.toml")))).running()
