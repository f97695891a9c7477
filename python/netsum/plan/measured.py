"""Topologies with measured latencies and rates of their links."""

from typing import Any

from netsum.plan.errors import PlanError

Links = dict[tuple[str, str], tuple[float, float]]
"""Latency in seconds and rate in bits per second, by the ends of a direct link."""


def calibrated(graph: dict[str, Any], links: Links) -> tuple[dict[str, Any], int]:
    """The graph with measured rates and latencies where available, and how many links those are.

    Several links between the same two vertices are measured as one: each gets its part of the rate.
    """
    found = {frozenset(ends): measured for ends, measured in links.items()}
    total: dict[frozenset[Any], float] = {}
    for link in graph["link"]:
        total[frozenset(link["ends"])] = total.get(frozenset(link["ends"]), 0.0) + _bits(link["rate"])
    out, count = [], 0
    for link in graph["link"]:
        measured = found.get(frozenset(link["ends"]))
        if measured is not None:
            latency, rate = measured
            part = _bits(link["rate"]) / total[frozenset(link["ends"])]
            link = link | {"rate": f"{max(1, round(rate * part / 1e6))}Mbit/s", "latency": f"{round(latency * 1e9)}ns"}
            count += 1
        out.append(link)
    return graph | {"link": out}, count


def _bits(rate: str) -> float:
    for unit, factor in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0)):
        if rate.endswith(unit):
            return float(rate.removesuffix(unit)) * factor
    raise PlanError(f"{rate!r} is no rate")
