"""`netsum version`."""

import netsum
from netsum.cli.output import console


def version() -> None:
    """Print the versions of the package and of its compiled core."""
    from netsum import _core

    console.print(f"netsum {netsum.__version__} (core {_core.version()})", highlight=False)
