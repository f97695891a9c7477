"""Plans: computed, checked and converted by the core."""

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from netsum.plan.errors import PlanError
from netsum.plan.topology import refusals

COLLECTIVES = ("allreduce", "allgather", "reduce-scatter", "broadcast", "reduce", "alltoall")


def pack(
    graph: dict[str, Any],
    collective: str = "allreduce",
    root: int = 0,
    method: str = "exact",
    pieces: int = 0,
    seconds: float | None = None,
    progress: Callable[[float, float], bool] | None = None,
) -> dict[str, Any]:
    """The best trees: `plan`, `rate`, `bound` (GB/s), `optimal`, `gap`, `proof`, `trees`, `height`, `others`, `loads`.

    graph: of `topology`. root: rank, for broadcast and reduce. method: "exact", "blink" for its own method; for
    allreduce also "three-phase" (in servers, between one GPU of each, back) or "rings".
    pieces: shares become multiples of one of so many; 0 for exact shares. PlanError if it cannot be.

    seconds: how long method "exact" may search; by default it does a fixed amount of work, 1.5 s for up to 16 GPUs. If
    the search ends before it is complete, `limited` is true, and `gap` says how far the rate is below the bound.
    progress: called about once a second with the time (s) and the part of the bound reached; False ends the search.
    """
    from netsum import _core

    with refusals():
        found: dict[str, Any] = json.loads(
            _core.pack_trees(
                json.dumps(graph), json.dumps(_collective(collective, root)), method, pieces, seconds, progress
            )
        )
        return found


def front(graph: dict[str, Any], collective: str = "allreduce", root: int = 0) -> list[dict[str, Any]]:
    """Pareto-optimal plans in rate, number of trees and height; the fastest first."""
    points: list[dict[str, Any]] = front_by_size(graph, collective, root)["points"]
    return points


def front_by_size(graph: dict[str, Any], collective: str = "allreduce", root: int = 0) -> dict[str, Any]:
    """The same as `points`, and `fastest`: from which size on (`from_bytes`) which `point` is the fastest.

    Times are those of pipelines over the topology's latencies and rates, in seconds: `seconds`, and `of_first`, what
    the plan with the highest rate takes at that size.
    """
    from netsum import _core

    with refusals():
        found: dict[str, Any] = json.loads(
            _core.pack_front(json.dumps(graph), json.dumps(_collective(collective, root)))
        )
        return found


def pack_symmetric(graph: dict[str, Any], collective: str = "allgather") -> dict[str, Any]:
    """The best trees that are alike for all ranks: the plan has those of one rank, and automorphisms of the fabric.

    For all-gather, reduce-scatter and allreduce on fabrics that look the same from every rank, of up to 16,384 GPUs.
    Raises PlanError for others.
    """
    from netsum import _core

    with refusals():
        found: dict[str, Any] = json.loads(_core.pack_orbits(json.dumps(graph), json.dumps(_collective(collective, 0))))
        return found


class Group(NamedTuple):
    """A process group: its ranks, what it does, and the bytes of its whole buffer."""

    name: str
    ranks: list[int]
    collective: str
    bytes: int
    root: int = 0
    """Rank in the group, for broadcast and reduce."""


def pack_groups(graph: dict[str, Any], groups: list[Group]) -> dict[str, Any]:
    """The best trees of several process groups that communicate at the same time, and end together.

    Returns `rounds_per_s` (a fraction), `groups` (with a `plan` each), and `lengths` that prove the bound to
    `verify_proven`. Raises PlanError for groups that cannot be planned.
    """
    from netsum import _core

    with refusals():
        parts = [
            (group.name, group.ranks, json.dumps(_collective(group.collective, group.root)), group.bytes)
            for group in groups
        ]
        found: dict[str, Any] = json.loads(_core.pack_groups(json.dumps(graph), parts))
        return found


def verify_proven(text: str, graph: dict[str, Any]) -> tuple[Fraction, Fraction | None] | None:
    """Checks a plan of `pack_symmetric` or `pack_groups`: its rate (bit/s; of groups rounds per second), and the rate
    that no plan exceeds, if the plan proves one. None for other plans. Raises PlanError if it is wrong."""
    from netsum import _core

    with refusals():
        found = _core.verify_proven(text, json.dumps(graph))
    if found is None:
        return None
    rate, bound = found
    return Fraction(rate), None if bound is None else Fraction(bound)


def pack_kinds(
    graph: dict[str, Any], kinds: list[tuple[str, float]], size: float, collective: str = "allreduce", root: int = 0
) -> dict[str, Any]:
    """Trees on each kind of links separately, with the buffer split so that all finish at the same time.

    kinds: name and set-up time in seconds. size: bytes. Returns `parts`, `seconds`, `alone_seconds` (the best kind
    alone) and `plan`.
    """
    from netsum import _core

    with refusals():
        found: dict[str, Any] = json.loads(
            _core.pack_kinds(json.dumps(graph), json.dumps(_collective(collective, root)), kinds, size)
        )
        return found


def verify(text: str, graph: dict[str, Any] | None) -> str | None:
    """What is wrong with a plan (JSON) on its graph, or without a graph with MSCCL XML or MSCCL++ JSON; None if
    valid."""
    from netsum import _core

    with refusals():
        return _core.verify_trees(text, None if graph is None else json.dumps(graph))


def proven(graph: dict[str, Any], certificate: dict[str, Any]) -> Fraction:
    """The rate (bits per second) that no all-to-all on the graph exceeds, by a report's `certificate`.

    Computed from the lengths in it alone, by a distance between every two GPUs. Raises PlanError if they prove nothing,
    and for certificates of other collectives.
    """
    from netsum import _core

    if certificate.get("kind") != "distances":
        raise PlanError(f"only proofs of an all-to-all are checked, and this is one by {certificate.get('kind')}")
    with refusals():
        return Fraction(_core.distance_bound(json.dumps(graph), json.dumps(certificate["arcs"])))


def export(plan: dict[str, Any], graph: dict[str, Any], form: str) -> str:
    """A plan as "msccl" (XML), "mscclpp" (JSON) or "svg". Raises PlanError if it is invalid or cannot be expressed.

    For executors that do not take the plan as it is, its shares are rounded, or other trees take its place.
    """
    return exported(plan, graph, form)[0]


def exported(plan: dict[str, Any], graph: dict[str, Any], form: str) -> tuple[str, str]:
    """`export`, and a sentence on what the executor's form loses and demands; empty for "svg"."""
    from netsum import _core

    with refusals():
        return _core.export_trees(json.dumps(plan), json.dumps(graph), form)


def explain(graph: dict[str, Any], sizes: list[float]) -> dict[str, Any]:
    """When aggregation speeds up an allreduce: `choices` by size, with seconds per path, and `words`, an
    explanation."""
    from netsum import _core

    with refusals():
        found: dict[str, Any] = json.loads(_core.explain_allreduce(json.dumps(graph), sizes))
        return found


def estimate(graph: dict[str, Any], sizes: list[float], method: str = "exact") -> list[float]:
    """Seconds of an allreduce by size, as executed by processes with the plan of a method over links like these."""
    from netsum import _core

    with refusals():
        return _core.estimate_allreduce(json.dumps(graph), method, sizes)


def fastest(graph: dict[str, Any], size: float) -> tuple[str, float]:
    """The method ("exact" or "rings") whose plan is fastest for a buffer of `size` bytes, and its time (s)."""
    times = {"exact": estimate(graph, [size])[0]}
    if dict(pack(graph)["others"])["rings"] is not None:
        times["rings"] = estimate(graph, [size], "rings")[0]
    return min(times.items(), key=lambda pair: pair[1])


def classes(graph: dict[str, Any]) -> list[tuple[list[int], int]]:
    """Classes of equivalent sets of three or more GPUs: the first set, and the number of sets."""
    from netsum import _core

    with refusals():
        return _core.gpu_classes(json.dumps(graph))


def _collective(name: str, root: int) -> dict[str, Any]:
    if name not in COLLECTIVES:
        raise PlanError(f"collective {name!r} is unknown; use {', '.join(COLLECTIVES)}")
    if root < 0:
        raise PlanError(f"root {root} is no rank; ranks count from 0")
    return {"kind": name, "root": root} if name in ("broadcast", "reduce") else {"kind": name}
