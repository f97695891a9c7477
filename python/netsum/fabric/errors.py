"""What goes wrong with a local fabric."""


class FabricError(Exception):
    """A fabric cannot be read, started or reached; the text says which part and what to do."""
