"""Groups that shrink and grow: torch's reconfigure contract (`init_process_group(…, enable_reconfigure=True)`).

A process has one handle for its lifetime: the address where it can host a meeting. To reconfigure, the callers pass the
same handles and a fresh uuid; the first handle's process hosts the meeting, all exchange addresses there and reconnect.
Operations in flight in the old group fail. Neither torch's store nor any process that is not among the handles is
needed.
"""

import hashlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from netsum import NetsumError, OperationTimeout, _core
from netsum.config import Settings
from netsum.recorder import watch

_VERSION = "netsum1"
_RETRY_S = 0.05


class Unconfigured:
    """Placeholder for the core of a group that has not been configured yet."""

    def __getattr__(self, name: str) -> None:
        raise NetsumError(
            "this group was made with enable_reconfigure=True and has no members yet: call "
            "torch.distributed._reconfigure(uuid, handles) first"
        )

    def close(self) -> None:
        """Nothing is open."""

    def abort(self, reason: str) -> None:
        """Nothing is under way."""


class Membership:
    """This process's handle, and creation of groups from handles.

    name: of the group. settings: as for any group; in the network each configuration is a separate job.
    """

    def __init__(self, name: str, settings: Settings) -> None:
        self._name = name
        self._settings = settings
        self._used: set[int] = set()
        # Bound and not listening: the port is reserved, and early connections are refused and retried.
        self._port = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._host = _reachable()
        self._port.bind((self._host, 0))
        self._nonce = secrets.token_hex(8)

    @property
    def handle(self) -> str:
        """Opaque to other processes; names this process in errors."""
        place = f"{socket.gethostname()},{os.getpid()}"
        return "|".join([_VERSION, f"{self._host}:{self._port.getsockname()[1]}", place, self._nonce])

    def configure(self, uuid: int, handles: Collection[str], timeout_s: float) -> Any:
        """(core, rank, size) of a new group of these handles: ranks follow their order; a set is sorted.

        Raises RuntimeError for a reused uuid, ValueError for handles, OperationTimeout with the missing processes.
        """
        members = list(handles) if isinstance(handles, (list, tuple)) else sorted(handles)
        self._check(uuid, members)
        self._used.add(uuid)
        rank, size = members.index(self.handle), len(members)
        options = dict(self._settings.options)
        options.setdefault("rendezvous", _address(members[0]).rpartition(":")[0])
        name, settings = f"{self._name}/{uuid}", self._settings
        core = _core.Group(rank, size, name, settings.controller, settings.host, timeout_s, options)
        own = bytes(core.address())
        core.connect(self._meet(uuid, members, own, timeout_s) if size > 1 else [own])
        watch(core)
        return core, rank, size

    def close(self) -> None:
        self._port.close()

    def _check(self, uuid: int, members: list[str]) -> None:
        if uuid in self._used:
            raise RuntimeError(f"netsum: uuid {uuid} was already used to configure this group; pass a fresh one")
        wrong = [member for member in members if len(member.split("|")) != 4 or not member.startswith(_VERSION)]
        if wrong:
            raise ValueError(f"netsum: {wrong[0]!r} is no handle of this version; all ranks need the same netsum")
        if len(set(members)) != len(members):
            raise ValueError(f"netsum: {len(members)} handles, of which only {len(set(members))} are different")
        if self.handle not in members:
            raise ValueError("netsum: this process's own handle is not among the handles")

    def _meet(self, uuid: int, members: list[str], own: bytes, timeout_s: float) -> list[bytes]:
        rank, size, at = members.index(self.handle), len(members), _address(members[0])
        # A process of another meeting of the same host, earlier or later, is rejected and retries.
        token = hashlib.sha256("\n".join([str(uuid), *members]).encode()).digest()[:16]
        until = time.monotonic() + timeout_s
        credentials = self._settings.credentials
        meeting = _core.Meeting(at, token, timeout_s, credentials) if rank == 0 else None
        try:
            while True:
                try:
                    left_s = max(until - time.monotonic(), _RETRY_S)
                    return _core.meet(at, token, rank, size, own, left_s, credentials)
                except NetsumError as error:
                    if "another token" not in str(error) or time.monotonic() + _RETRY_S > until:
                        raise OperationTimeout(f"{error}; members: {_places(members)}") from error
                time.sleep(_RETRY_S)
        finally:
            del meeting


class Background:
    """One call on a thread of its own, with the interface of a work of the core."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        threading.Thread(target=self._run, args=(call,), name="netsum-reconfigure", daemon=True).start()

    def wait(self, timeout_s: float | None) -> None:
        if not self._ended.wait(timeout_s):
            raise OperationTimeout(f"the group was not reconfigured within {timeout_s} s; it is still under way")
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        return self._ended.is_set()

    def error(self) -> str | None:
        return None if self._error is None else str(self._error)

    def source_rank(self) -> None:
        """No message."""

    def on_done(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self._ended.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            self._error = error
        with self._lock:
            self._ended.set()
        for callback in self._callbacks:
            callback()


def _reachable() -> str:
    """This machine's address as seen by the other processes: of the route to MASTER_ADDR, else the loopback."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((master, 9))
        except OSError:
            return "127.0.0.1"
        found: str = probe.getsockname()[0]
        return found


def _address(handle: str) -> str:
    return handle.split("|")[1]


def _places(members: list[str]) -> str:
    places = (member.split("|")[2].split(",") for member in members)
    return ", ".join(f"rank {rank} (host {host}, pid {pid})" for rank, (host, pid) in enumerate(places))
