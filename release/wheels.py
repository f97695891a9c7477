"""The wheel: the Python package with its module, the programs as scripts, the C libraries in `netsum/lib`, and the bill
of materials. maturin writes its metadata alone (`compile_all` says why).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from build import ROOT, Built, Processor, reproducible

SOURCES = ROOT / "python" / "netsum"
MODULE = "_core.abi3.so"
PLATFORM = "manylinux2014"
"""Linux with build.GLIBC or later."""


def make(processor: Processor, built: Built, bill: Path, version: str, epoch: int, out: Path) -> Path:
    """Write the wheel of a processor into `out`. Raises CalledProcessError."""
    environment = reproducible(epoch)
    with tempfile.TemporaryDirectory() as folder:
        contents = Path(folder)
        # Nothing made in the checkout: caches, and the module of `make build`.
        unwanted = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(SOURCES, contents / "netsum", ignore=unwanted)
        _copy(built.module, contents / "netsum" / MODULE)
        for target, source in built.libraries.items():
            _copy(source, contents / "netsum" / "lib" / target)
        for target, source in built.programs.items():
            _copy(source, contents / f"netsum-{version}.data" / "scripts" / target)
        _write_metadata(processor, contents, environment)
        _copy(bill, contents / f"netsum-{version}.dist-info" / "sboms" / bill.name, 0o644)
        for path in contents.rglob("*"):
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        pack = [sys.executable, "-m", "wheel", "pack", str(contents), "--dest-dir", str(out)]
        subprocess.run(pack, env=environment, check=True, stdout=subprocess.DEVNULL)
    (made,) = out.glob(f"netsum-{version}-*_{processor.rust}.whl")
    return made


def _write_metadata(processor: Processor, contents: Path, environment: dict[str, str]) -> None:
    """The folder `dist-info`, from pyproject.toml, for the platform."""
    command = ["maturin", "pep517", "write-dist-info", "--metadata-directory", str(contents)]
    target = ["--target", f"{processor.rust}-unknown-linux-gnu", "--interpreter", sys.executable, "--locked"]
    run = subprocess.run([*command, *target], cwd=ROOT, env=environment, capture_output=True, text=True)
    if run.returncode:
        sys.stderr.write(run.stderr)
        run.check_returncode()
    (file,) = contents.glob("*.dist-info/WHEEL")
    ours = f"-linux_{processor.rust}\n"
    assert file.read_text().count(ours) == 1, file.read_text()
    file.write_text(file.read_text().replace(ours, f"-{PLATFORM}_{processor.rust}\n"))


def _copy(source: Path, target: Path, mode: int = 0o755) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)
