"""Planted faults that tests must find: each replaces text that is in its file, once."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
FILES = sorted((REPOSITORY / "tests/planted").glob("*.json"))
FAULTS = [(file.stem, fault) for file in FILES for fault in json.loads(file.read_text())]

MUTANTS = runpy.run_path(str(REPOSITORY / "tests/planted/simulator.py"))["MUTANTS"]
FAULTS += [("simulator", {"what": what, "file": m[0], "find": m[1], "replace": m[2]}) for what, m in MUTANTS.items()]


@pytest.mark.parametrize(("file", "fault"), FAULTS, ids=[f"{file}: {fault['what']}" for file, fault in FAULTS])
def test_a_planted_fault_has_its_place(file: str, fault: dict[str, str]):
    text = (REPOSITORY / fault["file"]).read_text()
    assert text.count(fault["find"]) == 1, fault["file"]
    assert fault["replace"] != fault["find"]
