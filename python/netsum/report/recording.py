"""Follows the groups of this process, and writes a file for each if NETSUM_REPORT names a folder."""

import atexit
import json
import os
import re
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netsum import private
from netsum.report.record import GroupRecord, host_costs
from netsum.report.watching import Watch

if TYPE_CHECKING:
    from netsum._core import Group

SETTING = "NETSUM_REPORT"
PERIOD_S, SHORTEST_S = 0.5, 0.02
"""Longest and shortest time between two looks at the recorders, which keep 512 operations."""
SHARE = 128
"""A look is due after so many operations, at the rate of the last ones."""
STOP_S = 2.0
"""So long the end of the program waits for the thread."""
WRITE_S = 30.0
"""So often files are written meanwhile: a killed process leaves the last one."""
_SECRET = "NETSUM_TOKEN"


class GroupFile:
    """One group, and its file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._record = GroupRecord()
        self._watch: Watch | None = None
        self._costs: list[dict[str, Any]] = []
        self._settings = {
            name: value for name, value in os.environ.items() if name.startswith("NETSUM_") and name != _SECRET
        }
        self._written_at = time.monotonic()
        self.ended = False

    @property
    def connected(self) -> bool:
        """Whether the group has been seen connected."""
        return self._record.connected

    def look(self, core: "Group") -> int:
        """Take what has ended since the last look; returns the number of operations."""
        count = self._record.fold(core)
        self._begin_watch()
        if time.monotonic() - self._written_at > WRITE_S:
            self._write()
        return count

    def finish(self, core: "Group") -> None:
        """Take the rest, and write the file for the last time."""
        self.ended = True
        self._record.fold(core)
        self._begin_watch()
        if self._watch is not None:
            self._watch.finish(self._record.last_end_s)
        # What reached the counters meanwhile.
        self._record.fold(core)
        written = self._record.written()
        if written is not None and written["rank"] == 0 and written["failure"] is None:
            self._costs = host_costs(core, written)
        self._write()

    def _begin_watch(self) -> None:
        job = self._record.watched_job
        if self._watch is not None or job is None:
            return
        from netsum.config import Settings

        settings = Settings.from_environment()
        if settings.controller is not None:
            self._watch = Watch(settings.controller, settings.credentials, job)

    def _write(self) -> None:
        self._written_at = time.monotonic()
        written = self._record.written()
        if written is None:
            return
        written["settings"], written["ended"] = self._settings, self.ended
        if written["rank"] == 0:
            written["costs"] = self._costs
            written["controller"] = self._watch.written() if self._watch else None
        group = re.sub(r"[^\w.-]", "-", written["group"])[:64]
        path = self._folder / f"netsum-report-{group}-rank{written['rank']}.json"
        beside = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            private.make_folder(self._folder)
            private.write_text(beside, json.dumps(written))
            os.replace(beside, path)
        except OSError as error:
            warnings.warn(f"netsum: the report of rank {written['rank']} cannot be written: {error}", stacklevel=2)


class Follower:
    """A thread that looks at all groups now and then."""

    def __init__(self) -> None:
        self._files: weakref.WeakKeyDictionary[Any, GroupFile] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._added = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="netsum-report", daemon=True)
        self._thread.start()

    def add(self, core: "Group", folder: Path) -> None:
        """Follow a group as long as it lives."""
        with self._lock:
            self._files[core] = GroupFile(folder)
        self._added.set()

    def finish(self, core: "Group") -> None:
        """Write the file of a group that is about to end."""
        with self._lock:
            file = self._files.get(core)
            if file is not None and not file.ended:
                _guarded(file, lambda: file.finish(core))

    def stop(self) -> None:
        """Write the files of groups that nobody has closed, and end the thread: none may be in the core when the
        interpreter ends."""
        for core in list(self._files):
            self.finish(core)
        self._stopped = True
        self._added.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        period, last = PERIOD_S, time.monotonic()
        while not self._stopped:
            self._added.wait(period)
            self._added.clear()
            with self._lock:
                open_ = [(core, file) for core, file in list(self._files.items()) if not file.ended]
                most = max((_guarded(file, partial(file.look, core)) or 0 for core, file in open_), default=0)
            # The controller's counters are read as soon as a group is connected.
            connecting = any(not file.connected for _, file in open_)
            del open_
            now = time.monotonic()
            rate = most / max(now - last, 1e-6)
            last = now
            period = SHORTEST_S if connecting else min(max(SHARE / rate if rate else PERIOD_S, SHORTEST_S), PERIOD_S)


def _guarded(file: GroupFile, action: Callable[[], int | None]) -> int | None:
    """Do it; if that fails, say so and leave the group alone: a report ends no job."""
    try:
        return action()
    except Exception as error:
        file.ended = True
        warnings.warn(f"netsum: no report is written: {error!r}", stacklevel=2)
        return None


_lock = threading.Lock()
_follower: Follower | None = None


def follow(core: "Group") -> None:
    """Record the operations of a group, if NETSUM_REPORT names a folder."""
    global _follower
    folder = os.environ.get(SETTING, "").strip()
    if not folder:
        return
    with _lock:
        if _follower is None:
            _follower = Follower()
            atexit.register(_stop)
    _follower.add(core, Path(folder))


def finish(core: "Group") -> None:
    """Write the file of a group; to be called before it is closed, because a closed group tells nothing."""
    if _follower is not None:
        _follower.finish(core)


def _stop() -> None:
    if _follower is not None:
        _follower.stop()


def _forget() -> None:
    """A forked process has neither the thread nor the groups."""
    global _follower, _lock
    _follower, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
