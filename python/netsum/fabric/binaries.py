"""Finds the daemons' executables."""

import os
import shutil
from pathlib import Path

import netsum
from netsum.fabric.errors import FabricError

CONTROLLER = "netsum-controller"
SWITCH = "netsum-switch"


def find(name: str) -> Path:
    """The path of a daemon: $NETSUM_BIN, the package's `bin/`, `target/release` of the checkout, then PATH.

    Raises FabricError, which lists the locations that were tried.
    """
    folders = _folders()
    for folder in folders:
        candidate = folder / name
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    on_path = shutil.which(name)
    if on_path:
        return Path(on_path)
    looked = ", ".join(str(folder) for folder in folders)
    raise FabricError(
        f"{name} was not found in {looked} or on PATH; build it by `cargo build --release`, or set NETSUM_BIN to the "
        f"folder that holds it"
    )


def _folders() -> list[Path]:
    package = Path(netsum.__file__).resolve().parent
    given = os.environ.get("NETSUM_BIN")
    checkout = package.parents[1]
    return [
        *([Path(given)] if given else []),
        package / "bin",
        *([checkout / "target" / "release"] if (checkout / "Cargo.toml").is_file() else []),
    ]
