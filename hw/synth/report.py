"""Writes hw/synth/report.md, counts.json and ports.svg: the accelerator's size in all shapes, and its clock.

Shapes: ports x line rate for Xilinx (counts alone: no open tool places these), and one for ECP5 with its clock.
`--only NAME` runs one shape and prints it: "xcup-4x10", "ecp5".
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import synthesis
from synthesis import BUS, PARTS, ROOT

sys.path.insert(0, str(ROOT / "experiments"))
from figure import Chart, page

HERE = Path(__file__).resolve().parent
PORTS = (4, 8, 16, 32, 64)
SLOTS = (8, 16)
"""Of the shapes that are placed and routed."""
VU19P = {"LUT": 4_085_760, "FF": 8_171_520}
PAPER = {"LUT": 0.01, "FF": 0.0026}
"""PANAMA, Table 2: share of a VU19P."""


def measure(families: list[str], clock: bool, kept_only: bool, seeds: int) -> dict:
    """All counts, and the tools' versions; with `kept_only` those of earlier runs."""
    version = synthesis.version()
    counts = {"yosys": version, "shapes": {}}
    for family in families:
        for rate in BUS:
            for ports in PORTS:
                name = f"{family}-{ports}x{rate}"
                try:
                    counts["shapes"][name] = synthesis.parts(family, ports, rate, version, kept_only)
                except synthesis.NotKept as error:
                    print(f"{name}: left out, {error} is not synthesised yet")
                    continue
                print(name, counts["shapes"][name]["all"], flush=True)
    name = "xc7-4x10"
    counts["whole"] = {} if kept_only else {name: synthesis.whole("xc7", 4, 10)}
    if clock:
        counts["ecp5"] = []
        for slots in SLOTS:
            try:
                counts["ecp5"].append(synthesis.ecp5(slots, seeds=range(1, seeds + 1), kept_only=kept_only))
            except synthesis.NotKept:
                print(f"clock with {slots} slots: left out, no seed has been run yet")
    return counts


def row(values) -> str:
    """A line of a table."""
    return "| " + " | ".join(f"{v:,}" if isinstance(v, int) else str(v) for v in values) + " |"


def text(counts: dict) -> str:
    """The report in Markdown."""
    lines = [
        "# Synthesis of the accelerator",
        f"Made by `make synth` (Yosys {counts['yosys']}). 16 leases, 32 slots of 1,408 bytes a port. Each module is "
        "synthesised once per shape and counted as often as it occurs; what is missing below has not been synthesised.",
        "",
        "LUT: functions of up to six inputs, inverters too; each costs one when Yosys maps. Sites: an estimate of what "
        "they take, two functions of five inputs to a site ([sites.py](sites.py)). FF: without those that the output "
        "registers of block memories take ([outreg.py](outreg.py)). LUTRAM: LUTs as memory or shift register.",
        "",
        "## Four ports, 10 Gbit/s, by part (xc7)",
        "",
        row(["part", *synthesis.CLASSES]),
        row(["---"] * (1 + len(synthesis.CLASSES))),
    ]
    parts = counts["shapes"]["xc7-4x10"]
    lines += [row([name, *parts[name].values()]) for name in PARTS]
    lines += [
        row(["**core**: all but the registers", *parts["core"].values()]),
        row(["**all**", *parts["all"].values()]),
    ]
    lines += [row([f"all, in one run ({name})", *found.values()]) for name, found in counts["whole"].items()]
    columns = ["family", "ports", "Gbit/s", "bus", *synthesis.CLASSES, "LUT of a VU19P", "FF of a VU19P", "core's LUT"]
    lines += ["", "## Ports and rates", "", row(columns), row(["---"] * len(columns))]
    for name, found in counts["shapes"].items():
        family, size = name.split("-")
        ports, rate = map(int, size.split("x"))
        shares = [f"{100 * found['all'][key] / VU19P[key]:.2f} %" for key in ("LUT", "FF")]
        lines.append(row([family, ports, rate, BUS[rate], *found["all"].values(), *shares, found["core"]["LUT"]]))
    paper = f"{PAPER['LUT']:.0%} of the LUTs and {PAPER['FF']:.2%} of the flip-flops"
    lines += ["", f"PANAMA, Table 2: {paper} of a VU19P, with adders of the vendor, which may use DSPs.", ""]
    lines += ["![LUTs by ports](ports.svg)"]
    if counts.get("ecp5"):
        lines += [
            "",
            "## Clock",
            "",
            "4 ports, 64 bits, ECP5-85, speed grade 8, placed and routed by nextpnr, MHz:",
            "",
        ]
        seeds = sorted({int(seed) for found in counts["ecp5"] for seed in found["MHz"]})
        columns = ["slots a port", *(f"seed {n}" for n in seeds), "median", "best", "LUT4", "FF", "DP16KD"]
        lines += [row(columns), row(["---"] * len(columns))]
        for found in counts["ecp5"]:
            used = [found[key] for key in ("median", "best", "TRELLIS_COMB", "TRELLIS_FF", "DP16KD")]
            clocks = {int(seed): mhz for seed, mhz in found["MHz"].items()}
            lines.append(row([found["slots"], *(clocks.get(seed, "not run") for seed in seeds), *used]))
    return "\n".join(lines) + "\n"


def curve(counts: dict) -> str:
    """LUTs and flip-flops by ports, a line per rate."""
    family = next(iter(counts["shapes"])).split("-")[0]

    def lines(key: str) -> dict[str, list[tuple[float, float]]]:
        shapes = counts["shapes"]
        found = {rate: [p for p in PORTS if f"{family}-{p}x{rate}" in shapes] for rate in BUS}
        return {
            f"{rate} Gbit/s": [(p, shapes[f"{family}-{p}x{rate}"]["all"][key] / 1000) for p in ports]
            for rate, ports in found.items()
            if ports
        }

    titles = {"LUT": "LUTs", "FF": "flip-flops"}
    charts = [Chart(f"{titles[key]}, {family}", "ports", "thousands", lines(key)) for key in titles]
    return page(charts, 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="one shape")
    parser.add_argument("--families", metavar="NAMES", default="xcup,xc7", help="of the page, comma between them")
    parser.add_argument("--no-clock", action="store_true", help="leave place and route out")
    parser.add_argument("--seeds", type=int, default=5, help="of place and route")
    parser.add_argument("--kept", action="store_true", help="run nothing: only what earlier runs have left")
    arguments = parser.parse_args()
    only = arguments.only
    if only is None:
        found = measure(arguments.families.split(","), not arguments.no_clock, arguments.kept, arguments.seeds)
        (HERE / "counts.json").write_text(json.dumps(found, indent=1) + "\n")
        (HERE / "report.md").write_text(text(found))
        (HERE / "ports.svg").write_text(curve(found))
    elif only == "ecp5":
        for slots in SLOTS:
            print(synthesis.ecp5(slots, seeds=range(1, arguments.seeds + 1)))
    else:
        family, size = only.split("-")
        for part, row_of in synthesis.parts(family, *map(int, size.split("x")), synthesis.version()).items():
            print(part, row_of)
