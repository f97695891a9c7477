"""The `netsum` command. `app` names the sub-commands; each of the other files holds one.

Nothing here loads torch: workers that need torch are separate processes.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point."""
    try:
        # Loaded here, which takes a moment, so that Ctrl-C meanwhile shows no traceback.
        from netsum.cli import app
    except KeyboardInterrupt:
        sys.exit(130)
    app.main()
