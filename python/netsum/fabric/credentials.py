"""Certificates of a local fabric: an authority of its own, and a folder of credentials for each role."""

import time
from collections.abc import Iterable
from pathlib import Path

from netsum import _core

OPERATOR = "operator"
"""The role of commands and jobs on this machine: it may do everything."""
DAYS = 365
ENOUGH_S = 180 * 24 * 3600.0
"""Certificates that end sooner are replaced when the fabric starts."""


def folder_of(fabric: Path, role: str) -> Path:
    """The credentials of a role, such as "switch/rack0", in the folder of a local fabric."""
    return fabric / "credentials" / role


def make(fabric: Path, name: str, roles: Iterable[str]) -> None:
    """Make the authority and the credentials that are missing or end soon in the folder of the fabric `name`.

    Raises CredentialsError, which names the file.
    """
    authority = fabric / "ca"
    _core.ca_init(authority, name)
    for role in roles:
        folder = folder_of(fabric, role)
        if not _is_good(folder, authority):
            _core.ca_issue(authority, role, folder, DAYS)


def _is_good(folder: Path, authority: Path) -> bool:
    try:
        _, end = _core.credentials(folder)
        ours = (folder / "ca.pem").read_bytes() == (authority / "ca.pem").read_bytes()
    except (_core.CredentialsError, OSError):
        return False
    return ours and end - time.time() > ENOUGH_S
