"""Moves registers that stand behind block memories into the memories' own output registers.

ECP5's and Xilinx' block memories have a register at their output. Vendors' tools use it where the design has a register
there; Yosys leaves it idle. Without it a memory alone takes most of a cycle on ECP5, and each bit costs a flip-flop.

A register moves if every bit of the memory's port that is used goes to one flip-flop each and nowhere else, and these
have the memory's clock, start at 0, are never set or reset, and share one enable or have none. Sources: Lattice
FPGA-TN-02204, memory user guide (REGMODE, OCE); Xilinx UG473, "Optional Output Registers" (DOA_REG, DOB_REG, REGCE).
"""

from __future__ import annotations

import re
from collections import defaultdict

MEMORIES = {
    "DP16KD": {"A": (r"DOA\d+", "CLKA", "OCEA"), "B": (r"DOB\d+", "CLKB", "OCEB")},
    "RAMB18E1": {"A": (r"DOADO|DOPADOP", "CLKARDCLK", "REGCEAREGCE"), "B": (r"DOBDO|DOPBDOP", "CLKBWRCLK", "REGCEB")},
    "RAMB18E2": {"A": (r"DOUTADOUT|DOUTPADOUTP", "CLKARDCLK", "REGCEAREGCE"),
                 "B": (r"DOUTBDOUT|DOUTPBDOUTP", "CLKBWRCLK", "REGCEB")},
}  # fmt: skip
"""By cell and port: names of its outputs, its clock, its output register's enable."""
MEMORIES["RAMB36E1"], MEMORIES["RAMB36E2"] = MEMORIES["RAMB18E1"], MEMORIES["RAMB18E2"]


def absorb(module: dict) -> int:
    """Transform a mapped module of Yosys' JSON; returns the number of flip-flops absorbed by memories."""
    cells = module["cells"]
    readers = defaultdict(list)
    for name, cell in cells.items():
        for pin, bits in cell["connections"].items():
            if cell["port_directions"].get(pin, "input") != "output":
                for bit in bits:
                    readers[bit].append((name, pin))
    for port in module["ports"].values():
        if port["direction"] != "input":
            for bit in port["bits"]:
                readers[bit].append(("", ""))
    moved = 0
    for memory in [cell for cell in cells.values() if cell["type"] in MEMORIES]:
        for port, (outputs, clock, enable) in MEMORIES[memory["type"]].items():
            pins = [pin for pin in memory["connections"] if re.fullmatch(outputs, pin)]
            used = [bit for pin in pins for bit in memory["connections"][pin] if readers[bit]]
            registers = [register(cells, readers[bit], memory["connections"][clock]) for bit in used]
            if not used or None in registers or len({r[1] for r in registers}) > 1:
                continue
            new = {bit: cells[name]["connections"]["Q"][0] for bit, (name, _) in zip(used, registers, strict=True)}
            for pin in pins:
                memory["connections"][pin] = [new.get(bit, bit) for bit in memory["connections"][pin]]
            memory["connections"][enable] = [registers[0][1]]
            memory["port_directions"][enable] = "input"
            ecp5 = memory["type"] == "DP16KD"
            memory["parameters"][f"REGMODE_{port}" if ecp5 else f"DO{port}_REG"] = "OUTREG" if ecp5 else f"{1:032b}"
            for name, _ in registers:
                del cells[name]
            moved += len(registers)
    return moved


def register(cells: dict, readers: list[tuple[str, str]], clock: list) -> tuple[str, int | str] | None:
    """The only flip-flop that reads a net, if a memory with this clock can absorb it: its name and its enable."""
    if len(readers) != 1:
        return None
    name, pin = readers[0]
    cell = cells.get(name, {"type": ""})
    pins = cell.get("connections", {})
    if cell["type"] == "TRELLIS_FF":
        reset = {"REGSET": "RESET", "LSRMUX": "LSR"}
        plain = all(cell["parameters"].get(key, value) == value for key, value in reset.items())
        enables = {"1 ": "1", "CE": pins.get("CE", ["1"])[0]}
        enable = enables.get(cell["parameters"].get("CEMUX", "CE"))
        if pin == "DI" and plain and enable and pins["CLK"] == clock and pins.get("LSR", ["0"]) in (["0"], ["x"]):
            return name, enable
    elif cell["type"] == "FDRE":
        inverted = any(int(cell["parameters"].get(f"IS_{of}_INVERTED", "0"), 2) for of in "CDR")
        starts_at_1 = cell["parameters"].get("INIT", "x") == "1"
        if pin == "D" and not inverted and not starts_at_1 and pins["C"] == clock and pins["R"] == ["0"]:
            return name, pins["CE"][0]
    return None
