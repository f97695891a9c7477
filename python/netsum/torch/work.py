"""The return types of collectives: they wait without the interpreter lock, and raise on every path.

`torch.futures.Future.set_exception` is invisible to C++ (torch stores the exception as the *result* and unwraps it
in Python alone), so the future handed out is one whose `then` callback raises: that is a real error to C++.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from netsum.torch.tensors import Staging

# torch passes 0 if the caller gave no timeout.
_NO_TIMEOUT = timedelta(0)


class NetsumWork(c10d.Work):
    """One or more operations of the core that complete together.

    `parts`: works of the core. `staging`: their memory, kept until the last has completed. `result`: the tensors that
    the future yields. The future is created on demand: it costs more than a small operation.
    """

    def __init__(self, parts: list[Any], staging: Staging, result: list[Any]) -> None:
        super().__init__()
        self._parts = parts
        self._staging = staging
        self._result = result
        # Re-entrant: a future of work with no parts completes while it is created.
        self._lock = threading.RLock()
        self._finished = False
        self._future = None
        # While torch profiles: set when the event of this operation has ended, which waiters also wait for.
        self.recorded: threading.Event | None = None

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Block until the operation has completed; returns True, or raises the operation's error.

        `timeout`: the operation's own by default. A wait that times out raises OperationTimeout and leaves the
        operation to its own timeout.
        """
        seconds = timeout.total_seconds() if timeout > _NO_TIMEOUT else None
        for part in self._parts:
            part.wait(seconds)
        self._finish()
        self._staging.follow()
        if self.recorded is not None:
            self.recorded.wait(seconds)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not all(part.done() for part in self._parts):
            return False
        if self._failure() is None:
            self._finish()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._failure() is None

    def exception(self) -> BaseException | None:
        return self._failure() if self.is_completed() else None

    def result(self) -> list[Any]:
        self.wait()
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the result. Its callbacks run on the core's callback threads, never on its progress thread."""
        with self._lock:
            if self._future is None:
                self._future = self._make_future()
        return self._future

    def source_rank(self) -> int:
        return self._source_rank()

    def _source_rank(self) -> int:
        """The rank from which a receive from any source got its message."""
        rank = self._parts[0].source_rank() if self._parts else None
        if rank is None:
            raise RuntimeError("netsum: this work is not a finished receive, so it has no source rank")
        found: int = rank
        return found

    def _make_future(self) -> torch.futures.Future[Any]:
        inner: torch.futures.Future[Any] = torch.futures.Future(devices=self._staging.devices())
        outer = inner.then(lambda done: done.value())

        def complete() -> None:
            try:
                self.wait()
            except BaseException as error:
                inner.set_exception(error)
            else:
                inner.set_result(self._result)

        when_all_done(self._parts, complete)
        return outer

    def _finish(self) -> None:
        if self._finished:
            return
        with self._lock:
            if not self._finished:
                self._staging.finish()
                self._finished = True

    def _failure(self) -> BaseException | None:
        for part in self._parts:
            if part.error() is not None:
                try:
                    part.wait(None)
                except Exception as error:
                    return error
        return None


class EndedWork(NetsumWork):
    """An operation that completed successfully within its call, and needs no lock, no memory and no thread."""

    recorded: threading.Event | None = None
    _parts: list[Any] = []  # noqa: RUF012 (never changed)
    _staging = Staging()
    _future: torch.futures.Future[Any] | None = None

    def __init__(self, result: list[Any]) -> None:
        c10d.Work.__init__(self)
        self._result = result

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        if self.recorded is not None:
            self.recorded.wait()
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        if self._future is None:
            self._future = torch.futures.Future()
            self._future.set_result(self._result)
        return self._future


def when_all_done(parts: list[Any], callback: Callable[[], None]) -> None:
    """Call `callback` once, when every part has completed, from a callback thread of the core (or now, if no parts)."""
    if not parts:
        callback()
        return
    left = len(parts)
    lock = threading.Lock()

    def one_done() -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            callback()

    for part in parts:
        part.on_done(one_done)
