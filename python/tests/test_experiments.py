"""Experiments leave claims and a picture. The quick ones run here; the others by `make fig`."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


# The last: claims that do not hold, as stated in the experiment's README.
@pytest.mark.parametrize(("name", "claims", "missed"), [("ntt_examples", 5, 0), ("panama_table2", 6, 0)])
def test_an_experiment_leaves_claims_and_a_figure(tmp_path, name, claims, missed):
    command = [sys.executable, EXPERIMENTS / name / "run.py", "--out", tmp_path / name]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / name / "result.json").read_text())
    assert len(result["claims"]) >= claims
    for claim in result["claims"]:
        assert set(claim) == {"claim", "paper", "ours", "holds", "why", "samples"}, claim
    assert sum(not claim["holds"] for claim in result["claims"]) <= missed, result["claims"]
    ElementTree.parse(tmp_path / name / "figure.svg")


def test_every_experiment_is_described_and_listed():
    listed = (EXPERIMENTS / "README.md").read_text()
    for run in EXPERIMENTS.glob("*/run.py"):
        assert f"make fig FIG={run.parent.name}" in (run.parent / "README.md").read_text()
        assert f"]({run.parent.name})" in listed
