"""`netsum plan`: topologies from files and by name, and refusals."""

import json
import subprocess
import sys

import pytest

from netsum.plan import PlanError, Selection, topology


def plan(*arguments: str, code: int = 0) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from netsum.cli import main; main()", "plan", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended


def test_show_a_file_that_the_command_wrote(tmp_path):
    written = plan("show", "dgx1v", "--gpus", "0,1,4", "--links", "nvlink", "--json").stdout
    assert len(json.loads(written)["link"]) == 2
    file = tmp_path / "three.json"
    file.write_text(written)
    assert topology(Selection(str(file))) == json.loads(written)
    assert "3 GPUs, 0 switches, 2 links" in plan("show", str(file)).stdout


@pytest.mark.parametrize(
    ("source", "gpus", "says"),
    [
        ("dgx9", [], "no such machine"),
        ("dgx1v", ["0", "0"], "named twice"),
        ("missing.toml", [], "cannot be read"),
    ],
)
def test_what_cannot_be_planned_for(source, gpus, says):
    with pytest.raises(PlanError, match=says):
        topology(Selection(source, gpus))


def test_the_command_says_why():
    assert "no such machine" in plan("show", "dgx9", code=1).stderr
