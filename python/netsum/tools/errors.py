"""Errors of tools."""


class ToolError(Exception):
    """A tool cannot do its work; the message says why and what to do."""
