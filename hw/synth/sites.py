"""The least number of LUT sites for the LUTs of a netlist: vendors count sites, Yosys counts functions.

A site of Xilinx' chips has six inputs and two outputs: it holds one function, or two that have five inputs together
(UG474, "Look-Up Table"). Vendors' tools pair functions while they place. Here every function is paired, largest first,
with the one that shares most inputs with it, two at least: pairs without common inputs fit as well, but pull apart what
is placed. So this is an estimate, and beside Yosys' count it says what a vendor's report would be compared with.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

INPUTS = 5
SHARED = 2
EVERYWHERE = 400
"""Readers of a net that is too common to pair functions by: an enable, a reset."""


def pairs(module: dict) -> int:
    """Pairs of LUTs in a mapped module of Yosys' JSON that fit in one site each."""
    functions = []
    for cell in module["cells"].values():
        if re.fullmatch(r"LUT\d|INV", cell["type"]):
            pins = [bits for pin, bits in cell["connections"].items() if cell["port_directions"][pin] == "input"]
            inputs = frozenset(bit for bits in pins for bit in bits if isinstance(bit, int))
            if len(inputs) <= INPUTS:
                functions.append(inputs)
    readers = defaultdict(set)
    for at, inputs in enumerate(functions):
        for bit in inputs:
            readers[bit].add(at)
    paired: set[int] = set()
    found = 0
    for at in sorted(range(len(functions)), key=lambda at: -len(functions[at])):
        if at in paired:
            continue
        paired.add(at)
        near = [readers[bit] for bit in sorted(functions[at]) if len(readers[bit]) < EVERYWHERE]
        shared = Counter(other for others in near for other in sorted(others) if other not in paired)
        for other, count in shared.most_common():
            if count < SHARED:
                break
            if len(functions[at] | functions[other]) <= INPUTS:
                paired.add(other)
                found += 1
                break
    return found
