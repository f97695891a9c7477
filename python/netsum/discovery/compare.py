"""What differs between a fabric file and what is there."""

from collections.abc import Mapping
from itertools import combinations

from netsum.discovery.survey import Finding, Survey
from netsum.fabric.description import Description
from netsum.fabric.drawing import Drawing, parse_rate
from netsum.fabric.sockets import split_address

Pair = frozenset[str]


def compare(file: Description, found: Survey, drawing: Drawing) -> list[Finding]:
    """The differences, each as a sentence; none: the file is what is there."""
    expected = {host.name: ("host", host.address) for host in file.hosts}
    expected |= {switch.name: ("switch", split_address(switch.address)[0]) for switch in file.switches}
    there = {node.name: (node.kind, node.address) for node in drawing.nodes}
    return [*_machines(expected, there), *_cables(file, found, drawing), *_rates(file, drawing)]


def _machines(expected: Mapping[str, tuple[str, str]], there: Mapping[str, tuple[str, str]]) -> list[Finding]:
    findings = [Finding("machine", f"{name} is gone") for name in sorted(expected.keys() - there.keys())]
    findings += [Finding("machine", f"{name} is new, a {there[name][0]}") for name in sorted(there.keys() - expected)]
    for name in sorted(expected.keys() & there.keys()):
        (kind, address), (kind_now, address_now) = expected[name], there[name]
        if kind != kind_now:
            findings.append(Finding("machine", f"{name} is a {kind_now}; the file has a {kind}"))
        if address != address_now:
            findings.append(Finding("address", f"{name} has the address {address_now}; the file has {address}"))
    return findings


def _cables(file: Description, found: Survey, drawing: Drawing) -> list[Finding]:
    """Missing and new links. Two of each that exchange their ends are two cables that somebody swapped."""
    expected = {frozenset(link.ends) for link in file.links}
    there = {frozenset(link.ends) for link in drawing.links}
    missing, new = sorted(expected - there, key=sorted), sorted(there - expected, key=sorted)
    findings = []
    for one, other in combinations(list(missing), 2):
        for crossed in _crossings(one, other):
            if one in missing and other in missing and all(pair in new for pair in crossed):
                was, now = " and ".join(map(_words, (one, other))), " and ".join(map(_words, crossed))
                findings.append(Finding("cable", f"two cables are swapped: {now}; the file has {was}"))
                missing.remove(one)
                missing.remove(other)
                for pair in crossed:
                    new.remove(pair)
    for pair in missing:
        findings.append(_gone(pair, found))
    findings += [Finding("cable", f"the link {_words(pair)} is new") for pair in new]
    return findings


def _crossings(one: Pair, other: Pair) -> list[tuple[Pair, Pair]]:
    """The ways to exchange ends between two links."""
    if one & other or len(one) != 2 or len(other) != 2:
        return []
    (a, b), (c, d) = sorted(one), sorted(other)
    return [(frozenset((a, c)), frozenset((b, d))), (frozenset((a, d)), frozenset((b, c)))]


def _gone(pair: Pair, found: Survey) -> Finding:
    """A link that is not there, and interfaces of its ends that are down."""
    down = [
        f"{name} ({interface.name}) is {'disabled' if interface.state == 'disabled' else 'without a carrier'}"
        for name in sorted(pair & found.machines.keys())
        for interface in found.machines[name].interfaces
        if interface.state != "up"
    ]
    reason = f": {', '.join(down)}" if down else "; its interfaces are up, but hear nothing, or somebody else"
    return Finding("down" if down else "cable", f"the link {_words(pair)} is gone{reason}")


def _rates(file: Description, drawing: Drawing) -> list[Finding]:
    now = {frozenset(link.ends): link.rate for link in drawing.links}
    return [
        Finding("rate", f"the link {_words(pair)} has {now[pair]}; the file has {link.rate}")
        for link in file.links
        for pair in [frozenset(link.ends)]
        if pair in now and parse_rate(now[pair]) != parse_rate(link.rate)
    ]


def _words(pair: Pair) -> str:
    return " - ".join(sorted(pair))
