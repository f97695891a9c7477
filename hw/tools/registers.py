"""Generates RTL constants, the driver's constants and the documentation from hw/rtl/registers.toml.

Without arguments it writes them; with --check it fails if a file is out of date.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "hw" / "rtl" / "registers.toml"
MADE = "made from hw/rtl/registers.toml by hw/tools/registers.py"


def localparams(width: int, values: list[tuple[str, str]]) -> str:
    """A SystemVerilog declaration, a constant a line."""
    lines = ",\n".join(f"    {name} = {value}" for name, value in values)
    # A module that includes a table need not use all of it.
    off, on = (f"/* verilator lint_{state} UNUSEDPARAM */" for state in ("off", "on"))
    return f"// Constants {MADE}.\n{off}\nlocalparam logic [{width - 1}:0]\n{lines};\n{on}\n"


def markdown(table: dict) -> str:
    """The documentation page."""
    text = [
        "# Registers of the accelerator",
        f"<!-- {MADE} -->",
        "AXI-Lite, 20 address bits, whole words of 32 bits. A lease's *place* is the low bits of its job, "
        "exclusive-or'ed with the low bits of its tree in reverse; two leases that want one place exclude each other.",
        "| address | register | access | meaning |",
        "|---|---|---|---|",
    ]
    text += [f"| 0x{r['at']:05x} | {r['name']} | {r['access']} | {r['about']} |" for r in table["register"]]
    text += ["", "## Words of a lease", "", "| word | name | meaning |", "|---|---|---|"]
    text += [f"| {w['word']} | {w['name']} | {w['about']} |" for w in table["lease"]]
    text += ["", "## Outcomes", "", "| counter | name | the switch's reason | meaning |", "|---|---|---|---|"]
    text += [f"| {i} | {o['name']} | {o.get('drop', '')} | {o['about']} |" for i, o in enumerate(table["outcome"])]
    return "\n".join(text[:3]) + "\n\n" + "\n".join(text[3:]) + "\n"


def python(table: dict) -> str:
    """The constants of the Python driver."""
    lines = [f'"""Addresses and outcomes, {MADE}."""', ""]
    lines += [f"{r['name']} = 0x{r['at']:05X}" for r in table["register"]]
    lines += [f"WORD_{w['name'].upper()} = {w['word']}" for w in table["lease"]]
    lines += ["DROPS = {"] + [f'    "{o["name"]}": {quoted(o.get("drop"))},' for o in table["outcome"]] + ["}"]
    lines += ['"""The switch\'s reason for each outcome, in counter order; None if the packet was taken."""']
    return "\n".join(lines) + "\n"


def rust(table: dict) -> str:
    """The constants of netsum-switch's driver."""
    lines = [f"//! Addresses and outcomes, {MADE}.", "", "use netsum_proto::DropReason;", ""]
    for register in table["register"]:
        lines += [f"pub(super) const {register['name']}: u32 = 0x{register['at']:05x};"]
    lines += [""] + [f"pub(super) const WORD_{w['name'].upper()}: u32 = {w['word']};" for w in table["lease"]]
    lines += ["", "/// The switch's reason for each outcome, in counter order; `None` if the packet was taken.",
              f"pub(super) const DROPS: [Option<DropReason>; {len(table['outcome'])}] = ["]  # fmt: skip
    for outcome in table["outcome"]:
        reason = "".join(part.capitalize() for part in outcome.get("drop", "").split("_"))
        reason = {"ReservedField": "Reserved"}.get(reason, reason)
        lines += [f"    Some(DropReason::{reason})," if reason else "    None,"]
    return "\n".join(lines) + "\n];\n"


def quoted(name: str | None) -> str:
    """A Python literal."""
    return "None" if name is None else f'"{name}"'


def files() -> dict[Path, str]:
    """Every generated file, and its text."""
    table = tomllib.loads(TABLE.read_text())
    assert len(table["outcome"]) <= 32, "there are 32 counters"
    registers = [(f"R_{r['name']}", f"20'h{r['at']:05x}") for r in table["register"]]
    outcomes = [(f"O_{o['name'].upper()}", f"5'd{i}") for i, o in enumerate(table["outcome"])]
    return {
        ROOT / "hw" / "rtl" / "registers.svh": localparams(20, registers),
        ROOT / "hw" / "rtl" / "outcomes.svh": localparams(5, outcomes),
        ROOT / "hw" / "tests" / "bench" / "registers.py": python(table),
        ROOT / "crates" / "net" / "src" / "accelerator" / "registers.rs": rust(table),
        ROOT / "docs" / "accelerator-registers.md": markdown(table),
    }


def main() -> int:
    """Writes or checks; the exit status is 1 if a file is stale."""
    stale = [path for path, text in files().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run python hw/tools/registers.py")
        return int(bool(stale))
    for path in stale:
        path.write_text(files()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
