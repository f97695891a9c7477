"""Errors of local fabrics."""


class FabricError(Exception):
    """A fabric cannot be read, started or reached; the message names the part and what to do."""
