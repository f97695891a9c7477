"""Errors of the dashboard."""


class DashboardError(Exception):
    """The page cannot be served; the message says why and what to do."""
