"""What goes wrong in a demo."""


class DemoError(Exception):
    """The demo cannot go on, or its result is not what it promises; the text says why."""
