"""The `netsum` command. `app` names the sub-commands; each of the other files holds one.

Nothing here loads torch: workers that need it are processes of their own.
"""

from netsum.cli.app import main

__all__ = ["main"]
