"""Plans for a degraded fabric: links and devices that are lost, links that are slower than before."""

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netsum.plan.errors import PlanError
from netsum.plan.topology import refusals


@dataclass(frozen=True)
class Losses:
    """lost: names of GPUs or switches, or of links as `gpu0-gpu4`. degraded: rates, as `20Gbit/s`, by link."""

    lost: list[str] = field(default_factory=list)
    degraded: dict[str, str] = field(default_factory=dict)


def without(graph: dict[str, Any], losses: Losses) -> tuple[dict[str, Any], list[str]]:
    """The remaining graph, and a description of the losses. Raises PlanError for names that the graph does not have."""
    from netsum import _core

    with refusals():
        left, words = _core.graph_without(json.dumps(graph), losses.lost, list(losses.degraded.items()))
    return json.loads(left), words


def replan(old: dict[str, Any], graph: dict[str, Any], losses: Losses) -> dict[str, Any]:
    """The report of the best plan for the remaining graph (`pack`), with what `netsum plan replan` prints.

    These are `lost` (texts), `before` (GB/s), `seconds`, `mended` (whether trees of the old plan were mended, or all
    trees are new) and `kept` (the part of the buffer whose trees are as before, 0 to 1).

    old: the plan in use; its collective is kept, its trees where links allow. graph: of its GPUs, in rank order. Raises
    PlanError if no plan is left.
    """
    from netsum import _core

    begun = time.perf_counter()
    with refusals():
        degraded = list(losses.degraded.items())
        report, words, mended, kept = _core.replan_trees(json.dumps(graph), json.dumps(old), losses.lost, degraded)
    numerator, _, denominator = old["rate_bps"].partition("/")
    before = float(numerator) / float(denominator or 1) / 8e9
    found: dict[str, Any] = json.loads(report) | {
        "lost": words,
        "before": before,
        "seconds": time.perf_counter() - begun,
        "mended": mended,
        "kept": kept,
    }
    return found


def put_in_place(plan: dict[str, Any], file: Path) -> None:
    """Write a plan atomically: readers see the old one or the new one. Raises PlanError if it cannot be written."""
    beside = file.with_name(f".{file.name}.new")
    try:
        beside.write_text(json.dumps(plan, indent=1))
        os.replace(beside, file)
    except OSError as error:
        raise PlanError(f"{file}: cannot be written: {error.strerror}") from error
