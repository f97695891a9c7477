"""Errors of the demo."""


class DemoError(Exception):
    """The demo cannot continue, or its result violates an expectation; the message says why."""
