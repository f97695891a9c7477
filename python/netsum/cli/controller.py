"""Which controller a command talks to."""

import os
from pathlib import Path
from typing import Annotated

import typer

from netsum.fabric.description import Description
from netsum.fabric.errors import FabricError
from netsum.fabric.local import LocalFabric

FabricOption = Annotated[Path | None, typer.Option("--fabric", help="fabric file; without it, NETSUM_CONTROLLER")]
"""The option of commands that ask a controller."""


def controller_of(fabric: Path | None) -> tuple[str, Path | None]:
    """The controller's address, and the credentials of a fabric that `netsum fabric up` started, else those of
    NETSUM_CREDENTIALS."""
    folder = os.environ.get("NETSUM_CREDENTIALS")
    if fabric:
        local = LocalFabric(Description.read(fabric))
        folder = local.environment()["NETSUM_CREDENTIALS"] if local.running() else folder
        return local.description.controller, Path(folder) if folder else None
    given = os.environ.get("NETSUM_CONTROLLER")
    if not given:
        raise FabricError("which fabric? pass --fabric FABRIC.toml, or set NETSUM_CONTROLLER=address:port")
    return given, Path(folder) if folder else None
