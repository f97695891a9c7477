"""The keys of jobs, as the dissector reads them to verify tags."""

import shutil
import sqlite3
import tempfile
from pathlib import Path

from netsum.fabric.description import Description
from netsum.tools.errors import ToolError

_ATTEMPTS = 20
"""Copies of a store that is being written. A controller writes when jobs and ranks come and go."""


def job_keys(store: Path, description: Description) -> list[str]:
    """A line "job JOB KEY RANKS SWITCH…" for each job with keys in a controller's store, which may be in use.

    From a job's key follow those of its hops, for all ranks and all switches of the fabric. KEY is in hexadecimal, the
    code of the MAC first. Raises ToolError if the store cannot be read.
    """
    names = " ".join(part.name for part in description.aggregators)
    with tempfile.TemporaryDirectory() as folder:
        copy = _copy(store, Path(folder))
        query = "SELECT job, key, size FROM jobs WHERE key IS NOT NULL ORDER BY job"
        try:
            connection = sqlite3.connect(copy)
            rows = connection.execute(query).fetchall()
            connection.close()
        except sqlite3.Error as error:
            raise ToolError(f"{store} is not a controller's store: {error}") from error
    return [f"job {job} {key.hex()} {size} {names}" for job, key, size in rows]


def _copy(store: Path, folder: Path) -> Path:
    """A copy of the store and of its log, which belong together: the controller holds the file itself.

    The folder is this user's alone.
    """
    files = [store, store.with_name(f"{store.name}-wal")]
    for _ in range(_ATTEMPTS):
        try:
            before = [_version(file) for file in files]
            for file, version in zip(files, before, strict=True):
                if version:
                    shutil.copyfile(file, folder / file.name)
            if before[0] and before == [_version(file) for file in files]:
                return folder / store.name
        except OSError as error:
            raise ToolError(f"{store} cannot be read: {error.strerror}; run this as the controller's user") from error
        if not before[0]:
            raise ToolError(f"{store}: no such file; --store names the file that the controller's log names")
    raise ToolError(f"{store} is being written all the time; try again")


def _version(file: Path) -> tuple[int, int] | None:
    """What changes when a file is written; None without a file."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size
