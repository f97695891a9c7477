"""Links of a fabric, and what trees and rings load on them: seconds of each link per byte that a rank sums."""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from netsum.fabric.description import Description, Host, Link, Switch
from netsum.fabric.ring import shortest_paths

Edge = frozenset[str]
HEADERS = 42
"""Bytes of Ethernet, IP and UDP around a fragment, which netsum's counters leave out."""


@dataclass(frozen=True)
class Net:
    """A fabric as a controller reported it. switches: those that add."""

    description: Description
    switches: frozenset[str]
    rate_bps: dict[Edge, float]

    @classmethod
    def of(cls, fabric: dict[str, Any], also_down: bool = False) -> "Net":
        """From the part `fabric` of rank 0's file. also_down: with the switches that were not up at the end."""
        links = tuple(Link((link["a"], link["b"]), f"{link['rate_bps']}bit/s") for link in fabric["links"])
        hosts = tuple(Host(name, "") for name in fabric["hosts"])
        nodes = [switch for switch in fabric["switches"] if switch["role"] == "switch"]
        switches = tuple(Switch(node["name"], "") for node in nodes)
        description = Description(fabric["name"], "", hosts, switches, links, Path())
        rates = {frozenset((link["a"], link["b"])): float(link["rate_bps"]) for link in fabric["links"]}
        return cls(description, frozenset(node["name"] for node in nodes if also_down or node["state"] == "up"), rates)

    @cached_property
    def neighbours(self) -> dict[str, list[str]]:
        found = defaultdict(list)
        for link in self.description.links:
            found[link.ends[0]].append(link.ends[1])
            found[link.ends[1]].append(link.ends[0])
        return found

    @property
    def rates_known(self) -> bool:
        return bool(self.rate_bps) and all(self.rate_bps.values())

    def seconds(self, loads: dict[Edge, float]) -> dict[Edge, float]:
        """Seconds of each link per byte that a rank sums. loads: by link, bytes in one direction per such byte."""
        return {edge: 8 * load / self.rate_bps[edge] for edge, load in loads.items() if self.rate_bps.get(edge)}

    def fullest(self, loads: dict[Edge, float]) -> float:
        """Seconds per byte of the link that takes longest."""
        return max(self.seconds(loads).values(), default=0.0)


def tree_loads(edges: Sequence[Sequence[Edge]], shares: Sequence[float]) -> dict[Edge, float]:
    """Bytes in each direction of each link per byte summed, for trees with their shares of the fragments."""
    loads: dict[Edge, float] = defaultdict(float)
    for tree, share in zip(edges, shares, strict=True):
        for edge in tree:
            loads[edge] += share
    return dict(loads)


def edges_of(tree: dict[str, Any], hosts: dict[int, str]) -> list[Edge]:
    """The links of a tree of the controller's status, one entry for each stream that they carry."""
    found = []
    for node in tree["nodes"]:
        if node["parent"]:
            found += [frozenset(pair) for pair in pairwise([node["switch"], *node["via"], node["parent"]])]
        for child in node["children"]:
            rank = child["child"].get("Rank")
            if rank is not None and hosts.get(int(rank)):
                found.append(frozenset((node["switch"], hosts[int(rank)])))
    return found


def plan_trees(net: Net, placement: Sequence[str], most: int) -> list[list[Edge]]:
    """The links of up to `most` trees of least depth that share no link between switches, as the controller plans."""
    by_depth: dict[int, list[str]] = defaultdict(list)
    for root in sorted(net.switches):
        grown = _grow(net, root, placement, set())
        if grown is not None:
            by_depth[grown[0]].append(root)
    if not by_depth:
        return []
    depth = min(by_depth)
    trees: list[list[Edge]] = []
    used: set[Edge] = set()
    for root in by_depth[depth]:
        grown = _grow(net, root, placement, used) if len(trees) < most else None
        if grown is not None and grown[0] == depth:
            trees.append(grown[1])
            used |= {edge for edge in grown[1] if edge <= net.switches}
    return trees


def _grow(net: Net, root: str, placement: Sequence[str], used: set[Edge]) -> tuple[int, list[Edge]] | None:
    """Depth and links of the tree of shortest paths to a root; None if a host has no way to it."""
    distance, parent = {root: 0}, {root: ""}
    queue = deque([root])
    while queue:
        node = queue.popleft()
        for other in net.neighbours[node]:
            if other in net.switches and other not in distance and frozenset((node, other)) not in used:
                distance[other], parent[other] = distance[node] + 1, node
                queue.append(other)
    edges: list[Edge] = []
    taken: set[str] = set()
    depth = 0
    for host in placement:
        near = [switch for switch in net.neighbours[host] if switch in distance]
        if not near:
            return None
        node = min(near, key=lambda switch: distance[switch])
        depth = max(depth, distance[node])
        edges.append(frozenset((host, node)))
        while node != root and node not in taken:
            taken.add(node)
            edges.append(frozenset((node, parent[node])))
            node = parent[node]
    return depth, edges


def ring_seconds(net: Net, placement: Sequence[str]) -> float:
    """Seconds per byte of the fullest direction of a link in a ring over the ranks in their order."""
    size = len(placement)
    flows = [(placement[rank], placement[(rank + 1) % size], 2 * (size - 1) / size) for rank in range(size)]
    return _directed(net, flows)


def exchange_seconds(net: Net, placement: Sequence[str]) -> float:
    """Seconds per byte that a rank sends, while each sends the same to all others."""
    size = len(placement)
    return _directed(net, [(a, b, 1 / (size - 1)) for a in placement for b in placement if a != b])


def _directed(net: Net, flows: Iterable[tuple[str, str, float]]) -> float:
    loads: dict[tuple[str, str], float] = defaultdict(float)
    paths: dict[tuple[str, str], list[list[str]]] = {}
    for source, target, load in flows:
        if (source, target) not in paths:
            paths[source, target] = shortest_paths(net.description, source, target)
        ways = paths[source, target]
        for way in ways:
            for pair in pairwise(way):
                loads[pair] += load / len(ways)
    return max((8 * load / net.rate_bps[frozenset(pair)] for pair, load in loads.items()), default=0.0)


def placements(net: Net, now: Sequence[str], taken: set[str]) -> list[list[str]]:
    """Other places for as many ranks, on hosts that no other job uses: within one rack, or over few, a rank per host.

    A rack is what hangs on one switch.
    """
    racks: dict[str, list[str]] = defaultdict(list)
    for host in net.description.hosts:
        near = [switch for switch in net.neighbours[host.name] if switch in net.switches]
        if near and host.name not in taken:
            racks[near[0]].append(host.name)
    # Racks that have most of the ranks already come first: fewer ranks move.
    ordered = sorted(racks, key=lambda rack: (-sum(host in racks[rack] for host in now), rack))
    found = [racks[rack][: len(now)] for rack in ordered if len(racks[rack]) >= len(now)][:1]
    spread = [host for rack in ordered for host in racks[rack]]
    if len(spread) >= len(now):
        found.append(spread[: len(now)])
    largest = [host for rack in sorted(racks, key=lambda rack: -len(racks[rack])) for host in racks[rack]]
    if len(largest) >= len(now):
        found.append(largest[: len(now)])
    return [each for at, each in enumerate(found) if sorted(each) != sorted(now) and each not in found[:at]]
