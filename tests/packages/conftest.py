"""What tests of packages share: the release to test, and a clean Debian root. Each skips with the reason."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUITE = "bookworm"
sys.path.insert(0, str(ROOT / "release"))


@pytest.fixture(scope="session")
def release() -> Path:
    """The folder that `make release` fills."""
    folder = Path(os.environ.get("NETSUM_RELEASE", ROOT / "out" / "release"))
    if not (folder / "SHA256SUMS").is_file():
        pytest.skip(f"there is no release in {folder}: make release builds one")
    return folder


@pytest.fixture(scope="session")
def clean_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A minimal Debian in a folder, with /proc; removed at the end."""
    if os.geteuid() != 0:
        pytest.skip("needs root (mmdebstrap, chroot)")
    if shutil.which("mmdebstrap") is None:
        pytest.skip("needs mmdebstrap (make setup-packages)")
    folder = tmp_path_factory.mktemp("root")
    subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", SUITE, str(folder)], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", str(folder / "proc")], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder / "proc")], check=True)
        shutil.rmtree(folder)
