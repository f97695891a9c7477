"""Tensors on an accelerator: staged through pinned host memory, copied on its streams.

A tensor is copied to the host on a copy stream that first waits for the caller's current stream; the operation starts
once the copy has completed, and the caller continues meanwhile. Results are copied back on the current stream of the
waiter, so that work queued there afterwards sees them. All through torch's generic interface to accelerators: CUDA, XPU
and others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as WaitTimeout
from typing import TYPE_CHECKING, Any

import torch

from netsum import OperationTimeout

if TYPE_CHECKING:
    from netsum._core import Group

_copy_streams: dict[torch.device, torch.Stream] = {}
_lock = threading.Lock()


def accelerator() -> str | None:
    """The kind of accelerator this process has ("cuda", …), or None."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return None if found is None else found.type


def is_staged(device: torch.device) -> bool:
    """Whether tensors of `device` can be staged: it is the process's accelerator."""
    found: bool = device.type == accelerator()
    return found


class DeviceCopies:
    """The copies of one operation between device tensors and pinned host memory."""

    def __init__(self) -> None:
        self._arrivals: list[torch.Event] = []
        self._results: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._devices: set[torch.device] = set()
        self._returned: dict[torch.device, torch.Event] = {}

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Pinned memory that will hold the values of `tensor` once `wait` has returned."""
        host = pinned(tensor)
        device = tensor.device
        stream = _copies_of(device)
        stream.wait_stream(torch.accelerator.current_stream(device))
        with stream, torch.no_grad():
            host.copy_(tensor.detach(), non_blocking=True)
        # A waiter sleeps; with the default event it would spin.
        arrival = torch.Event(device=device, blocking=True)
        arrival.record(stream)
        self._arrivals.append(arrival)
        self._devices.add(device)
        return host

    def give_back(self, host: torch.Tensor, tensor: torch.Tensor) -> None:
        """Let `finish` copy pinned memory to `tensor`."""
        self._results.append((tensor, host))
        self._devices.add(tensor.device)

    def wait(self) -> None:
        """Block until all fetched copies have completed."""
        for arrival in self._arrivals:
            arrival.synchronize()

    def finish(self) -> None:
        """Queue the copies of results on the current streams of this thread."""
        with torch.no_grad():
            for target, host in self._results:
                target.copy_(host, non_blocking=True)
        for device in {target.device for target, _ in self._results}:
            done = torch.Event(device=device)
            done.record(torch.accelerator.current_stream(device))
            self._returned[device] = done

    def follow(self) -> None:
        """Let the current streams of this thread wait for the results, which may be queued by another thread."""
        for device, done in self._returned.items():
            torch.accelerator.current_stream(device).wait_event(done)

    def devices(self) -> list[torch.device]:
        """The devices of all tensors."""
        return sorted(self._devices, key=str)


class Later:
    """Starts operations of a core when their copies have completed, in the order of submission.

    Operations submitted while one waits must wait too: operations of a group are matched by their order.
    """

    def __init__(self) -> None:
        self._starter = ThreadPoolExecutor(1, "netsum-device")
        self._last: Future[Any] | None = None

    def idle(self) -> bool:
        """Whether nothing waits, so that an operation may start at once."""
        return self._last is None or self._last.done()

    def drain(self) -> None:
        """Block until all submitted operations have started."""
        if self._last is not None:
            self._last.exception()

    def begin(self, copies: DeviceCopies | None, operation: Callable[..., Any], arguments: tuple[Any, ...]) -> Deferred:
        def start() -> Any:
            if copies is not None:
                copies.wait()
            return operation(*arguments)

        self._last = self._starter.submit(start)
        return Deferred(self._last)

    def close(self) -> None:
        self._starter.shutdown(wait=False)


class After:
    """A proxy of the core for operations that have to wait: its methods return at once, with a `Deferred`."""

    def __init__(self, core: Group, later: Later, copies: DeviceCopies | None) -> None:
        self._core = core
        self._later = later
        self._copies = copies

    def __getattr__(self, name: str) -> Callable[..., Deferred]:
        operation = getattr(self._core, name)
        return lambda *arguments: self._later.begin(self._copies, operation, arguments)


class Deferred:
    """A work of the core that may not have started; has the interface of such a work."""

    def __init__(self, begun: Future[Any]) -> None:
        self._begun = begun

    def wait(self, timeout_s: float | None) -> None:
        since = time.monotonic()
        try:
            part = self._begun.result(timeout_s)
        except WaitTimeout as error:
            if self._begun.done():
                raise
            raise OperationTimeout(
                f"netsum: the operation has not begun after {timeout_s:.3f} s: what comes before it on the device's "
                f"stream is not done"
            ) from error
        part.wait(None if timeout_s is None else max(timeout_s - (time.monotonic() - since), 0.0))

    def done(self) -> bool:
        return self._begun.done() and (self._begun.exception() is not None or self._begun.result().done())

    def error(self) -> str | None:
        if not self._begun.done():
            return None
        failure = self._begun.exception()
        return self._begun.result().error() if failure is None else str(failure)

    def source_rank(self) -> int | None:
        return self._begun.result().source_rank() if self._begun.done() else None

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` on completion; never on the thread that starts operations, which must not block."""

        def follow(begun: Future[Any]) -> None:
            if begun.exception() is None:
                begun.result().on_done(callback)
            else:
                threading.Thread(target=callback, name="netsum-failed", daemon=True).start()

        self._begun.add_done_callback(follow)


def pinned(like: torch.Tensor) -> torch.Tensor:
    """Dense host memory of the shape and type of `like` that its device can copy from and to."""
    return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=True)


def _copies_of(device: torch.device) -> torch.Stream:
    with _lock:
        if device not in _copy_streams:
            _copy_streams[device] = torch.Stream(device=device)
        return _copy_streams[device]
