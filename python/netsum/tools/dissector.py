"""The dissector for Wireshark and tshark."""

import re
import shutil
import subprocess
from pathlib import Path

from netsum.tools.errors import ToolError

SCRIPT = Path(__file__).with_name("netsum.lua")
_USUAL_FOLDER = Path(".local/lib/wireshark/plugins")
_ASK_S = 30.0
"""Time limit for tshark to print its folders, which takes less than a second."""


def install(folder: Path | None) -> Path:
    """Copy the dissector into a folder for plugins, by default the user's own; returns the copy's path.

    Raises ToolError if the folder cannot be written.
    """
    folder = folder or plugin_folder()
    target = folder / SCRIPT.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(SCRIPT, target)
    except OSError as error:
        raise ToolError(f"{target} cannot be written: {error.strerror}; choose another with --folder") from error
    return target


def plugin_folder() -> Path:
    """The user's folder for Lua plugins, as tshark names it, or where it usually is."""
    try:
        asked = subprocess.run(["tshark", "-G", "folders"], capture_output=True, text=True, timeout=_ASK_S)
    except (OSError, subprocess.TimeoutExpired):
        return Path.home() / _USUAL_FOLDER
    named = re.search(r"^Personal Lua Plugins:\s+(\S.*)$", asked.stdout, flags=re.M)
    return Path(named[1]) if named else Path.home() / _USUAL_FOLDER
