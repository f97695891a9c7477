"""PANAMA Table 2 (FPGA resources) and the shape of Table 1 (latency): the accelerator's counts, read from hw/synth."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "experiments"))

from figure import Chart, Claim, output_folder, page, write  # noqa: E402

VU19P = {"LUT": 4_085_760, "FF": 8_171_520}
PAPER = {"LUT": 0.01, "FF": 0.0026}
ASKED = {"LUT": 4_000, "FF": 5_000}
"""Targets for the aggregation core with 4 ports of 10 Gbit/s: a tenth of the paper's LUTs."""


def main() -> None:
    """Compares the committed counts with the paper's shares."""
    counts = json.loads((ROOT / "hw" / "synth" / "counts.json").read_text())
    shapes = counts["shapes"]
    family = next(iter(shapes)).split("-")[0]
    sizes = sorted({tuple(map(int, name.split("-")[1].split("x"))) for name in shapes if name.startswith(family)})
    rates = sorted({rate for _, rate in sizes})
    claims = []
    small, core = shapes[f"{family}-4x10"], shapes["xc7-4x10"]["core"]
    for key, word in (("LUT", "LUTs"), ("FF", "flip-flops")):
        share = small["all"][key] / VU19P[key]
        claims.append(Claim(
            f"4 ports of 10 Gbit/s: share of a VU19P's {word}", f"{PAPER[key]:.2%}", f"{share:.3%}",
            share <= PAPER[key], "the paper counts a whole design on a NetFPGA, with adders of the vendor",
        ))  # fmt: skip
        claims.append(Claim(
            f"{word} of the aggregation core (adders, receiving ports, control, release)", f"at most {ASKED[key]:,}",
            core[key], core[key] <= ASKED[key], "asked for, not the paper's; counted for 7-series",
        ))  # fmt: skip
    for rate in rates:
        line = [(ports, shapes[f"{family}-{ports}x{rate}"]["all"]["LUT"]) for ports, r in sizes if r == rate]
        growth = (line[-1][1] / line[0][1]) / (line[-1][0] / line[0][0])
        claims.append(Claim(
            f"{rate} Gbit/s: LUTs grow with the ports, {line[0][0]} to {line[-1][0]}, as fast as the ports", 1.0,
            round(growth, 2), 0.8 <= growth <= 1.25, "a port brings an adder per lane, its memories and its queues",
        ))  # fmt: skip
    most = max(found["all"]["DSP"] for found in shapes.values())
    claims.append(Claim("multipliers (DSP) in any shape", "not said", most, most == 0, "adders are logic"))
    lines = {
        f"{rate} Gbit/s": [(p, shapes[f"{family}-{p}x{rate}"]["all"]["LUT"] / 1000) for p, r in sizes if r == rate]
        for rate in rates
    }
    chart = Chart(f"accelerator, {family}", "ports", "thousand LUTs", lines)
    write(output_folder(Path(__file__).parent.name), claims, page([chart], 1), counts)


if __name__ == "__main__":
    main()
