"""`netsum demo --fsdp` in its shortest form: a sharded training through a local fabric and on Gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path


def demo(folder: Path, *options: str) -> tuple[dict, str]:
    """The result of a sharded training's demo, and what it printed."""
    command = [sys.executable, "-c", "from netsum.cli import main; main()", "demo", "--fsdp", *options]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    ended = subprocess.run(
        [*command, "--out", str(folder / "out")], env=environment, capture_output=True, text=True, timeout=500
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads((folder / "out/result.json").read_text()), ended.stdout


def test_a_sharded_gpt_learns_through_a_fabric_as_on_gloo(tmp_path):
    result, printed = demo(tmp_path, "--epochs", "3")
    loss = result["held_out_loss"]
    # Sums are added in other orders, and nothing else differs.
    assert abs(loss["netsum"] - loss["gloo"]) < 0.05 and loss["netsum"] < 2.5
    ways = {(each["operation"], each["by"]) for each in result["collectives"]}
    assert ("allreduce", "switches") in ways
    assert {"allgather", "reduce_scatter"} <= {operation for operation, _ in ways}
    assert "collectives of the last steps" in printed
    assert "FSDP2" in (tmp_path / "out/report.html").read_text()


def test_switches_with_slots_do_all_collectives_of_a_sharded_training(tmp_path):
    result, _ = demo(tmp_path, "--protocol", "atp", "--epochs", "3")
    ways = {(each["operation"], each["by"]) for each in result["collectives"]}
    assert {(operation, "switches") for operation in ("allreduce", "allgather", "reduce_scatter")} <= ways, ways
