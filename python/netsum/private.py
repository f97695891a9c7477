"""Folders and files that their owner alone can read: logs, pids and records of runs are nobody else's business."""

import os
from pathlib import Path
from typing import IO


def make_folder(path: Path) -> None:
    """Make a folder for this user alone, if it does not exist. Folders above it are made as usual."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def open_file(path: Path, mode: str = "wb") -> IO[bytes]:
    """Open a file for writing ("wb") or appending ("ab"); others cannot read it, even if it existed before.

    Raises OSError for a link: in a folder that others can write to, it may lead anywhere.
    """
    how = os.O_APPEND if mode == "ab" else os.O_TRUNC
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | how, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, mode)


def write_text(path: Path, text: str) -> None:
    """As `Path.write_text`, with `open_file`."""
    with open_file(path) as file:
        file.write(text.encode())
