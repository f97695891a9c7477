"""Inserts bugs in crates/proto and in skips, one at a time, and reports which of them the simulator's tests detect.

    python tests/planted/simulator.py [--only NAME ...]

Works on a copy of the sources in a temporary folder; about half a minute per bug on an idle machine. Exit code 1 if one
is not detected. `run.py` inserts bugs for the tests of `proto` itself.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = [word for name in ("aggregation", "faults", "in_network", "repeats", "slots") for word in ("--test", name)]
PANAMA = "crates/proto/src/panama"
ATP = "crates/proto/src/atp"

# Name: file, text, replacement.
MUTANTS = {
    "a duplicate is added again": (
        f"{PANAMA}/tree.rs",
        "Phase::Filling if slot.is_some_and(|s| s.arrived & bit != 0) => {",
        "Phase::Filling if slot.is_some_and(|s| s.arrived & bit != 0 && header.vid.0 % 7 != 3) => {",
    ),
    "a sum is released one child early": (
        f"{PANAMA}/tree.rs",
        "|| arrived < self.lease.needed() ||",
        "|| arrived + u32::from(vid % 64 == 5) < self.lease.needed() ||",
    ),
    "the arriving fragment is not added": (
        f"{PANAMA}/tree.rs",
        "let sum = memory.reduce(&header, stored, arriving).ok_or(DropReason::NoMemory)?;",
        "let arriving = if vid % 64 == 9 { None } else { arriving };\n"
        "        let sum = memory.reduce(&header, stored, arriving).ok_or(DropReason::NoMemory)?;",
    ),
    "port buffers are not freed": (
        f"{PANAMA}/tree.rs",
        "buffers.iter_mut().filter_map(Option::take).for_each(|b| memory.free(b));",
        "buffers.iter_mut().skip(1).filter_map(Option::take).for_each(|b| memory.free(b));",
    ),
    "retained sums are given back too early": (
        f"{PANAMA}/tree.rs",
        "let keep = u32::from(self.kept_sums());",
        "let keep = 0;",
    ),
    "the last child is left out of the result": (
        f"{PANAMA}/tree/scoped.rs",
        "for i in 0..self.lease.children.len() {\n            let child = &self.lease.children[i];",
        "for i in self.lease.children.len() / 2..self.lease.children.len() {\n"
        "            let child = &self.lease.children[i];",
    ),
    "marks are forgotten on the way up": (
        f"{PANAMA}/tree.rs",
        "slot.marks |= header.marks | branch;",
        "slot.marks |= header.marks & branch;",
    ),
    "a window is never cut": (
        "crates/proto/src/congestion/dctcp.rs",
        "self.window = (self.window * (1.0 - self.alpha / 2.0)).max(1.0);",
        "self.window = self.window.max(1.0);",
    ),
    "every window is one fragment too many": (
        "crates/proto/src/flow.rs",
        "if self.flight.in_flight() >= window {",
        "if self.flight.in_flight() > window {",
    ),
    "fragments skip a tree": (
        f"{PANAMA}/worker.rs",
        "self.turn = (self.turn + 1) % self.trees.len();",
        "self.turn = 0;",
    ),
    "a hole is never sent again": (
        "crates/proto/src/flight.rs",
        "self.again.push_back(self.examined);\n                found += 1;",
        "found += 1;",
    ),
    "a time-out does nothing": (
        "crates/proto/src/flow.rs",
        "if self.flight.probe().is_some() {",
        "if self.backoffs > 1_000 && self.flight.probe().is_some() {",
    ),
    "a result is accepted twice": (
        f"{PANAMA}/worker.rs",
        "if tree.flight.is_received(vid) {\n            return Err(DropReason::Duplicate);",
        "if tree.flight.is_received(vid) && vid % 16 != 5 {\n            return Err(DropReason::Duplicate);",
    ),
    "an epoch begins with what was summed": (
        "crates/proto/src/handover/progress.rs",
        "trees > 0 && self.trees[(g % trees) as usize].has(g / trees)",
        "trees > 0 && self.trees[(g % trees) as usize].has(g / trees) && g % 64 != 1",
    ),
    "a skip forgets what is left of an operation": (
        "crates/proto/src/operations.rs",
        "true => v.number(open, Counted::Left),",
        "true => v.same(*open),",
    ),
    "a skip goes beyond the end of an operation": (
        f"{PANAMA}/worker.rs",
        "end.saturating_sub(tree.flight.next() + 2)",
        "(end + 400).saturating_sub(tree.flight.next())",
    ),
    "a skip forgets that operations of a schedule went on": (
        "crates/sim/src/job/player.rs",
        "self.next += operations;\n        for nodes",
        "for nodes",
    ),
    "a skip takes copies of trees for the trees": (
        "crates/proto/src/visit.rs",
        "self.vids[usize::from(u64::from(tree.0) >= self.trees)]",
        "self.vids[0]",
    ),
    "a skip leaves the numbers of a group's operations": (
        "crates/sim/src/job/mod.rs",
        "u64::from(job.first_step) * u64::from(each)",
        "u64::from(job.first_step) * u64::from(each) * u64::from(lease.is_none())",
    ),
    "a shard of a sum goes to another rank": (
        "crates/proto/src/pattern.rs",
        "if reduces { Parties::ToOne(rank) } else",
        "if reduces { Parties::ToOne(rank ^ 1) } else",
    ),
    "a server asks nobody for what it lacks": (
        f"{ATP}/server.rs",
        "raise_to(&mut tenant.asked_to, tenant.highest);",
        "let _ = (&mut tenant.asked_to, tenant.highest);",
    ),
    "a slot adds a duplicate": (
        f"{ATP}/place.rs",
        "let known = sum.arrived & bit != 0;",
        "let known = sum.arrived & bit != 0 && header.sequence.0 % 7 != 3;",
    ),
    "a slot is complete one child early": (
        f"{ATP}/place.rs",
        "if sum.arrived == everyone {",
        "if sum.arrived == everyone || header.sequence.0 % 64 == 5 && sum.arrived.count_ones() > 1 {",
    ),
    "a result frees no slot": (
        f"{ATP}/switch.rs",
        "if let Some(row) = row.filter(|_| frees)",
        "if let Some(row) = row.filter(|_| frees && header.sequence.0 % 8 != 3)",
    ),
    "the server counts what it has": (
        f"{ATP}/gather.rs",
        "coverage.fresh += (workers & !covered).count_ones();",
        "coverage.fresh += (workers & !(covered & !1)).count_ones();",
    ),
    "a pool forgets the resent result": (
        "crates/proto/src/switchml/switch.rs",
        "if complete && header.resent {",
        "if complete && header.resent && header.round % 8 != 3 {",
    ),
    "a pool adds the first contribution twice": (
        "crates/proto/src/switchml/switch.rs",
        "                    round.values = Some(values);",
        "                    round.values = Some(values);\n"
        "                    if header.round % 16 == 3 { self.values.combine(values, header.arithmetic, payload); }",
    ),
}


def main() -> int:
    """Run all mutants, or one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=MUTANTS, nargs="+", metavar="NAME")
    chosen = {name: MUTANTS[name] for name in parser.parse_args().only or MUTANTS}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("Cargo.toml", "Cargo.lock", "crates", "scenarios"):
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, copy / name)
        if _fails(copy):
            print("the tests fail without a fault planted; mend that first")
            return 1
        survivors = [name for name, mutant in chosen.items() if not _is_found(copy, name, *mutant)]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} planted faults were found")
    return 1 if survivors else 0


def _is_found(copy: Path, name: str, file: str, old: str, new: str) -> bool:
    path = copy / file
    text = path.read_text()
    if text.count(old) != 1:
        sys.exit(f"{name}: {file} has the text {text.count(old)} times: the protocol has changed, change the fault too")
    path.write_text(text.replace(old, new))
    found = _fails(copy)
    path.write_text(text)
    print(f"{'found' if found else 'SURVIVES':8}  {name}", flush=True)
    return found


def _fails(copy: Path) -> bool:
    _cargo(copy, "--no-run", limit_s=None)
    try:
        return _cargo(copy, limit_s=LIMIT_S) != 0
    except subprocess.TimeoutExpired:
        return True


def _cargo(copy: Path, *more: str, limit_s: float | None) -> int:
    command = ["cargo", "test", "--release", "--quiet", "-p", "netsum-sim", *TESTS, *more]
    environment = os.environ | {"CARGO_TARGET_DIR": str(ROOT / "target" / "planted-simulator"), "RUST_BACKTRACE": "0"}
    # In its own session, so that a hanging test ends with cargo.
    with subprocess.Popen(
        command, cwd=copy, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as tests:
        try:
            _, errors = tests.communicate(timeout=limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(tests.pid, signal.SIGKILL)
    if b"could not compile" in errors:
        sys.exit(errors.decode()[-3000:])
    return tests.returncode


# A bug may prevent a job from ending; the tests normally take seconds.
LIMIT_S = 300

if __name__ == "__main__":
    sys.exit(main())
