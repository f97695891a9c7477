"""Topologies by name or from files of any format that the core supports."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netsum.plan.errors import PlanError


@dataclass(frozen=True)
class Selection:
    """The input of the planner.

    source: a file, or a built-in machine (`dgx1v`, `a100x2`, `torus:4x4`). gpus: names or numbers, all if empty. kinds:
    kinds of links to use, all if empty. format: of the file, None to detect it.
    """

    source: str
    gpus: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    format: str | None = None


def topology(selection: Selection) -> dict[str, Any]:
    """The graph as netsum's JSON: `gpu`, `switch`, `link`. Raises PlanError if it cannot be read."""
    from netsum import _core

    text, file = selection.source, None
    path = Path(selection.source)
    if path.suffix or path.exists():
        file = str(path)
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from error
    with refusals():
        found: dict[str, Any] = json.loads(
            _core.topology(text, file, selection.format, selection.gpus, selection.kinds)
        )
        return found


@contextmanager
def refusals() -> Iterator[None]:
    """Convert the core's errors to PlanError."""
    try:
        yield
    except ValueError as error:
        raise PlanError(str(error)) from None
