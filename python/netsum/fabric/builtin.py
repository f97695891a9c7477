"""The demo's fabric: two racks, each with a switch, two hosts and a server, under two spine switches."""

import socket
from collections.abc import Iterable

from netsum import private
from netsum.fabric.description import Description
from netsum.fabric.errors import FabricError
from netsum.fabric.reservations import LoopbackBlock
from netsum.fabric.sockets import check_free
from netsum.fabric.state import state_home

RACKS = 2
HOSTS_PER_RACK = 2
SPINES = 2
_BLOCKS = range(77, 127)
"""Second bytes of loopback blocks 127.X.0.0/16 to try, 77 first."""


def demo_description() -> Description:
    """The demo's fabric on the first free loopback block, written to a file for the daemons.

    The block is reserved until this process ends. Raises FabricError if no block is free.
    """
    block = free_block(_BLOCKS)
    _held.append(block)
    path = state_home() / demo_name(block.number) / "fabric.toml"
    private.make_folder(path.parent)
    private.write_text(path, demo_toml(block.number))
    return Description.read(path)


def free_block(numbers: Iterable[int]) -> LoopbackBlock:
    """The first loopback block of `numbers` that is not reserved and is free for the demo's fabric.

    Raises FabricError if there is none.
    """
    tried = []
    for number in numbers:
        tried.append(number)
        block = LoopbackBlock.take(number)
        if block is None:
            continue
        if _is_free(number):
            return block
        block.release()
    raise FabricError(
        f"no loopback block from 127.{min(tried)}.0.0/16 to 127.{max(tried)}.0.0/16 is free; stop other local fabrics"
    )


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
    for number in range(RACKS):
        address = f"127.{block}.1.{number * HOSTS_PER_RACK + 1}:7801"
        lines += ["", "[[server]]", f'name = "server{number}"', f'address = "{address}"', 'memory = "64MiB"']
    for i, host in enumerate(hosts):
        lines += _link(host, racks[i // HOSTS_PER_RACK], "10Gbit/s")
    for rack in racks:
        for spine in spines:
            lines += _link(rack, spine, "10Gbit/s")
    return "\n".join(lines) + "\n"


def _link(one: str, other: str, rate: str) -> list[str]:
    return ["", "[[link]]", f'ends = ["{one}", "{other}"]', f'rate = "{rate}"']


def _is_free(block: int) -> bool:
    """Whether all daemons of the demo's fabric could listen in this block."""
    try:
        check_free(f"127.{block}.0.1:7700", socket.SOCK_STREAM, "the controller")
        for at in range(RACKS + SPINES):
            check_free(f"127.{block}.2.{at + 1}:7701", socket.SOCK_DGRAM, "a switch")
        for rack in range(RACKS):
            check_free(f"127.{block}.1.{rack * HOSTS_PER_RACK + 1}:7801", socket.SOCK_DGRAM, "a server")
    except FabricError:
        return False
    return True


_held: list[LoopbackBlock] = []
"""Blocks reserved until this process ends."""
