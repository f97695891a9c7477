"""What all tests need."""

import signal


def pytest_configure() -> None:
    # A shell that runs something in the background lets it ignore Ctrl-C, and so would all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
