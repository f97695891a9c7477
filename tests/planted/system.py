"""Inserts bugs in controller, hand-over, switch and worker, and checks that the simulation detects each.

    python tests/planted/system.py [--seeds N] [--only PART-OF-A-NAME ...]

Works on a copy of the crates. All bugs are compiled into one `netsum-simulate`, each enabled by an environment
variable, so the copy is built once. A bug is detected if some seed of 1..N shows a violation that the same seed does
not show without a bug. Exit code 1 if a bug is not detected.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
# Dependencies are built once for both; only the crates of the workspace are built again.
TARGET = REPOSITORY / "target"
# Seeds per run of the program; results are compared between runs.
STEP = 50
SWITCH = """

/// Whether bug `number` is planted.
#[allow(missing_docs)]
pub fn planted(number: usize) -> bool {
    static PLANTED: std::sync::LazyLock<Option<usize>> =
        std::sync::LazyLock::new(|| std::env::var("NETSUM_PLANTED").ok()?.parse().ok());
    *PLANTED == Some(number)
}
"""


def main() -> int:
    """Build the copy, then search for each bug."""
    bugs = json.loads((pathlib.Path(__file__).parent / "system.json").read_text())
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1000, help="the most seeds for each bug")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="bugs whose names contain one of these")
    arguments = parser.parse_args()
    chosen = [i for i, bug in enumerate(bugs) if not arguments.only or any(o in bug["what"] for o in arguments.only)]
    with tempfile.TemporaryDirectory() as name:
        program = build(pathlib.Path(name), bugs)
        clean: dict[int, set[tuple[int, str]]] = {}
        missed = []
        for number in chosen:
            found = look_for(program, number, arguments.seeds, clean)
            missed += [] if found else [bugs[number]["what"]]
            print(f"{found or 'MISSED':60}  {bugs[number]['part']}: {bugs[number]['what']}", flush=True)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} planted bugs were found")
    return 1 if missed else 0


def build(folder: pathlib.Path, bugs: list[dict]) -> pathlib.Path:
    """The program with all bugs."""
    for name in ("Cargo.toml", "Cargo.lock"):
        shutil.copy2(REPOSITORY / name, folder)
    shutil.copytree(REPOSITORY / "crates", folder / "crates")
    for number, bug in enumerate(bugs):
        path = folder / bug["file"]
        text = path.read_text()
        if text.count(bug["find"]) != 1:
            sys.exit(f"{bug['what']}: {bug['file']} has the text {text.count(bug['find'])} times; change the bug too")
        planted = bug["replace"].replace("$PLANTED", f"netsum_wire::planted({number})")
        if "/wire/" in bug["file"]:
            planted = planted.replace("netsum_wire::", "crate::")
        path.write_text(text.replace(bug["find"], planted))
    with (folder / "crates" / "wire" / "src" / "lib.rs").open("a") as wire:
        wire.write(SWITCH)
    environment = os.environ | {"CARGO_TARGET_DIR": str(TARGET)}
    command = ["cargo", "build", "--release", "--quiet", "-p", "netsum-simulate"]
    subprocess.run(command, cwd=folder, env=environment, check=True)
    return pathlib.Path(shutil.copy2(TARGET / "release" / "netsum-simulate", folder / "netsum-simulate"))


def look_for(program: pathlib.Path, number: int, seeds: int, clean: dict[int, set[tuple[int, str]]]) -> str:
    """The first seed that shows a bug, and the violation; empty if none does."""
    for start in range(1, seeds + 1, STEP):
        if start not in clean:
            clean[start] = violations(program, start, None)
        new = sorted(violations(program, start, number) - clean[start])
        if new:
            seed, rule = new[0]
            return f"seed {seed}: {rule}"
    return ""


def violations(program: pathlib.Path, start: int, number: int | None) -> set[tuple[int, str]]:
    """Seeds and their violated rules."""
    environment = os.environ | ({} if number is None else {"NETSUM_PLANTED": str(number)})
    command = [program, "--seeds", f"{start}..{start + STEP - 1}", "--json"]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False, text=True)
    found = json.loads(run.stdout)["violations"]
    return {(seed, violation["rule"]) for violation in found for seed in violation["seeds"]}


if __name__ == "__main__":
    sys.exit(main())
