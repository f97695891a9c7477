"""Location of the files of local fabrics."""

import os
from pathlib import Path


def state_home() -> Path:
    """The folder of pids, logs and stores: $XDG_STATE_HOME/netsum, or ~/.local/state/netsum."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "netsum"
