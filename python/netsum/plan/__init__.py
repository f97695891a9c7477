"""The planner: from topologies to plans. The algorithms are in the compiled core."""

from netsum.plan.errors import PlanError
from netsum.plan.losses import Losses, put_in_place, replan, without
from netsum.plan.measured import calibrated
from netsum.plan.topology import Selection, topology
from netsum.plan.trees import (
    COLLECTIVES,
    classes,
    estimate,
    explain,
    export,
    exported,
    fastest,
    front,
    pack,
    pack_kinds,
    proven,
    verify,
)

__all__ = [
    "COLLECTIVES",
    "Losses",
    "PlanError",
    "Selection",
    "calibrated",
    "classes",
    "estimate",
    "explain",
    "export",
    "exported",
    "fastest",
    "front",
    "pack",
    "pack_kinds",
    "proven",
    "put_in_place",
    "replan",
    "topology",
    "verify",
    "without",
]
