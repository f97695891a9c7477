"""The demo's numbers: `result.json`, and the checks of the demo's expectations."""

import os
import platform
import time
from typing import Any

from netsum.demo.runner import RANKS
from netsum.demo.session import Outcome
from netsum.demo.workloads import WORKLOADS
from netsum.fabric.description import Description
from netsum.fabric.ring import ring_link_bytes

CONTROL_BYTES = 4 * 8192
"""Bytes of the control sum of every step: ELEMENTS of `control_sum`, four bytes each."""

RING = (
    "computed: 2(N-1)/N of the same allreduces, (N-1)/N of gathers and scatters, over each edge of the ring 0-1-2-3-0, "
    "along shortest paths, without headers"
)
"""How the ring's bytes are computed; those of netsum are counted, headers and resends included."""


def summarize(outcome: Outcome) -> dict[str, Any]:
    """The content of `result.json`. Bytes are of both directions of a link together; times in seconds."""
    shown, gloo = outcome.shown, outcome.gloo
    ring = ring_link_bytes(outcome.fabric, placement(outcome.fabric), summed_bytes(outcome))
    measured = outcome.link_bytes
    stats = shown.ranks[0]["stats"]
    workload = outcome.workload
    return {
        "workload": workload.name,
        workload.score: {"netsum": shown.score, "gloo": gloo.score},
        "bit_identical": shown.bit_identical and outcome.plain.bit_identical,
        "step_time_s": {"netsum": shown.step_time_s, "gloo": gloo.step_time_s},
        f"{workload.samples}_per_s": {"netsum": shown.samples_per_s, "gloo": gloo.samples_per_s},
        "link_bytes": {name: {"netsum": measured[name], "ring": round(ring[name])} for name in ring},
        "uplink_bytes": {
            "netsum": sum(measured[name] for name in uplinks(outcome.fabric)),
            "ring": round(sum(ring[name] for name in uplinks(outcome.fabric))),
        },
        "ring_is": RING,
        "host_path_bytes": sum(rank["host_bytes"]["in_steps"] for rank in shown.ranks),
        "host_path_bytes_before": sum(rank["host_bytes"]["before"] for rank in shown.ranks),
        "summed_bytes": summed_bytes(outcome),
        "trees": len(stats["trees"]),
        "path": stats["path"],
        "operations": {"all": stats["operations"], "in_network": stats["network_operations"]},
        "collectives": shown.ranks[0]["collectives"],
        "pauses": pauses(outcome),
        "plans": stats["pauses"],
        "redone_fragments": sum(rank["stats"]["redone"] for rank in shown.ranks),
        "control_sums": {"checked": shown.control_sums, "wrong_elements": shown.wrong_elements},
        "protocol": {"asked": outcome.protocol, "used": stats["protocol"], "why": stats["choice"]},
        "equals_run_without_kills": outcome.killed and same_bits(outcome),
        "ranks": shown.start["ranks"],
        "epochs": outcome.epochs,
        "steps": len(shown.steps),
        "parameters": shown.start["parameters"],
        "machine": {"cpus": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "at_unix_s": round(time.time()),
    }


def complaints(result: dict[str, Any]) -> list[str]:
    """The demo's expectations that this run violates; empty if none."""
    found = []
    workload = WORKLOADS[result["workload"]]
    for backend, score in result[workload.score].items():
        # A training that was shortened by --epochs may be worse.
        if result["epochs"] >= workload.epochs[0] and not workload.good(score):
            side = "below" if workload.less_is_better else "above"
            reached, limit = workload.words(score), workload.words(workload.limit)
            found.append(f"{workload.score_name} on {backend} is {reached}, not {side} {limit}")
    if not result["bit_identical"]:
        found.append("the ranks ended with different parameters")
    if result["control_sums"]["wrong_elements"]:
        found.append(f"{result['control_sums']['wrong_elements']} elements of control sums are wrong")
    if result["equals_run_without_kills"] is False:
        found.append("parameters after the kills differ from those of the run without")
    if not result["operations"]["in_network"]:
        found.append("no operation went through the switches")
    return found


def same_bits(outcome: Outcome) -> bool | None:
    """Whether the run with kills ended with the same bits; None where hosts add floats, which slots add as integers."""
    if outcome.killed is None or outcome.protocol != "panama":
        return None
    return outcome.killed.digest == outcome.plain.digest


def pauses(outcome: Outcome) -> list[dict[str, Any]]:
    """One entry per killed process: name, time (Unix seconds), and the additional time that a step then took."""
    return [
        {"what": f"{kill.switch} killed", "when": kill.at_unix_s, "seconds": outcome.shown.pause_after(kill.at_unix_s)}
        for kill in outcome.kills
        if kill.at_unix_s is not None
    ]


def summed_bytes(outcome: Outcome) -> int:
    """Bytes that each rank has passed to allreduce, or half of what it gathered and scattered: parameters, gradients
    and control sums of all steps.
    """
    shown = outcome.shown
    found: int = len(shown.steps) * (shown.start["ring_bytes"] + CONTROL_BYTES)
    return found


def placement(fabric: Description) -> list[str]:
    """Host of each rank, by the rule of the core: rank r of n takes local host floor(r * hosts / n)."""
    return [fabric.hosts[rank * len(fabric.hosts) // RANKS].name for rank in range(RANKS)]


def uplinks(fabric: Description) -> list[str]:
    """Links between two switches."""
    switches = {switch.name for switch in fabric.switches}
    return [link.name for link in fabric.links if set(link.ends) <= switches]
