"""The planner: from topologies to plans. The algorithms are in the compiled core."""

from netsum.plan.errors import PlanError
from netsum.plan.losses import Losses, put_in_place, replan, without
from netsum.plan.measured import calibrated
from netsum.plan.topology import Selection, topology
from netsum.plan.trees import (
    COLLECTIVES,
    Group,
    classes,
    estimate,
    explain,
    export,
    exported,
    fastest,
    front,
    front_by_size,
    pack,
    pack_groups,
    pack_kinds,
    pack_symmetric,
    proven,
    verify,
    verify_proven,
)

__all__ = [
    "COLLECTIVES",
    "Group",
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
    "front_by_size",
    "pack",
    "pack_groups",
    "pack_kinds",
    "pack_symmetric",
    "proven",
    "put_in_place",
    "replan",
    "topology",
    "verify",
    "verify_proven",
    "without",
]
