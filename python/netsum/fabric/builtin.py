"""The demo's fabric: two racks, each with a switch, two hosts and a server, under two spine switches."""

import socket

from netsum.fabric.description import Description
from netsum.fabric.errors import FabricError
from netsum.fabric.state import state_home

RACKS = 2
HOSTS_PER_RACK = 2
SPINES = 2
_BLOCKS = range(77, 127)
"""Second bytes of loopback blocks 127.X.0.0/16 to try, 77 first."""


def demo_description() -> Description:
    """The demo's fabric on the first free loopback block, written to a file that the daemons can read.

    Raises FabricError where this machine has no block free.
    """
    for block in _BLOCKS:
        if _is_free(f"127.{block}.0.1", 7700):
            path = state_home() / demo_name(block) / "fabric.toml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(demo_toml(block))
            return Description.read(path)
    raise FabricError("no loopback block from 127.77.0.0/16 to 127.126.0.0/16 is free; stop other local fabrics")


def demo_name(block: int) -> str:
    return "demo" if block == _BLOCKS[0] else f"demo-{block}"


def demo_toml(block: int) -> str:
    """The fabric file with all addresses in 127.`block`.0.0/16."""
    lines = [
        "# Two racks under two spines, on loopback addresses of one machine.",
        f'name = "{demo_name(block)}"',
        f'controller = "127.{block}.0.1:7700"',
    ]
    hosts = [f"h{i}" for i in range(RACKS * HOSTS_PER_RACK)]
    racks = [f"rack{i}" for i in range(RACKS)]
    spines = [f"spine{i}" for i in range(SPINES)]
    for i, host in enumerate(hosts):
        lines += ["", "[[host]]", f'name = "{host}"', f'address = "127.{block}.1.{i + 1}"']
    for i, switch in enumerate(racks + spines):
        lines += ["", "[[switch]]", f'name = "{switch}"', f'address = "127.{block}.2.{i + 1}:7701"', 'memory = "64MiB"']
    for rack in range(RACKS):
        address = f"127.{block}.1.{rack * HOSTS_PER_RACK + 1}:7801"
        lines += ["", "[[server]]", f'name = "server{rack}"', f'address = "{address}"', 'memory = "64MiB"']
    for i, host in enumerate(hosts):
        lines += _link(host, racks[i // HOSTS_PER_RACK], "10Gbit/s")
    for rack in racks:
        for spine in spines:
            lines += _link(rack, spine, "10Gbit/s")
    return "\n".join(lines) + "\n"


def _link(one: str, other: str, rate: str) -> list[str]:
    return ["", "[[link]]", f'ends = ["{one}", "{other}"]', f'rate = "{rate}"']


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
