"""Makes what is published, into a folder: wheels, Debian packages, container images, the chart, the bill of materials.

Run by `make release`. Equal sources give equal bytes, in whatever folder and at whatever time.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import bill
import chart
import debian
import images
import wheels
from build import IMAGES, PROCESSORS, ROOT, compile_all, missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "out/release")
    parser.add_argument("--processor", choices=PROCESSORS, action="append", help="all, unless given")
    arguments = parser.parse_args()
    processors = [PROCESSORS[name] for name in arguments.processor or PROCESSORS]
    needs = missing(processors)
    if needs:
        sys.exit("a release needs more on this machine:\n" + "\n".join(f"  {command}" for command in needs))
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    epoch = _epoch()
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        old.unlink()
    listed = bill.make(processors, version, epoch, out)
    built = {}
    for processor in processors:
        built[processor] = compile_all(processor, epoch)
        wheels.make(processor, built[processor], listed, version, epoch, out)
        for name in debian.PACKAGES:
            debian.make(name, processor, built[processor], listed, version, epoch, out)
    for name in IMAGES:
        images.make(name, built, version, epoch, out)
    chart.make(version, epoch, out)
    made = sorted(out.iterdir())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (out / "SHA256SUMS").write_text("".join(sums))
    for path in made:
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {path}")


def _epoch() -> int:
    """The time that files get: SOURCE_DATE_EPOCH, or that of the last commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    command = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    main()
