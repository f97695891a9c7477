"""Joins what machines say into a fabric, and names what does not fit."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from netsum.discovery.facts import Interface, Machine, Trace
from netsum.fabric.drawing import Drawing, DrawnLink, DrawnNode, rate_text
from netsum.fabric.errors import FabricError


@dataclass(frozen=True)
class Finding:
    """Something that an operator should look at. kind: "cable", "rate", "mtu", "ecn", "down", "machine", "address"."""

    kind: str
    text: str


@dataclass(frozen=True)
class End:
    """One end of a cable."""

    machine: str
    interface: Interface

    def __str__(self) -> str:
        return f"{self.machine} ({self.interface.name})"


@dataclass(frozen=True)
class Cable:
    """Two ends that name each other, in the order of their machines' names."""

    ends: tuple[End, End]

    @property
    def machines(self) -> tuple[str, str]:
        return self.ends[0].machine, self.ends[1].machine

    @property
    def rate_bps(self) -> int | None:
        """What both ends can do."""
        return min((end.interface.rate_bps for end in self.ends if end.interface.rate_bps), default=None)

    def __str__(self) -> str:
        return f"{self.ends[0]} - {self.ends[1]}"


@dataclass
class Survey:
    """What was found. switches: names of the machines that are switches."""

    machines: Mapping[str, Machine]
    switches: frozenset[str]
    cables: list[Cable] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def address(self, name: str) -> str:
        """The address of a machine: its own if it has one, else of an interface on a cable, the first by name.

        Raises FabricError without any.
        """
        machine = self.machines[name]
        cabled = {end.interface.name for cable in self.cables for end in cable.ends if end.machine == name}
        ports = sorted(machine.interfaces, key=lambda port: (port.name not in cabled, port.name))
        found = [*machine.own, *(address for port in ports for address in port.addresses)]
        # Fabrics are of IPv4.
        found = [address for address in found if ":" not in address]
        if not found:
            raise FabricError(f"{name} has no IPv4 address, neither on its loopback interface nor on a cable")
        return found[0]

    def drawing(self, name: str, controller: str) -> Drawing:
        """The fabric: hosts, then switches, then links, each by name."""
        drawing = Drawing(name, controller)
        for kind in ("host", "switch"):
            chosen = sorted(each for each in self.machines if (each in self.switches) == (kind == "switch"))
            drawing.nodes += [DrawnNode(each, kind, self.address(each)) for each in chosen]
        for cable in self.cables:
            if cable.rate_bps is None:
                raise FabricError(f"{cable}: neither end knows its rate; set it by a shaper, or write the file by hand")
            drawing.links.append(DrawnLink(cable.machines, rate_text(cable.rate_bps)))
        return drawing


def survey(
    machines: Mapping[str, Machine], switch_patterns: Sequence[str] = (), host_patterns: Sequence[str] = ()
) -> Survey:
    """Cables, and what is wrong with interfaces. A machine is a switch if its name fits a pattern, or, without
    patterns, if it forwards packets."""

    def is_switch(machine: Machine) -> bool:
        if any(fnmatchcase(machine.name, pattern) for pattern in host_patterns):
            return False
        if switch_patterns:
            return any(fnmatchcase(machine.name, pattern) for pattern in switch_patterns)
        return machine.forwards

    found = Survey(machines, frozenset(name for name, machine in machines.items() if is_switch(machine)))
    for name in sorted(machines):
        for interface in machines[name].interfaces:
            _look_at(found, End(name, interface))
    found.cables.sort(key=lambda cable: [(end.machine, end.interface.name) for end in cable.ends])
    _look_at_sizes(found)
    return found


def _look_at(found: Survey, end: End) -> None:
    """Add the cable of an interface, once for both ends, and what is wrong with the interface."""
    if end.interface.state == "no carrier":
        found.findings.append(Finding("down", f"{end} is enabled, but has no carrier: look at the other end"))
    neighbour = end.interface.neighbour
    if neighbour is None:
        return
    if neighbour.machine not in found.machines:
        found.findings.append(Finding("machine", f"{end} leads to {neighbour.machine}, which was not looked at"))
        return
    other = next((each for each in found.machines[neighbour.machine].interfaces if each.name == neighbour.port), None)
    if other is None:
        found.findings.append(
            Finding("cable", f"{end} hears {neighbour.machine} ({neighbour.port}), which has no such interface")
        )
        return
    peer = End(neighbour.machine, other)
    back = other.neighbour
    if back is None or (back.machine, back.port) != (end.machine, end.interface.name):
        heard = f"{back.machine} ({back.port})" if back else "nobody"
        found.findings.append(Finding("cable", f"{end} hears {peer}, but that hears {heard}"))
        return
    first, second = sorted((end, peer), key=lambda each: (each.machine, each.interface.name))
    if first == end:
        found.cables.append(Cable((first, second)))
        rates = [each.interface.rate_bps for each in (first, second)]
        if None not in rates and rates[0] != rates[1]:
            said = " and ".join(f"{each}: {rate_text(each.interface.rate_bps or 0)}" for each in (first, second))
            found.findings.append(Finding("rate", f"the ends of a cable have different rates: {said}"))


def _look_at_sizes(found: Survey) -> None:
    """Interfaces whose MTU is not that of most ends of cables."""
    sizes = Counter(end.interface.mtu for cable in found.cables for end in cable.ends)
    if not sizes:
        return
    usual = max(sizes, key=lambda mtu: (sizes[mtu], mtu))
    for cable in found.cables:
        for end in cable.ends:
            if end.interface.mtu != usual:
                text = f"{end} has an MTU of {end.interface.mtu}, most of the fabric has {usual}"
                found.findings.append(Finding("mtu", text))


def look_at_paths(found: Survey, traces: Mapping[str, Sequence[Trace]]) -> None:
    """Add findings of probes' paths. traces: by the machine that sent the probes."""
    owner = {
        address: machine.name
        for machine in found.machines.values()
        for address in (*machine.own, *(each for port in machine.interfaces for each in port.addresses))
    }
    ways: Counter[tuple[str, str]] = Counter()
    silent = []
    for source in sorted(traces):
        for trace in traces[source]:
            before = source
            for hop in trace.hops:
                if hop is None:
                    continue
                here = owner.get(hop.address, hop.address)
                if hop.ecn == 0:
                    ways[before, here] += 1
                    break
                before = here
            else:
                if not trace.hops or trace.hops[-1] is None or trace.hops[-1].address != trace.destination:
                    silent.append((source, owner.get(trace.destination, trace.destination)))
    for (before, here), count in sorted(ways.items()):
        text = f"ECN bits are cleared between {before} and {here} (probes of {count} paths lost theirs there)"
        found.findings.append(Finding("ecn", text))
    for source, target in sorted(set(silent)):
        found.findings.append(Finding("path", f"probes of {source} do not reach {target}"))
