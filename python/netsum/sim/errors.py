"""What goes wrong with a simulation."""


class SimError(Exception):
    """A configuration was refused, or a run did not end well; the text says where and why."""
