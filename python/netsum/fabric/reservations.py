"""Names reserved between processes of this machine, so that two that start at once never take the same addresses."""

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

from netsum.fabric.errors import FabricError


def reserve(name: str) -> socket.socket | None:
    """Reserve `name` until the socket is closed or the process has ended; None while another process has it.

    A name is an abstract Unix address. The kernel keeps these per network namespace, like IP addresses, and frees them
    with the last process that holds the socket, however it ends.
    """
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind(f"\0netsum/{name}")
    except OSError:
        holder.close()
        return None
    return holder


def free_port() -> int:
    """A free TCP port of 127.0.0.1 that no other caller gets before this process has ended.

    Raises FabricError if there is none.
    """
    number, holder = _take_port()
    _held.append(holder)
    return number


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """As `free_port`, for the duration of a `with` block."""
    number, holder = _take_port()
    with holder:
        yield number


def _take_port() -> tuple[int, socket.socket]:
    # Linux assigns ports of one range to outgoing connections and to binds without a port: stay below it.
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    below = range(1024, first_given)
    for port in [*random.sample(below, min(100, len(below))), 0]:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            number = probe.getsockname()[1]
            holder = reserve(f"port-{number}")
            if holder is not None:
                return number, holder
    raise FabricError("no TCP port of 127.0.0.1 is free")


class LoopbackBlock:
    """The addresses 127.`number`.0.0/16, reserved for one fabric until `release` or the end of the process."""

    def __init__(self, number: int, holder: socket.socket) -> None:
        self.number, self._holder = number, holder

    @classmethod
    def take(cls, number: int) -> "LoopbackBlock | None":
        """The block, reserved; None if another process has reserved it."""
        holder = reserve(f"loopback-{number}")
        return None if holder is None else cls(number, holder)

    def release(self) -> None:
        self._holder.close()


_held: list[socket.socket] = []
"""Sockets kept open until this process ends."""
