"""The files that a configuration names: traces, sizes of flows, fabrics, scenarios."""

import glob
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_KEYS = ("path", "scenario", "sizes", "groups")


def absolute(value: Any, folder: Path, key: str = "") -> Any:
    """A copy of the `value` of `key`: file names in it, relative to `folder`, are made absolute."""
    if isinstance(value, dict):
        return {name: absolute(item, folder, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [absolute(item, folder, key) for item in value]
    # `sizes` may also be the name of a distribution.
    if isinstance(value, str) and key in _KEYS and (key != "sizes" or _is_file(folder / value)):
        return str(folder / value)
    return value


def named(value: Any, key: str = "") -> Iterator[Path]:
    """The existing files named in `value`."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from named(item, str(name))
    elif isinstance(value, list):
        for item in value:
            yield from named(item, key)
    elif isinstance(value, str) and key in _KEYS and _is_file(Path(value)):
        yield Path(value)
    elif isinstance(value, str) and key == "path":
        # The prefix of a trace's files, or a folder of recordings or traces.
        path = Path(value)
        yield from sorted(path.parent.glob(f"{glob.escape(path.name)}.*.et"))
        yield from sorted(path.glob("*.json"))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        # Too long for a name, or containing a zero byte.
        return False
