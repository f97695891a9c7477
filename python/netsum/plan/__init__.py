"""The planner: topologies in, plans out. The algorithms are in the compiled core."""

from netsum.plan.errors import PlanError
from netsum.plan.topology import Selection, topology

__all__ = ["PlanError", "Selection", "topology"]
