"""Errors under Horovod's names."""


class HorovodInternalError(RuntimeError):
    """A collective failed: the ranks' calls do not match, a rank is lost, or one has shut down."""


class NotInitializedError(ValueError):
    """`hvd.init()` has not been called, or `hvd.shutdown()` has."""

    def __init__(self) -> None:
        super().__init__("netsum.horovod has not been initialized; use hvd.init().")
