"""Bytes per link of a fabric, from the switches' counters as reported by the controller."""

from collections import defaultdict
from itertools import pairwise

from netsum.fabric.description import Description
from netsum.fabric.ring import shortest_paths
from netsum.fabric.sockets import split_address
from netsum.reports import ControllerStatus, SwitchStatus


class LinkMeter:
    """Adds up the switches' counters across restarts of a switch, which reset them.

    A switch counts per neighbour's socket, and folds those of ended jobs into one of port 0; sockets are therefore
    combined by IP address, which must be unique for each host and switch of the fabric. Two switches that send to each
    other both report; the larger count is used, since the other switch may have been down for a while. If they share no
    link, as the racks of protocol atp, the shortest paths between them carry equal parts.
    """

    def __init__(self, fabric: Description) -> None:
        self._fabric = fabric
        self._names = {host.address: host.name for host in fabric.hosts}
        self._names |= {split_address(switch.address)[0]: switch.name for switch in fabric.switches}
        self._begun = False
        self._last: dict[tuple[str, str], int] = {}
        self._total: dict[tuple[str, str], int] = defaultdict(int)

    def read(self, status: ControllerStatus) -> None:
        """Process one status of the controller."""
        for switch in status["switches"]:
            for neighbour, now in self._counts(switch).items():
                key = (switch["name"], neighbour)
                before = self._last.get(key, 0 if self._begun else now)
                self._total[key] += now - before if now >= before else now
                self._last[key] = now
        self._begun = True

    def link_bytes(self) -> dict[str, int]:
        """Bytes per link since the first reading, both directions together."""
        found = {frozenset(link.ends): 0 for link in self._fabric.links}
        switches = {switch.name for switch in self._fabric.switches}
        # Servers count what the switches of their hosts count as well.
        pairs = {frozenset(pair) for pair in self._total if pair[0] in switches}
        for one, other in map(sorted, pairs):
            count = max(self._total.get((one, other), 0), self._total.get((other, one), 0))
            paths = shortest_paths(self._fabric, one, other)
            for hop in (hop for path in paths for hop in pairwise(path)):
                found[frozenset(hop)] += count // len(paths)
        return {link.name: found[frozenset(link.ends)] for link in self._fabric.links}

    def _counts(self, switch: SwitchStatus) -> dict[str, int]:
        """Bytes that a switch has exchanged with each neighbour, by name."""
        counts: dict[str, int] = defaultdict(int)
        for neighbour in switch["neighbours"]:
            name = self._names.get(split_address(neighbour["address"])[0])
            if name is not None:
                counts[name] += neighbour["rx_bytes"] + neighbour["tx_bytes"]
        return counts
