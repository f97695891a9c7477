"""A fabric from Slurm's files: nodes and their addresses from slurm.conf, switches and links from topology.conf."""

import ipaddress
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from netsum.fabric.drawing import Drawing, DrawnLink, DrawnNode
from netsum.fabric.errors import FabricError
from netsum.fabric.hostlists import expand


@dataclass(frozen=True)
class SlurmSwitch:
    """A line of topology.conf."""

    name: str
    nodes: list[str] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)


def import_slurm(
    name: str,
    controller: str,
    configuration: Path,
    topology: Path,
    addresses: Mapping[str, str],
    rate: str,
    memory: str,
) -> Drawing:
    """The fabric of a cluster. addresses: by name, before those of slurm.conf and DNS; switches are in neither of
    Slurm's files. rate: of every link, which Slurm does not know.

    Raises FabricError, which names file and line, or the name without an address.
    """
    node_addresses = read_nodes(configuration)
    switches = read_topology(topology)
    names = [switch.name for switch in switches]
    nodes = list(dict.fromkeys(node for switch in switches for node in switch.nodes))
    unknown = [node for node in nodes if node not in node_addresses]
    if unknown:
        raise FabricError(f"{topology} has {unknown[0]}, but no NodeName of {configuration} has")
    drawing = Drawing(name, controller)
    for node in nodes:
        address = addresses.get(node) or _resolved(node_addresses[node], node)
        drawing.nodes.append(DrawnNode(node, "host", address))
    for switch in names:
        address = addresses.get(switch) or _resolved(switch, switch)
        drawing.nodes.append(DrawnNode(switch, "switch", address, memory))
    for each in switches:
        for below in [*each.nodes, *each.switches]:
            if below not in names and below not in nodes:
                raise FabricError(f"{topology}: switch {each.name} has {below}, which no line describes")
            drawing.links.append(DrawnLink((below, each.name), rate))
    return drawing


def read_nodes(configuration: Path) -> dict[str, str]:
    """What slurm.conf gives as the address of each node. Raises FabricError with file and line."""
    found: dict[str, str] = {}
    for number, fields in _lines(configuration):
        if "nodename" not in fields or fields["nodename"] == "DEFAULT":
            continue
        nodes = expand(fields["nodename"])
        written = expand(fields.get("nodeaddr") or fields.get("nodehostname") or fields["nodename"])
        if len(written) != len(nodes):
            raise FabricError(f"{configuration}:{number}: {len(nodes)} nodes have {len(written)} addresses")
        found |= dict(zip(nodes, written, strict=True))
    return found


def read_topology(topology: Path) -> list[SlurmSwitch]:
    """The switches of topology.conf (topology/tree). Raises FabricError with file and line."""
    switches: dict[str, SlurmSwitch] = {}
    for number, fields in _lines(topology):
        if "switchname" not in fields:
            raise FabricError(f"{topology}:{number}: expected SwitchName=… Nodes=… or Switches=…")
        lists = expand(fields.get("nodes", "")), expand(fields.get("switches", ""))
        for name in expand(fields["switchname"]):
            if name in switches:
                raise FabricError(f"{topology}:{number}: switch {name} has two lines")
            switches[name] = SlurmSwitch(name, *lists)
    if not switches:
        raise FabricError(f"{topology}: no switch is there")
    return list(switches.values())


def _lines(file: Path) -> list[tuple[int, dict[str, str]]]:
    """The `Key=Value …` lines of a file of Slurm, with their numbers; keys in lower case. Included files are read."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FabricError(f"{file}: cannot be read: {getattr(error, 'strerror', error)}") from error
    found: list[tuple[int, dict[str, str]]] = []
    begun = ""
    for number, line in enumerate(text.splitlines(), 1):
        line = begun + line.partition("#")[0].strip()
        if line.endswith("\\"):
            begun = line[:-1] + " "
            continue
        begun = ""
        words = line.split()
        if not words:
            continue
        if words[0].lower() == "include" and len(words) == 2:
            found += _lines(file.parent / words[1])
            continue
        try:
            pairs = [word.partition("=") for word in shlex.split(line)]
        except ValueError as error:
            raise FabricError(f"{file}:{number}: {error}") from error
        found.append((number, {key.lower(): value for key, _, value in pairs}))
    return found


def _resolved(address: str, name: str) -> str:
    """The IP address of a name. Raises FabricError."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        pass
    try:
        return str(socket.getaddrinfo(address, None, socket.AF_INET)[0][4][0])
    except OSError:
        raise FabricError(
            f"{name} has no address: neither Slurm's files nor DNS have one for '{address}'; "
            f"give it by --address {name}=IP"
        ) from None
