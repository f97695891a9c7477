"""Errors of metrics."""


class MetricsError(Exception):
    """Metrics cannot be served; the message says why and what to do."""
