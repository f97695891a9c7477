"""Inserts bugs in copies of `wire` and `proto` and checks that the tests detect each of them.

    python tests/planted/run.py [NAME…]

Each bug is one replacement in one file (bugs.json). A bug that no test detects is a gap in the tests: the program then
exits with 1 and names it. About 20 s per bug.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 600


def copy_of_crates(folder: pathlib.Path) -> None:
    for crate in ("wire", "proto"):
        shutil.copytree(REPOSITORY / "crates" / crate, folder / "crates" / crate)
    shutil.copytree(REPOSITORY / "vectors", folder / "vectors")
    text = (REPOSITORY / "Cargo.toml").read_text()
    (folder / "Cargo.toml").write_text(text)
    shutil.copy(REPOSITORY / "Cargo.lock", folder)


def is_caught(folder: pathlib.Path, bug: dict) -> bool:
    """Whether the tests fail, or hang: what is compiled does not count towards the time."""
    path = folder / bug["file"]
    original = path.read_text()
    if original.count(bug["find"]) != 1:
        raise SystemExit(f"{bug['name']}: `{bug['find']}` occurs {original.count(bug['find'])} times in {bug['file']}")
    path.write_text(original.replace(bug["find"], bug["replace"]))
    command = ["cargo", "test", "--release", "--quiet", "-p", "netsum-wire", "-p", "netsum-proto"]
    environment = os.environ | {
        "CARGO_TARGET_DIR": str(REPOSITORY / "target" / "planted"),
        "PROPTEST_MAX_SHRINK_ITERS": "0",
        "RUST_BACKTRACE": "0",
    }
    unread = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    built = subprocess.run([*command, "--no-run"], cwd=folder, env=environment, capture_output=True, text=True)
    if built.returncode != 0:
        path.write_text(original)
        raise SystemExit(f"{bug['name']} does not compile:\n{built.stderr}")
    # In its own session, so that a hanging test ends with cargo.
    with subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **unread) as tests:
        try:
            tests.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            print(f"        {bug['name']}: ended after {LIMIT_S} s, which a busy machine may need as well", flush=True)
            return True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(tests.pid, signal.SIGKILL)
            path.write_text(original)
    return tests.returncode != 0


def main() -> None:
    bugs = json.loads((pathlib.Path(__file__).parent / "bugs.json").read_text())
    chosen = [b for b in bugs if not sys.argv[1:] or b["name"] in sys.argv[1:]]
    missed = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        copy_of_crates(folder)
        for bug in chosen:
            caught = is_caught(folder, bug)
            missed += [] if caught else [bug["name"]]
            print(f"{'caught' if caught else 'MISSED':6}  {bug['name']}: {bug['what']}", flush=True)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} caught")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
