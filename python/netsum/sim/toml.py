"""Writes configurations as TOML; the standard library only reads it."""

import json
from typing import Any

from netsum.sim.errors import SimError

# The simulator's reader takes no more.
DEPTH = 80


def dumps(config: dict[str, Any]) -> str:
    """TOML text of nested dictionaries, lists, strings, numbers and truth values. Raises SimError for others."""
    return "".join(f"{_key(key)} = {_value(value, DEPTH)}\n" for key, value in config.items())


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
