"""Builds the release again, from a copy of its sources in another folder, and compares the checksums.

The copy shares nothing with this checkout but cargo's downloads. Run by `make test-release TWICE=1`; arguments, such as
`--processor x86_64`, are those of the first release.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from build import ROOT


def main() -> None:
    first = ROOT / "out/release/SHA256SUMS"
    if not first.is_file():
        sys.exit("there is nothing to compare with: make release")
    with tempfile.TemporaryDirectory(prefix="netsum-elsewhere-") as name:
        copy = Path(name) / "elsewhere-of-another-length"
        _copy_sources(copy)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(_epoch())}
        command = [sys.executable, str(copy / "release/release.py"), "--out", str(Path(name) / "out")]
        command += sys.argv[1:]
        subprocess.run(command, cwd=copy, env=environment, check=True, umask=0o077)
        again = dict(_sums(Path(name) / "out/SHA256SUMS"))
    before = dict(_sums(first))
    differing = sorted(file for file in before.keys() | again.keys() if before.get(file) != again.get(file))
    if differing:
        sys.exit(f"not reproducible: {', '.join(differing)}")
    print(f"{len(before)} files are the same, to the bit")


def _epoch() -> int:
    """The time that the release's files have, from its bill of materials: there may have been commits since."""
    bill = json.loads((ROOT / "out/release/netsum.cdx.json").read_text())
    return int(datetime.fromisoformat(bill["metadata"]["timestamp"]).timestamp())


def _copy_sources(target: Path) -> None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def _sums(file: Path) -> list[list[str]]:
    return [line.split()[::-1] for line in file.read_text().splitlines()]


if __name__ == "__main__":
    main()
