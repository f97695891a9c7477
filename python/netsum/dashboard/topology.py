"""The shape of a fabric, which the page asks for once: nodes with their levels, and links."""

import hashlib
import json
from collections import defaultdict, deque
from typing import Any

from netsum.reports import ControllerStatus


def topology(status: ControllerStatus) -> dict[str, Any]:
    """Nodes as [name, kind, level], hosts at level 0; links as [node, node, bit/s]; switches and servers as [name,
    role, host], in the order of a view's figures. `id` changes with the rest."""
    names = dict.fromkeys(host["name"] for host in status["hosts"])
    hosts = set(names)
    switches = {switch["name"]: switch for switch in status["switches"]}
    for name in (*switches, *(end for link in status["links"] for end in (link["a"], link["b"]))):
        if name not in switches or switches[name]["role"] == "switch":
            names.setdefault(name)
    neighbours = defaultdict(list)
    for link in status["links"]:
        neighbours[link["a"]].append(link["b"])
        neighbours[link["b"]].append(link["a"])
    level = _levels(neighbours, hosts)
    number = {name: index for index, name in enumerate(names)}
    shape: dict[str, Any] = {
        "nodes": [[name, "host" if name in hosts else "switch", level.get(name, 1)] for name in names],
        "links": [[number[link["a"]], number[link["b"]], link["rate_bps"]] for link in status["links"]],
        "switches": [[switch["name"], switch["role"], switch["host"]] for switch in status["switches"]],
    }
    shape["id"] = hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]
    return shape


def _levels(neighbours: dict[str, list[str]], hosts: set[str]) -> dict[str, int]:
    """Distance in links from the nearest host."""
    level = dict.fromkeys(hosts, 0)
    queue = deque(hosts)
    while queue:
        node = queue.popleft()
        for other in neighbours[node]:
            if other not in level:
                level[other] = level[node] + 1
                queue.append(other)
    return level
