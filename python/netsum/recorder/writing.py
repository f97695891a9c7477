"""Writes the dumps of this process's groups, on request or on SIGUSR1."""

import os
import signal
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netsum import traces
from netsum.diagnosis import stacks
from netsum.report import recording

if TYPE_CHECKING:
    from netsum._core import Group

_cores: weakref.WeakSet[Any] = weakref.WeakSet()


def watch(core: "Group") -> None:
    """Register a `netsum.Group` for `dump`, SIGUSR1, traces and reports, as long as it lives.

    The signal handler is installed only if NETSUM_RECORDER names a folder and no other handler is set; it runs when the
    main thread is in Python or in a call of netsum.
    """
    _cores.add(core)
    stacks.serve()
    traces.follow(core)
    recording.follow(core)
    if not os.environ.get("NETSUM_RECORDER") or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, lambda *_: dump(why="SIGUSR1"))


def closing(core: "Group") -> None:
    """Export and write what is known of a group; to be called before it is closed, because a closed group tells
    nothing."""
    traces.flush()
    recording.finish(core)


def groups() -> "list[Group]":
    """The groups of this process."""
    return list(_cores)


def dump(folder: str | Path | None = None, why: str = "asked for") -> list[Path]:
    """Write the last operations of every group of this process; returns the files.

    folder: NETSUM_RECORDER if None. Closed groups are omitted. Raises ValueError without a folder, NetsumError if it
    cannot be written.
    """
    folder = folder or os.environ.get("NETSUM_RECORDER")
    if not folder:
        raise ValueError("netsum.recorder: name a folder, or set NETSUM_RECORDER")
    return [core.dump(Path(folder), why) for core in list(_cores) if core.recorded() != "{}"]
