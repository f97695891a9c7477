"""The `netsum` command. `app` names the sub-commands; each of the other files holds one.

Nothing here loads torch: workers that need torch are separate processes.
"""

from netsum.cli.app import main

__all__ = ["main"]
