"""Inserts bugs in copies of the RTL and checks that the benches, or an assertion in the RTL, detect each of them.

    python hw/tests/planted/run.py [NAME...]

Each bug is one replacement in one file (bugs.json). One that no bench detects is a gap in the benches: the program then
exits with 1 and names it. About a minute per bug.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BENCHES = [("bench_vectors", "vectors"), ("bench_cases", "cases"), ("bench_traffic", "traffic")]
PATIENCE_S = 300
"""Processor time for each process of a bench; without a bug none takes a fifth of it."""
PROGRAM = """
import sys
sys.path.insert(0, 'hw/tests')
from runner import simulate
simulate(sys.argv[1], W=64, PORTS=4, SLOTS=64)
"""


def patience() -> None:
    """Limit a bench's processor time, which is independent of the machine's load."""
    resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE_S, PATIENCE_S))


def caught_by(folder: Path, bug: dict) -> str | None:
    """The first bench that fails, "lint" if it does not build, None if none fails."""
    path = folder / "hw" / "rtl" / bug["file"]
    original = path.read_text()
    if original.count(bug["find"]) != 1:
        raise SystemExit(f"{bug['name']}: `{bug['find']}` occurs {original.count(bug['find'])} times in {bug['file']}")
    path.write_text(original.replace(bug["find"], bug["replace"]))
    shutil.rmtree(folder / "out", ignore_errors=True)
    try:
        for bench, name in BENCHES:
            environment = os.environ | {"COCOTB_LOG_LEVEL": "ERROR"}
            command = [sys.executable, "-c", PROGRAM, bench]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment,
                                  preexec_fn=patience)  # fmt: skip
            if "%Error" in done.stdout + done.stderr and "Assertion failed" not in done.stdout + done.stderr:
                raise SystemExit(f"{bug['name']} does not build:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            if done.returncode:
                broken = re.search(r"a_\w+", done.stdout)
                return f"{name}, assertion {broken.group()}" if broken else name
    finally:
        path.write_text(original)
    return None


def main() -> None:
    """All bugs, or the named ones."""
    bugs = json.loads((HERE / "bugs.json").read_text())
    chosen = [bug for bug in bugs if not sys.argv[1:] or bug["name"] in sys.argv[1:]]
    missed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("hw", "vectors"):
            shutil.copytree(ROOT / part, folder / part)
        for bug in chosen:
            how = caught_by(folder, bug)
            print(f"{'caught by ' + how if how else 'MISSED'}: {bug['name']}: {bug['what']}", flush=True)
            if how is None:
                missed.append(bug["name"])
    print(f"{len(chosen) - len(missed)} of {len(chosen)} caught")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
