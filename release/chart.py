"""The Helm chart as an archive that `helm install` takes, and the plain manifests."""

import gzip
import shutil
from pathlib import Path

from archives import tar
from build import ROOT

CHART = ROOT / "kubernetes" / "netsum"
MANIFESTS = {"netsum": "netsum.yaml", "netsum-definitions": "definitions.yaml"}
"""What a release calls the files of `kubernetes`."""


def make(version: str, epoch: int, out: Path) -> Path:
    """Write the chart and the manifests of `version` into `out`; returns the chart's archive."""
    files = sorted(path for path in CHART.rglob("*") if path.is_file())
    entries = [(f"netsum/{path.relative_to(CHART).as_posix()}", path.read_bytes(), 0o644, 0) for path in files]
    archive = out / f"netsum-chart-{version}.tgz"
    archive.write_bytes(gzip.compress(tar(entries, epoch), mtime=0))
    for name, file in MANIFESTS.items():
        shutil.copyfile(ROOT / "kubernetes" / file, out / f"{name}-{version}.yaml")
    return archive
