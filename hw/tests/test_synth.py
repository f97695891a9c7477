"""Transformations of netlists before counting or placing: only those that hardware supports."""

from __future__ import annotations

import sys

import pytest
from runner import ROOT

sys.path.insert(0, str(ROOT / "hw" / "synth"))
import outreg
import sites


def memory(**pins) -> dict:
    """A block memory of ECP5 whose port B drives nets 10 and 11."""
    connections = {
        "CLKA": [1],
        "CLKB": [1],
        "OCEA": ["1"],
        "OCEB": ["1"],
        "DOA0": [8],
        "DOB0": [10],
        "DOB1": [11],
    } | pins
    directions = {pin: "output" if pin.startswith("DO") else "input" for pin in connections}
    return {"type": "DP16KD", "parameters": {"REGMODE_A": "NOREG", "REGMODE_B": "NOREG"},
            "connections": connections, "port_directions": directions}  # fmt: skip


def flip_flop(of: int, to: int, **other) -> dict:
    """A register without enable or reset."""
    connections = {"CLK": [1], "DI": [of], "Q": [to], "LSR": ["0"]} | other.get("pins", {})
    parameters = {"CEMUX": "1 ", "LSRMUX": "LSR", "REGSET": "RESET"} | other.get("parameters", {})
    directions = {pin: "output" if pin == "Q" else "input" for pin in connections}
    return {"type": "TRELLIS_FF", "parameters": parameters, "connections": connections, "port_directions": directions}


def netlist(**cells) -> dict:
    """A module with outputs 20 and 21."""
    return {"cells": cells, "ports": {"out": {"direction": "output", "bits": [20, 21]}}}


def test_registers_move_into_memories():
    """Both registers are absorbed, the memory drives their outputs, and the unused port is unchanged."""
    module = netlist(ram=memory(), a=flip_flop(10, 20), b=flip_flop(11, 21))
    assert outreg.absorb(module) == 2
    (ram,) = module["cells"].values()
    assert (ram["connections"]["DOB0"], ram["connections"]["DOB1"]) == ([20], [21])
    assert ram["parameters"] == {"REGMODE_A": "NOREG", "REGMODE_B": "OUTREG"}


def test_an_enable_moves_along():
    """Registers that share an enable pass it to the memory."""
    enabled = {"pins": {"CE": [5]}, "parameters": {"CEMUX": "CE"}}
    module = netlist(ram=memory(), a=flip_flop(10, 20, **enabled), b=flip_flop(11, 21, **enabled))
    assert outreg.absorb(module) == 2
    assert module["cells"]["ram"]["connections"]["OCEB"] == [5]


@pytest.mark.parametrize(
    "other",
    [
        {"b": flip_flop(11, 21, pins={"LSR": [7]})},
        {"b": flip_flop(11, 21, pins={"CLK": [2]})},
        {"b": flip_flop(11, 21, parameters={"REGSET": "SET"})},
        {"b": flip_flop(11, 21, pins={"CE": [5]}, parameters={"CEMUX": "CE"})},
        {"b": flip_flop(11, 21, pins={"CE": [5]}, parameters={"CEMUX": "INV"})},
        {"b": flip_flop(11, 21), "c": flip_flop(11, 22)},
        {"b": flip_flop(12, 21, pins={"CE": [11]})},
    ],
)
def test_registers_stay(other):
    """A reset, another clock, a start at 1, an enable of its own, a second reader, or something else than the data."""
    module = netlist(ram=memory(), a=flip_flop(10, 20), **other)
    assert outreg.absorb(module) == 0 and len(module["cells"]) == 2 + len(other)


def lut(out: int, *inputs: int) -> dict:
    """A function of some nets."""
    connections = {f"I{at}": [net] for at, net in enumerate(inputs)} | {"O": [out]}
    directions = {pin: "output" if pin == "O" else "input" for pin in connections}
    return {"type": f"LUT{len(inputs)}", "connections": connections, "port_directions": directions}


def test_pairs_share_sites():
    """Two functions of five inputs that share two of them fit; not with six in total, not with one in common."""
    assert sites.pairs({"cells": {"a": lut(90, 1, 2, 3), "b": lut(91, 2, 3, 4, 5)}}) == 1
    assert sites.pairs({"cells": {"a": lut(90, 1, 2, 3, 4), "b": lut(91, 3, 4, 5, 6)}}) == 0
    assert sites.pairs({"cells": {"a": lut(90, 1, 2), "b": lut(91, 2, 3)}}) == 0
    assert sites.pairs({"cells": {"a": lut(90, 1, 2), "b": lut(91, 1, 2), "c": lut(92, 1, 2)}}) == 1
