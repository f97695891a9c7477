"""Allreduce with few aggregation devices behind an optical circuit switch. The algorithms are in the compiled core.

Rates are exact fractions as text, like "16/15", in units of one port; `fractions.Fraction` parses them.
"""

from netsum.ocs.picture import draw
from netsum.ocs.planner import METHODS, Ocs, OcsError, answer, check, compare, curve, share

__all__ = ["METHODS", "Ocs", "OcsError", "answer", "check", "compare", "curve", "draw", "share"]
