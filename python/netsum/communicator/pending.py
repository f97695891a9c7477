"""An operation on arrays in flight."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netsum._core import Work


class Pending:
    """Keeps the arrays of an operation alive until it has completed.

    result: what `wait` returns.
    """

    __slots__ = ("_kept", "_result", "_work")

    def __init__(self, work: "Work", kept: object, result: object) -> None:
        self._work = work
        self._kept = kept
        self._result = result

    def done(self) -> bool:
        """Whether the operation has completed, successfully or not."""
        return self._work.done()

    def wait(self, timeout_s: float | None = None) -> Any:
        """Block until the operation has completed and return its result, or raise its error.

        timeout_s: raises OperationTimeout after this time and leaves the operation to its own timeout; None: no limit.
        """
        self._work.wait(timeout_s)
        self._kept = None
        return self._result
