"""Jobs that replay traces of PyTorch's profiler, and `netsum predict` for them: real ranks over Gloo, profiled."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from processes import run_ranks

from netsum import sim
from netsum.fabric.reservations import reserved_port
from netsum.sim.errors import SimError
from netsum.sim.files import named
from netsum.sim.predict import predict

pytest.importorskip("torch", reason="needs torch")

RANKS = 3
STEPS = 4
WIDTH = 64
GRADIENTS = 4 * 2 * (WIDTH * WIDTH + WIDTH)
"""Bytes of the gradients of two layers."""
LOSS = 8
COMMAND = "from netsum.cli import main; main()"


def _train(rank: int, port: int, folder: Path) -> list[int]:
    """Steps of DistributedDataParallel, each with a sum of the losses; returns the sizes of the buckets."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
    model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=1e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = schedule(wait=1, warmup=1, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=steps) as profiler:
        for number in range(STEPS + 2):
            optimizer.zero_grad()
            loss = model(torch.randn(8, WIDTH)).square().mean()
            loss.backward()
            dist.all_reduce(loss.detach().to(torch.float64))
            optimizer.step()
            if number == STEPS + 1:
                # Gloo's threads note the ends of operations a little later than the ranks go on.
                time.sleep(0.3)
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))
    dist.destroy_process_group()
    return [int(size) for size in model._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """The folder of the traces, and the sizes of all operations of a step."""
    folder = tmp_path_factory.mktemp("traces")
    with reserved_port() as port:
        sizes = run_ranks(lambda rank: _train(rank, port, folder), RANKS)[0]
    assert sum(sizes) == GRADIENTS and len(sizes) > 1
    return folder, [*sizes, LOSS]


def _events(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def _carried(replay: dict[str, Any], out: Path) -> list[int]:
    """Bytes of the data that each link carries."""
    config = {
        "duration": "100s",
        "stop_with_jobs": True,
        "fabric": {"kind": "single-switch", "hosts": RANKS},
        "scheme": {"kind": "ring"},
        "tcp": {"ack_bytes": 0},
        "jobs": [{"replay": replay}],
    }
    return [row["carried_bytes"] for row in sim.run(config, out).rows("links")]


def test_a_profile_has_the_operations_that_were_trained(trained: tuple[Path, list[int]], tmp_path: Path) -> None:
    folder, sizes = trained
    found = predict(folder, {"kind": "single-switch", "hosts": RANKS})
    assert (found.ranks, found.steps, found.operations) == (RANKS, STEPS, len(sizes))
    # The same operations, written down.
    recording = tmp_path / "recording"
    recording.mkdir()
    operations = [
        {
            "number": number,
            "call": f"allreduce float32[{size // 4}] sum",
            "called_unix_s": 100.0 + number,
            "seconds": 0.5,
            "error": None,
            "bytes": size,
        }
        for number, size in enumerate(sizes * STEPS)
    ]
    for rank in range(RANKS):
        dumped = {"format": 1, "group": "g", "rank": rank, "size": RANKS, "operations": operations}
        (recording / f"netsum-g-rank{rank}.json").write_text(json.dumps(dumped))
    profiled = _carried({"format": "pytorch", "path": str(folder)}, tmp_path / "profiled")
    assert profiled == _carried({"format": "recorder", "path": str(recording)}, tmp_path / "recorded")
    # A sweep runs again if a trace changes.
    assert [path.name for path in named({"path": str(folder)})] == [f"rank{rank}.json" for rank in range(RANKS)]


def test_computing_is_within_the_time_of_the_trace(trained: tuple[Path, list[int]]) -> None:
    folder, _ = trained
    found = predict(folder, {"kind": "single-switch", "hosts": RANKS}, scheme="panama")
    steps, computing = [], []
    for path in folder.iterdir():
        events = _events(path)
        steps += [event for event in events if event["name"].startswith("ProfilerStep#")]
        computing.append(sum(event["dur"] for event in events if event["name"] in ("aten::addmm", "aten::mm")))
    span_s = (max(step["ts"] + step["dur"] for step in steps) - min(step["ts"] for step in steps)) * 1e-6
    # Nothing depends on what came later: if communication took no time, no path would be longer than the recorded time.
    # Times in files are rounded.
    assert 0 < max(computing) * 1e-6 <= found.computing_s * STEPS <= span_s * 1.0001
    assert found.computing_s <= found.predicted_s
    assert found.recorded_s * STEPS <= span_s


def test_the_command_reads_traces(trained: tuple[Path, list[int]], tmp_path: Path) -> None:
    folder, sizes = trained
    host = '[[host]]\nname = "h{0}"\naddress = "10.0.0.{0}"\n[[link]]\nends = ["h{0}", "s"]\nrate = "10Gbit/s"\n'
    switch = 'name = "lab"\n[[switch]]\nname = "s"\naddress = "10.0.1.1:5000"\nmemory = "64MiB"\n'
    fabric = tmp_path / "fabric.toml"
    fabric.write_text(switch + "".join(host.format(rank) for rank in range(RANKS)))
    command = [sys.executable, "-c", COMMAND, "predict", str(folder), str(fabric), "--scheme", "ring"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert f"{RANKS} ranks, {STEPS} steps of {len(sizes)} operations replayed" in ended.stdout


def test_traces_without_steps_are_refused(tmp_path: Path) -> None:
    fabric = {"kind": "single-switch", "hosts": 2}

    def write(rank: int, steps: int) -> None:
        step = {"ph": "X", "cat": "user_annotation", "ts": 1.0, "dur": 2.0}
        events = [{**step, "name": f"ProfilerStep#{number}"} for number in range(steps)]
        (tmp_path / f"{rank}.json").write_text(json.dumps({"traceEvents": events}))

    write(0, 0)
    with pytest.raises(SimError, match=r"0\.json: no steps of the profiler"):
        predict(tmp_path, fabric)
    write(0, 2)
    write(1, 3)
    with pytest.raises(SimError, match=r"1\.json: 3 steps of the profiler, and 2 in .*0\.json"):
        predict(tmp_path, fabric)
    write(1, 2)
    with pytest.raises(SimError, match="has all groups"):
        predict(tmp_path, fabric, group="dp")
    with pytest.raises(SimError, match=r"0\.json: it has no distributedInfo"):
        predict(tmp_path, fabric)
    (tmp_path / "1.json").write_text("[]")
    with pytest.raises(SimError, match=r"1\.json: no trace of PyTorch's profiler"):
        predict(tmp_path, fabric)
