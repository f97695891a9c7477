"""The wheel: maturin's, with the daemons as scripts, the C libraries in `netsum/lib`, and the bill of materials."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from build import PROFILE, ROOT, Built, Processor, with_glibc


def make(processor: Processor, built: Built, bill: Path, version: str, epoch: int, out: Path) -> Path:
    """Write the wheel of a processor into `out`. Raises CalledProcessError."""
    environment = with_glibc(processor, epoch)
    with tempfile.TemporaryDirectory() as folder:
        maturin = ["maturin", "build", "--quiet", "--locked", "--profile", PROFILE]
        platform = ["--target", f"{processor.rust}-unknown-linux-gnu", "--compatibility", "manylinux2014"]
        subprocess.run([*maturin, *platform, "--out", folder], cwd=ROOT, env=environment, check=True)
        (bare,) = Path(folder).glob("*.whl")
        return complete(bare, built, bill, version, environment, out)


def complete(bare: Path, built: Built, bill: Path, version: str, environment: dict[str, str], out: Path) -> Path:
    """Write maturin's wheel with all that it lacks into `out`. environment: with SOURCE_DATE_EPOCH."""
    with tempfile.TemporaryDirectory() as folder:
        _wheel(environment, "unpack", str(bare), "--dest", folder)
        contents = Path(folder) / f"netsum-{version}"
        scripts, libraries = contents / f"netsum-{version}.data" / "scripts", contents / "netsum" / "lib"
        for place, files in ((scripts, built.programs), (libraries, built.libraries)):
            place.mkdir(parents=True)
            for target, source in files.items():
                shutil.copyfile(source, place / target)
                (place / target).chmod(0o755)
        bills = contents / f"netsum-{version}.dist-info" / "sboms"
        shutil.rmtree(bills, ignore_errors=True)
        bills.mkdir()
        shutil.copyfile(bill, bills / bill.name)
        for path in contents.rglob("*"):
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        _wheel(environment, "pack", str(contents), "--dest-dir", str(out))
        return out / bare.name


def _wheel(environment: dict[str, str], *words: str) -> None:
    command = [sys.executable, "-m", "wheel", *words]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
