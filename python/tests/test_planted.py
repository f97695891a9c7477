"""The bugs of `tests/planted` match the sources: each replaced text occurs exactly once."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def occurrences(file: str, text: str) -> int:
    path = ROOT / file
    return path.read_text().count(text) if path.exists() else 0


def test_faults_for_the_tests_of_proto_fit() -> None:
    bugs = json.loads((ROOT / "tests/planted/bugs.json").read_text())
    assert [bug["name"] for bug in bugs if occurrences(bug["file"], bug["find"]) != 1] == []


def test_faults_for_the_simulator_fit() -> None:
    spec = importlib.util.spec_from_file_location("simulator", ROOT / "tests/planted/simulator.py")
    assert spec is not None and spec.loader is not None
    simulator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(simulator)
    wrong = [name for name, (file, text, _) in simulator.MUTANTS.items() if occurrences(file, text) != 1]
    assert wrong == []
