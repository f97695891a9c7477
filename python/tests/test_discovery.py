"""Discovery without a network: what machines say becomes a fabric, differences are named, answers are bounded."""

from __future__ import annotations

import dataclasses
import json
import random
import socket
import struct
from pathlib import Path

import pytest

from netsum.discovery.collect import _steps
from netsum.discovery.compare import compare
from netsum.discovery.facts import Hop, Interface, Machine, Neighbour, Trace, machine_of, traces_of
from netsum.discovery.paths import read_answer
from netsum.discovery.survey import look_at_paths, survey
from netsum.fabric.description import Description
from netsum.fabric.drawing import parse_rate, rate_text
from netsum.fabric.errors import FabricError

GIGABIT = 10**9


def machines(cables: list[tuple[str, str]], rate_bps: int = GIGABIT) -> dict[str, Machine]:
    """Machines with a port per cable; names that begin with s are switches."""
    ports: dict[str, list[Interface]] = {}
    for a, b in cables:
        name_a, name_b = f"p{len(ports.setdefault(a, []))}", f"p{len(ports.setdefault(b, []))}"
        ports[a].append(Interface(name_a, "up", 1500, rate_bps, (), Neighbour(b, name_b)))
        ports[b].append(Interface(name_b, "up", 1500, rate_bps, (), Neighbour(a, name_a)))
    return {
        name: Machine(name, name.startswith("s"), (f"10.0.{number // 250}.{number % 250 + 1}",), tuple(interfaces))
        for number, (name, interfaces) in enumerate(sorted(ports.items()))
    }


def replaced(known: dict[str, Machine], name: str, port: str, **changes: object) -> dict[str, Machine]:
    """The same machines but for one interface."""
    machine = known[name]
    ports = tuple(dataclasses.replace(p, **changes) if p.name == port else p for p in machine.interfaces)
    return {**known, name: dataclasses.replace(machine, interfaces=ports)}


CABLES = [("h0", "s0"), ("h1", "s0"), ("h2", "s1"), ("h3", "s1"), ("s0", "s2"), ("s1", "s2")]


def file_of(known: dict[str, Machine], folder: Path) -> Description:
    path = folder / "fabric.toml"
    path.write_text(survey(known).drawing("lab", "10.0.0.1:7700").toml("Made here."))
    return Description.read(path)


def said(file: Description, known: dict[str, Machine]) -> list[str]:
    found = survey(known)
    return [each.text for each in [*found.findings, *compare(file, found, found.drawing("lab", "10.0.0.1:7700"))]]


@pytest.mark.parametrize("seed", range(50))
def test_random_fabrics_come_out_exactly_and_agree_with_their_files(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    switches = [f"s{i}" for i in range(chance.randint(1, 9))]
    cables = [(switch, chance.choice(switches[:i])) for i, switch in enumerate(switches) if i]
    cables += [(f"h{i}", chance.choice(switches)) for i in range(chance.randint(1, 20))]
    chance.shuffle(cables)
    known = machines(cables)
    file = file_of(known, tmp_path)
    assert {frozenset(link.ends) for link in file.links} == set(map(frozenset, cables))
    assert {host.name for host in file.hosts} == {end for pair in cables for end in pair if end.startswith("h")}
    assert {switch.name for switch in file.switches} == {end for pair in cables for end in pair if end.startswith("s")}
    assert said(file, known) == []


def test_swapped_cables_are_named_once(tmp_path: Path) -> None:
    file = file_of(machines(CABLES), tmp_path)
    swapped = [("h0", "s1"), ("h2", "s0"), *[pair for pair in CABLES if pair[0] not in ("h0", "h2")]]
    found = said(file, machines(swapped))
    assert len(found) == 1
    assert found[0] == "two cables are swapped: h0 - s1 and h2 - s0; the file has h0 - s0 and h2 - s1"


def test_links_that_are_gone_or_new_are_not_taken_for_swapped_ones(tmp_path: Path) -> None:
    file = file_of(machines(CABLES), tmp_path)
    found = said(file, machines([*CABLES[:-1], ("s0", "s1"), ("h4", "s1")]))
    assert "h4 is new, a host" in found
    assert any(text.startswith("the link s1 - s2 is gone") for text in found)
    assert "the link s0 - s1 is new" in found
    assert not any("swapped" in text for text in found)


def test_an_interface_that_is_down_is_named_at_both_ends(tmp_path: Path) -> None:
    known = machines(CABLES)
    file = file_of(known, tmp_path)
    known = replaced(known, "s0", "p0", state="disabled", neighbour=None)
    found = said(file, replaced(known, "h0", "p0", state="no carrier", neighbour=None))
    assert "h0 (p0) is enabled, but has no carrier: look at the other end" in found
    assert "the link h0 - s0 is gone: h0 (p0) is without a carrier, s0 (p0) is disabled" in found


def test_rates_and_sizes_that_do_not_fit_are_named(tmp_path: Path) -> None:
    known = machines(CABLES)
    file = file_of(known, tmp_path)
    slow = said(file, replaced(known, "s0", "p2", rate_bps=GIGABIT // 10))
    assert "the ends of a cable have different rates: s0 (p2): 100Mbit/s and s2 (p0): 1Gbit/s" in slow
    assert "the link s0 - s2 has 100Mbit/s; the file has 1Gbit/s" in slow
    small = said(file, replaced(known, "h3", "p0", mtu=1400))
    assert small == ["h3 (p0) has an MTU of 1400, most of the fabric has 1500"]


def test_one_sided_neighbours_are_no_cable() -> None:
    known = replaced(machines(CABLES), "h0", "p0", neighbour=Neighbour("s1", "p0"))
    found = survey(known)
    assert ("h0", "s0") not in [cable.machines for cable in found.cables]
    assert any(each.text == "h0 (p0) hears s1 (p0), but that hears h2 (p0)" for each in found.findings)
    known = replaced(machines(CABLES), "h0", "p0", neighbour=Neighbour("office", "1/7"))
    assert any(each.text == "h0 (p0) leads to office, which was not looked at" for each in survey(known).findings)


def test_the_machine_that_clears_ecn_is_named() -> None:
    known = machines(CABLES)
    found = survey(known)
    way = [known[name].own[0] for name in ("s0", "s2", "s1", "h2")]
    trace = Trace(way[-1], tuple(Hop(address, ecn) for address, ecn in zip(way, (2, 3, 0, 0), strict=True)))
    silent = Trace(known["h3"].own[0], (Hop(way[0], 2), None))
    look_at_paths(found, {"h0": [trace, silent]})
    texts = [each.text for each in found.findings]
    assert texts[0].startswith("ECN bits are cleared between s2 and s1 ")
    assert texts[1:] == ["probes of h0 do not reach h3"]


def test_patterns_say_who_is_a_switch() -> None:
    known = machines(CABLES)
    assert survey(known, ["s0", "h*"], ["h1", "h2", "h3"]).switches == {"s0", "h0"}
    assert survey(known).switches == {"s0", "s1", "s2"}


def test_answers_of_machines_are_read_back_and_wrong_ones_named() -> None:
    known = machines(CABLES)["s0"]
    answer = json.loads(json.dumps(dataclasses.asdict(known)))
    assert machine_of(answer, "s0") == known
    for key, value in (("name", 7), ("forwards", 1), ("own", "10.0.0.1"), ("interfaces", [1]), ("name", "a\nb")):
        with pytest.raises(FabricError, match=r"^s0: "):
            machine_of({**answer, key: value}, "s0")
    answer["interfaces"][0]["state"] = "on fire"
    with pytest.raises(FabricError, match=r"^s0: state is none of up, no carrier, disabled$"):
        machine_of(answer, "s0")
    with pytest.raises(FabricError, match=r"^h0: hops is not a list"):
        traces_of({"traces": [{"destination": "10.0.0.1", "hops": None}]}, "h0")


def quoted(tos: int, kind: int, destination: str = "10.9.8.7", port: int = 33435) -> bytes:
    """A packet of ICMP that quotes a probe from port 5000."""
    inner = struct.pack("!BBHHHBBH", 0x45, tos, 39, 0, 0, 1, 17, 0) + socket.inet_aton("10.0.0.1")
    inner += socket.inet_aton(destination) + struct.pack("!HHHH", 5000, port, 19, 0)
    outer = struct.pack("!BBHHHBBH", 0x45, 0xC0, 20 + 8 + len(inner), 0, 0, 64, 1, 0) + bytes(8)
    return outer + struct.pack("!BBHI", kind, 0, 0, 0) + inner


def test_answers_to_probes_are_told_from_everything_else() -> None:
    assert read_answer(quoted(0xE2, 11), 5000, 33435, "10.9.8.7") == (2, False)
    assert read_answer(quoted(0xE0, 3), 5000, 33435, "10.9.8.7") == (0, True)
    for other in (quoted(0xE2, 8), quoted(0xE2, 11, port=33436), quoted(0xE2, 11, destination="10.9.8.6")):
        assert read_answer(other, 5000, 33435, "10.9.8.7") is None
    packet, chance = quoted(0xE2, 11), random.Random(5)
    for length in range(len(packet)):
        assert read_answer(packet[:length], 5000, 33435, "10.9.8.7") in (None, (2, False))
    for _ in range(2000):
        read_answer(bytes(chance.randbytes(chance.randint(0, 80))), 5000, 33435, "10.9.8.7")


@pytest.mark.parametrize("rate", [1, 999, 10**3, 25 * 10**9, 100 * 10**6, 10**12, 1_500_000])
def test_rates_survive_a_file(rate: int) -> None:
    assert parse_rate(rate_text(rate)) == rate


@pytest.mark.parametrize("hosts", range(1, 40))
def test_a_host_sends_probes_to_others_and_never_to_itself(hosts: int) -> None:
    steps = _steps(hosts)
    assert all(0 < step < hosts for step in steps)
    assert len(steps) == min(hosts - 1, 4)
