"""Files of the recorder from a torch job, read by torch's own analyser."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from processes import Latch

from netsum.recorder import judge, read
from netsum.recorder.torch_format import PREFIX, write


def test_torchs_analyser_reads_our_files_and_finds_the_same_rank(ranks, tmp_path: Path):
    folder, given_up = tmp_path / "recorder", Latch()

    def body(rank, size):
        dist.all_reduce(torch.ones(4))
        dist.barrier()
        if rank == 1:
            given_up.wait(2)
            from netsum.recorder import dump

            dump(folder)
            return
        dist.group.WORLD.set_timeout(timedelta(seconds=2))
        try:
            dist.all_reduce(torch.ones(8), async_op=True).wait()
        except RuntimeError:
            given_up.set()
            return
        raise AssertionError("rank 1 never came, and nobody noticed")

    ranks(body, size=3, NETSUM_RECORDER=str(folder))
    (dumps,) = read(folder).values()
    (finding,) = [finding for finding in judge(dumps) if finding.kind == "stall"]
    assert finding.ranks == [1]
    files = write(dumps, tmp_path / "torch")
    assert [file.name for file in files] == [f"{PREFIX}{rank}" for rank in range(3)]
    code = "from torch.distributed.flight_recorder.fr_trace import main; main()"
    said = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "torch"), "--prefix", PREFIX],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert said.returncode == 0, said.stderr
    told = said.stdout + said.stderr
    assert "all_reduce" in told and "{1}" in told, told
