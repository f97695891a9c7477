"""Looks at this machine: its interfaces, and the neighbours that lldpd has heard of."""

import ipaddress
import json
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

from netsum.discovery.facts import Interface, Machine, Neighbour
from netsum.fabric.errors import FabricError

_SYSTEM = Path("/sys/class/net")
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
COMMAND_S = 20.0


def look(name: str | None = None, lldp_socket: str | None = None) -> Machine:
    """The machine as it is. name: in place of its host name. lldp_socket: of lldpd, if not the usual one.

    Raises FabricError if a tool is missing or fails.
    """
    for tool, package in (("ip", "iproute2"), ("lldpcli", "lldpd")):
        if shutil.which(tool) is None:
            raise FabricError(f"{tool} is missing on {socket.gethostname()}: install {package}")
    neighbours = _neighbours(lldp_socket)
    links = _json("ip", "-j", "-details", "address")
    interfaces, own = [], []
    for link in links:
        addresses = tuple(
            each["local"] for each in link.get("addr_info", []) if each.get("scope") == "global" and each.get("local")
        )
        if "LOOPBACK" in link.get("flags", []):
            own += [each for each in addresses if not ipaddress.ip_address(each).is_loopback]
        elif link.get("link_type") == "ether":
            interfaces.append(_interface(link, addresses, neighbours))
    return Machine(name or socket.gethostname(), _FORWARDING.read_text().strip() == "1", tuple(own), tuple(interfaces))


def _interface(link: dict[str, Any], addresses: tuple[str, ...], neighbours: dict[str, Neighbour]) -> Interface:
    device = link["ifname"]
    enabled, running = "UP" in link.get("flags", []), link.get("operstate") in ("UP", "UNKNOWN")
    state = "disabled" if not enabled else "up" if running else "no carrier"
    # lldpd remembers a neighbour for a while after its cable is gone.
    neighbour = neighbours.get(device) if state == "up" else None
    return Interface(device, state, int(link["mtu"]), _rate(device), addresses, neighbour)


def _rate(device: str) -> int | None:
    """The rate of the link, or of a token bucket that shapes it."""
    rates = []
    try:
        megabits = int((_SYSTEM / device / "speed").read_text())
        if megabits > 0:
            rates.append(megabits * 10**6)
    except (OSError, ValueError):
        pass
    if shutil.which("tc"):
        for discipline in _json("tc", "-j", "qdisc", "show", "dev", device):
            rate = discipline.get("options", {}).get("rate") if discipline.get("kind") == "tbf" else None
            if isinstance(rate, int) and rate > 0:
                rates.append(8 * rate)
    return min(rates, default=None)


def _neighbours(lldp_socket: str | None) -> dict[str, Neighbour]:
    """By interface the neighbour that LLDP names."""
    chosen = ["-u", lldp_socket] if lldp_socket else []
    answer = _json("lldpcli", *chosen, "-f", "json0", "show", "neighbors", "details")
    found = {}
    for block in answer.get("lldp", []):
        for interface in block.get("interface", []):
            machine, port = _value(interface, "chassis", "name"), _value(interface, "port", "id")
            if machine:
                found[str(interface["name"])] = Neighbour(machine, _value(interface, "port", "descr") or port or "?")
    return found


def _value(interface: dict[str, Any], part: str, key: str) -> str | None:
    """`interface[part][0][key][0]["value"]` of lldpcli's JSON, in which everything is a list."""
    parts = interface.get(part) or [{}]
    values = parts[0].get(key) or [{}]
    value = values[0].get("value")
    return str(value) if value else None


def _json(*command: str) -> Any:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FabricError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise FabricError(f"{' '.join(command)}: {done.stderr.strip()}")
    try:
        return json.loads(done.stdout or "[]")
    except ValueError as error:
        raise FabricError(f"{' '.join(command)}: its output is not JSON: {error}") from error
