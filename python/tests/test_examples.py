"""The programs of `examples/`: each runs, and prints what its docstring states."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from netsum.fabric import binaries
from netsum.fabric.errors import FabricError

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
LINES_MAX = 60
PROGRAMS = [
    *sorted(p for p in EXAMPLES.iterdir() if p.suffix in (".py", ".c")),
    ROOT / "crates/collective/examples/allreduce.rs",
]
# `cargo test` builds it.
RUST = ROOT / "target/release/examples/allreduce"
NCCL = ROOT / "target/release/libnetsum_nccl.so"


def needs(module: str) -> pytest.MarkDecorator:
    missing = find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"{module} is not installed: make setup or make setup-frameworks")


def daemons() -> pytest.MarkDecorator:
    try:
        binaries.find(binaries.CONTROLLER)
        binaries.find(binaries.SWITCH)
        missing = False
    except FabricError:
        missing = True
    return pytest.mark.skipif(missing, reason="the daemons are not built: make build")


def output(command: list[str], **environment: str) -> str:
    """The command's output; fails with it if the exit code is not 0."""
    settings = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    settings.pop("NETSUM_CONTROLLER", None)
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def netsum(*arguments: str) -> str:
    return output([sys.executable, "-c", "from netsum.cli import main; main()", *arguments])


def losses(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"loss (\d+\.\d+)", text)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_examples_are_short_and_say_what_one_sees(program: Path) -> None:
    text = program.read_text()
    assert len(text.splitlines()) <= LINES_MAX
    assert "You see" in "\n".join(text.splitlines()[:12])
    assert f"({program.name})" in (EXAMPLES / "README.md").read_text() or program.suffix == ".rs"


@pytest.mark.timeout(300)
@daemons()
@needs("torch")
def test_pytorch_ddp() -> None:
    text = netsum("run", "-n", "4", "examples/pytorch_ddp.py")
    assert "identical parameters: True" in text
    found = losses(text)
    assert len(found) == 4
    assert found[-1] < found[0] / 2


@pytest.mark.timeout(300)
@daemons()
@needs("torch")
def test_pytorch_fsdp2() -> None:
    text = netsum("run", "-n", "2", "examples/pytorch_fsdp2.py")
    held = [tuple(map(int, pair)) for pair in re.findall(r"holds (\d+) of (\d+) parameters", text)]
    assert len(held) == 2
    assert sum(part for part, _ in held) == held[0][1]
    before, after = re.search(r"loss (\d+\.\d+) -> (\d+\.\d+)", text).groups()
    assert float(after) < float(before)


@pytest.mark.timeout(300)
@daemons()
@needs("jax")
def test_jax_training() -> None:
    text = netsum("run", "--plain", "-n", "2", "examples/jax_training.py")
    found = losses(text)
    assert len(found) == 3
    assert found[-1] < found[0]
    assert re.search(r"path: \w+", text)


@pytest.mark.timeout(300)
@daemons()
@needs("torch")
def test_horovod_script() -> None:
    found = losses(netsum("run", "--plain", "-n", "2", "examples/horovod_script.py"))
    assert len(found) == 4
    assert found[-1] < found[0]


@pytest.mark.skipif(not NCCL.exists(), reason="no libnetsum_nccl.so: cargo build --release -p netsum-capi")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_nccl_program(tmp_path: Path) -> None:
    program = str(tmp_path / "nccl_program")
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{ROOT}/crates/capi/include", f"-L{NCCL.parent}", "-lnetsum_nccl"]
    output(["cc", "examples/nccl_program.c", "-o", program, *flags])
    text = output([program], LD_LIBRARY_PATH=str(NCCL.parent))
    assert sorted(text.splitlines()) == [f"rank {rank}: 10.0" for rank in range(4)]


@pytest.mark.skipif(
    not RUST.exists(), reason="not built: cargo build --release -p netsum-collective --example allreduce"
)
def test_allreduce_from_rust() -> None:
    assert sorted(output([str(RUST)]).splitlines()) == [f"rank {rank}: 6" for rank in range(4)]


@pytest.mark.timeout(300)
def test_simulate_cluster() -> None:
    try:
        binaries.find("netsum-sim")
    except FabricError:
        pytest.skip("the simulator is not built: make build")
    text = output([sys.executable, "examples/simulate_cluster.py"])
    steps = {name: float(ms) for name, ms in re.findall(r"^(\w+): a step takes (\d+\.\d+) ms", text, flags=re.M)}
    assert steps.keys() == {"panama", "ring"}
    assert steps["panama"] < steps["ring"]


def test_plan_dgx() -> None:
    text = output([sys.executable, "examples/plan_dgx.py"])
    rates = [float(rate) for rate in re.findall(r"^\w+: (\d+\.\d+) GB/s", text, flags=re.M)]
    assert "optimal: True" in text
    assert rates[0] >= rates[1]
    assert re.search(r"^share +\d+(/\d+)? to gpu\d", text, flags=re.M)


@daemons()
def test_write_an_algorithm() -> None:
    text = netsum("run", "--plain", "-n", "4", "examples/write_an_algorithm.py")
    assert "same bits as the library: True" in text


@pytest.mark.timeout(300)
@daemons()
def test_operate_fabric() -> None:
    text = output([sys.executable, "examples/operate_fabric.py"])
    sums = re.findall(r"sum of the last elements: (\d+), trees: (\d+)", text)
    assert len(sums) == 2
    assert sums[0][0] == sums[1][0] == str(sum(range(1, 5)) * ((1 << 18) - 1))
    before, after = re.findall(r"^alive: (.*)$", text, flags=re.M)
    assert set(before.split(", ")) - set(after.split(", ")) == {"spine0"}
