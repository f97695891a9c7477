"""Plans for what is left of a fabric: links and devices that are lost, links that are slower than they were."""

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from netsum.plan.errors import PlanError
from netsum.plan.trees import pack


@dataclass(frozen=True)
class Losses:
    """lost: names of GPUs or switches, or of links as `gpu0-gpu4`. degraded: rates, as `20Gbit/s`, by link."""

    lost: list[str] = field(default_factory=list)
    degraded: dict[str, str] = field(default_factory=dict)


def without(graph: dict, losses: Losses) -> tuple[dict, list[str]]:
    """The graph that is left, and what was lost in words. PlanError names what the graph does not have."""
    names = {vertex["name"] for kind in ("gpu", "switch") for vertex in graph.get(kind, [])}
    links, words, gone = [dict(link) for link in graph["link"]], [], set()
    for word in losses.lost:
        if word in names:
            gone.add(word)
            words.append(f"{word} with {sum(word in link['ends'] for link in links)} links")
            continue
        found = _between(links, _ends(word, names))
        links = [link for link in links if link not in found]
        words.append(f"{'–'.join(_ends(word, names))} ({', '.join(link['rate'] for link in found)})")
    for word, rate in losses.degraded.items():
        found = _between(links, _ends(word, names))
        if len(found) > 1:
            raise PlanError(f"{word}: there are {len(found)} links between these; write their rates in a topology file")
        words.append(f"{'–'.join(_ends(word, names))} at {rate} in place of {found[0]['rate']}")
        found[0]["rate"] = rate
    links = [link for link in links if not gone & set(link["ends"])]
    left = {kind: [v for v in graph.get(kind, []) if v["name"] not in gone] for kind in ("gpu", "switch")}
    return graph | left | {"link": links}, words


def replan(old: dict, graph: dict, losses: Losses) -> dict:
    """The report of the best plan for what is left (`pack`), with `lost` (words), `before` (GB/s) and `seconds`.

    old: the plan in use; its collective is kept. graph: of its GPUs, in the order of its ranks. PlanError if there is
    no plan any more.
    """
    left, words = without(graph, losses)
    collective = old["collective"]
    begun = time.perf_counter()
    try:
        report = pack(left, collective["kind"], collective.get("root", 0))
    except PlanError as error:
        raise PlanError(f"without {'; '.join(words)}: {error}") from None
    numerator, _, denominator = old["rate_bps"].partition("/")
    before = float(numerator) / float(denominator or 1) / 8e9
    return report | {"lost": words, "before": before, "seconds": time.perf_counter() - begun}


def put_in_place(plan: dict, file: Path) -> None:
    """Write a plan so that whoever reads it meanwhile sees the old one or the new. PlanError if it cannot be."""
    beside = file.with_name(f".{file.name}.new")
    try:
        beside.write_text(json.dumps(plan, indent=1))
        os.replace(beside, file)
    except OSError as error:
        raise PlanError(f"{file}: cannot be written: {error}") from error


def _ends(word: str, names: set[str]) -> tuple[str, str]:
    parts = word.replace("–", "-").split("-")
    for cut in range(1, len(parts)):
        a, b = "-".join(parts[:cut]), "-".join(parts[cut:])
        if a in names and b in names:
            return a, b
    raise PlanError(
        f"{word!r} is no GPU, switch or link of this topology; write GPU-GPU, of {', '.join(sorted(names))}"
    )


def _between(links: list[dict], ends: tuple[str, str]) -> list[dict]:
    found = [link for link in links if set(link["ends"]) == set(ends)]
    if not found:
        raise PlanError(f"there is no link between {ends[0]} and {ends[1]}")
    return found
