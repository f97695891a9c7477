"""Allreduces of torch jobs over tree plans: `NETSUM_PLAN`, the process group's option, `netsum run --plan`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from netsum.plan import Selection, pack, topology
from netsum.torch import Options, stats

NETSUM = Path(sys.executable).with_name("netsum")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """For GPUs 0, 1 and 4 of a DGX-1V, which have no ring: 1 and 4 are reached through 0."""
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(pack(topology(Selection("dgx1v", ["0", "1", "4"], ["nvlink"])))["plan"]))
    return file


def sums_over_the_plan(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        torch.manual_seed(rank)
        tensor = (torch.randn(100_003) * 100).to(dtype)
        everybody = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(everybody, tensor)
        dist.all_reduce(tensor)
        if dtype == torch.int64:
            assert torch.equal(tensor, sum(everybody))
        copies = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(copies, tensor)
        assert all(torch.equal(copy.view(torch.uint8), tensor.view(torch.uint8)) for copy in copies)
    small = torch.ones(3)
    dist.all_reduce(small)
    assert small.tolist() == [size] * 3


def test_a_job_sums_over_its_plan(ranks, plan):
    def body(rank: int, size: int) -> None:
        sums_over_the_plan(rank, size)
        assert stats()["path"] == "plan", stats()

    ranks(body, size=3, NETSUM_PLAN=str(plan))


def test_a_group_has_a_plan_of_its_own(ranks, plan):
    def body(rank: int, size: int) -> None:
        group = dist.new_group([0, 1, 2], pg_options=Options(plan=str(plan)))
        tensor = torch.full((10_000,), rank + 1, dtype=torch.int64)
        dist.all_reduce(tensor, group=group)
        assert bool((tensor == 6).all())

    ranks(body, size=3)


def test_a_plan_for_other_ranks_is_refused(ranks, plan):
    with pytest.raises(AssertionError, match="the plan has 3 ranks, and the group has 2"):
        ranks(lambda rank, size: None, size=2, NETSUM_PLAN=str(plan))


def test_run_takes_its_workers_from_the_plan(plan, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "from netsum.torch import stats\n"
        "dist.init_process_group('netsum')\n"
        "x = torch.arange(50_000) * (dist.get_rank() + 1)\n"
        "dist.all_reduce(x)\n"
        "assert torch.equal(x, torch.arange(50_000) * 6) and stats()['path'] == 'plan'\n"
        "dist.destroy_process_group()\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "NETSUM_CONTROLLER"}
    command = [NETSUM, "run", "--plan", plan, "--topology", "dgx1v", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    wrong = subprocess.run([NETSUM, "run", "-n", "4", "--plan", plan, script], capture_output=True, text=True)
    assert wrong.returncode == 1 and "has 3 ranks, but -n is 4" in wrong.stderr.replace("\n", " ")


@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="needs a CUDA device")
def test_buffers_on_a_gpu_go_through_pinned_memory(ranks, plan):
    """The trees are the same; netsum sums host memory, so GPU buffers are staged."""

    def body(rank: int, size: int) -> None:
        torch.manual_seed(rank)
        gradient = torch.randint(-1000, 1000, (1_000_003,), device="cuda").float()
        staged = torch.empty(gradient.shape, dtype=gradient.dtype, pin_memory=True)
        staged.copy_(gradient, non_blocking=True)
        torch.cuda.synchronize()
        dist.all_reduce(staged)
        gradient.copy_(staged, non_blocking=True)
        torch.cuda.synchronize()
        expected = torch.zeros_like(gradient)
        for other in range(size):
            torch.manual_seed(other)
            expected += torch.randint(-1000, 1000, (1_000_003,), device="cuda").float()
        assert torch.equal(gradient, expected)

    ranks(body, size=3, NETSUM_PLAN=str(plan))
