"""Finds the daemons' executables."""

import os
import shutil
import sysconfig
from pathlib import Path

import netsum
from netsum.fabric.errors import FabricError

CONTROLLER = "netsum-controller"
SWITCH = "netsum-switch"


def find(name: str) -> Path:
    """The path of a daemon: $NETSUM_BIN, `target/release` of a checkout, where pip puts programs, then PATH.

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
        f"{name} was not found in {looked} or on PATH; netsum's wheel has it, and a checkout after `make build`; "
        f"or set NETSUM_BIN to the folder that holds it"
    )


def _folders() -> list[Path]:
    package = Path(netsum.__file__).resolve().parent
    given = os.environ.get("NETSUM_BIN")
    checkout = package.parents[1]
    return [
        *([Path(given)] if given else []),
        *([checkout / "target" / "release"] if (checkout / "Cargo.toml").is_file() else []),
        Path(sysconfig.get_path("scripts")),
    ]
