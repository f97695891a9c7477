"""The planner: topologies in, plans out. The algorithms are in the compiled core."""

from netsum.plan.errors import PlanError
from netsum.plan.topology import Selection, topology
from netsum.plan.trees import COLLECTIVES, classes, explain, export, front, pack, verify

__all__ = [
    "COLLECTIVES",
    "PlanError",
    "Selection",
    "classes",
    "explain",
    "export",
    "front",
    "pack",
    "topology",
    "verify",
]
