"""The units of systemd: valid, and closed to what daemons do not need."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "release/systemd").glob("*.service"))
EXPOSURE_MAX = 2.0
CAPABILITIES = {
    "netsum-controller.service": "",
    "netsum-switch@.service": "CAP_NET_ADMIN",
    "netsum-server@.service": "CAP_NET_ADMIN",
}

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


@pytest.fixture(params=UNITS, ids=lambda unit: unit.name)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit as an operator would start it: a template's instance is called rack0. Programs are there."""
    folder = tmp_path / "units"
    folder.mkdir()
    text = re.sub(r"/usr/bin/netsum-\w+", "/bin/true", request.param.read_text())
    file = folder / request.param.name.replace("@", "@rack0")
    file.write_text(text)
    return file


def analyse(*words: str) -> str:
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True)
    return done.stdout + done.stderr


def test_a_unit_is_valid(unit: Path) -> None:
    complaints = analyse("verify", "--man=no", str(unit)).splitlines()
    assert [line for line in complaints if unit.name in line] == []


def test_a_unit_exposes_little(unit: Path) -> None:
    found = re.search(r"exposure level for \S+: ([0-9.]+)", analyse("security", "--offline=true", str(unit)))
    assert found and float(found[1]) <= EXPOSURE_MAX


def test_the_analysis_tells_an_open_unit(tmp_path: Path) -> None:
    file = tmp_path / "open.service"
    file.write_text("[Service]\nExecStart=/bin/true\n")
    found = re.search(r"exposure level for \S+: ([0-9.]+)", analyse("security", "--offline=true", str(file)))
    assert found and float(found[1]) > EXPOSURE_MAX


@pytest.mark.parametrize("name", CAPABILITIES)
def test_capabilities_are_those_that_the_documents_name(name: str) -> None:
    lines = (ROOT / "release/systemd" / name).read_text().splitlines()
    assert f"CapabilityBoundingSet={CAPABILITIES[name]}" in lines
    assert "DynamicUser=yes" in lines
    assert [unit.name for unit in UNITS] == sorted(CAPABILITIES)
