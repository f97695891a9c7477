"""Reads and writes configurations as TOML; the standard library only reads it."""

import json
import tomllib
from pathlib import Path
from typing import Any

from netsum.sim.errors import SimError

# The simulator's reader takes no more.
DEPTH = 80


def dumps(config: dict[str, Any]) -> str:
    """TOML text of nested dictionaries, lists, strings, numbers and truth values. Raises SimError for others."""
    return "".join(f"{_key(key)} = {_value(value, DEPTH)}\n" for key, value in config.items())


def read(path: Path) -> dict[str, Any]:
    """The content of a file. Raises SimError if there is none, or for one that is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SimError(f"cannot read {path}: {error.strerror}; give the path of a file that is there") from None
    except UnicodeDecodeError:
        raise SimError(f"{path}: no UTF-8 text; configurations and sweeps are TOML files") from None
    except tomllib.TOMLDecodeError as error:
        raise SimError(f"{path}: {error}") from None
    except RecursionError:
        raise SimError(f"{path}: tables or lists are nested too deeply") from None


def _value(value: Any, depth: int) -> str:
    if depth == 0:
        raise SimError(f"tables or lists are nested more than {DEPTH} times; no configuration is so deep")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_value(item, depth - 1)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item, depth - 1) for item in value) + "]"
    raise SimError(f"a configuration holds no {type(value).__name__}: {value!r}; use text, numbers, lists and tables")


def _key(key: str) -> str:
    if not isinstance(key, str):
        raise SimError(f"a key of a configuration is text, not {key!r}")
    return json.dumps(key, ensure_ascii=False)
