"""`netsum demo --fsdp` in its shortest form: a sharded training through a local fabric and on Gloo."""

import json
import os
import subprocess
import sys


def test_a_sharded_gpt_learns_through_a_fabric_as_on_gloo(tmp_path):
    command = [sys.executable, "-c", "from netsum.cli import main; main()", "demo", "--fsdp", "--epochs", "3"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    ended = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], env=environment, capture_output=True, text=True, timeout=500
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads((tmp_path / "out/result.json").read_text())
    loss = result["held_out_loss"]
    # Sums are added in other orders, and nothing else differs.
    assert abs(loss["netsum"] - loss["gloo"]) < 0.05 and loss["netsum"] < 2.5
    ways = {(each["operation"], each["by"]) for each in result["collectives"]}
    assert ("allreduce", "switches") in ways
    assert {"allgather", "reduce_scatter"} <= {operation for operation, _ in ways}
    assert "collectives of the last steps" in ended.stdout
    assert "FSDP2" in (tmp_path / "out/report.html").read_text()
