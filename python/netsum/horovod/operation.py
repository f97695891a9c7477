"""One collective started by a caller: its request, its memory, its completion."""

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from netsum.communicator import Memory
from netsum.horovod.errors import HorovodInternalError
from netsum.horovod.requests import Request


class Outputs(Protocol):
    """A framework's part of an operation: memory for results, and the value returned to the caller."""

    def allocate(self, index: int, shape: tuple[int, ...]) -> Memory:
        """Memory for the result of tensor `index`, once its shape is known."""

    def scale(self, index: int, factor: float) -> None:
        """Multiply result `index` by `factor`; integers as in float64, rounded towards zero."""

    def result(self, details: dict[str, Any]) -> Any:
        """The return value of `synchronize`."""


class Operation:
    """An operation, also the handle returned to callers. inputs: memory of each tensor, kept alive until completion."""

    def __init__(self, request: Request, inputs: Sequence[Memory] = (), outputs: Outputs | None = None) -> None:
        self.request = request
        self.inputs = inputs
        self.outputs = outputs
        self._ended = threading.Event()
        self._error: str | None = None
        self._details: dict[str, Any] = {}

    @property
    def key(self) -> tuple[int, str]:
        return self.request.process_set, self.request.name

    @property
    def results(self) -> Outputs:
        """The outputs of an operation on tensors."""
        assert self.outputs is not None, f"{self.request.name} has no tensors"
        return self.outputs

    def end(self, details: dict[str, Any]) -> None:
        self._details = details
        self._ended.set()

    def fail(self, error: str) -> None:
        self._error = error
        self._ended.set()

    def done(self) -> bool:
        """Whether the operation has completed, successfully or not."""
        return self._ended.is_set()

    def wait(self) -> Any:
        """Block until it has completed; returns its result. Raises HorovodInternalError with the reason if it
        failed."""
        self._ended.wait()
        if self._error is not None:
            raise HorovodInternalError(self._error)
        return self.outputs.result(self._details) if self.outputs else self._details
