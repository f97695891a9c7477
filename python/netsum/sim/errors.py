"""Errors of simulations."""


class SimError(Exception):
    """A configuration was rejected, or a run failed; the message says where and why."""
