"""An operation on arrays that is under way."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netsum._core import Work


class Pending:
    """Keeps the arrays of an operation alive until it has ended.

    result: what `wait` returns.
    """

    __slots__ = ("_kept", "_result", "_work")

    def __init__(self, work: "Work", kept: object, result: object) -> None:
        self._work = work
        self._kept = kept
        self._result = result

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._work.done()

    def wait(self, timeout_s: float | None = None) -> Any:
        """Block until it has ended and return its result; its error is raised.

        timeout_s: raises OperationTimeout after so long and leaves the operation to its own timeout; None: no limit.
        """
        self._work.wait(timeout_s)
        self._kept = None
        return self._result
