"""Addresses: parsing, whether they are free, and which process holds them."""

import contextlib
import errno
import ipaddress
import os
import socket
import struct
from pathlib import Path

from netsum.fabric.errors import FabricError

_TABLES = {socket.SOCK_STREAM: ("tcp", "tcp6"), socket.SOCK_DGRAM: ("udp", "udp6")}


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of `host:port`. Raises FabricError for another form."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise FabricError(f"'{address}' is not an address of the form 127.0.0.1:7700")
    return host.strip("[]"), int(port)


def family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def is_local(host: str) -> bool:
    """Whether `host` is an address of this machine."""
    try:
        with socket.socket(family(host), socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def check_free(address: str, kind: socket.SocketKind, what: str) -> None:
    """Raise FabricError if `what` could not listen at `address`, naming the process that holds it if visible."""
    host, port = split_address(address)
    with socket.socket(family(host), kind) as probe:
        if kind == socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                who = holder(host, port, kind) or "another process (run as root to see which)"
                raise FabricError(
                    f"{what}: address {address} is held by {who}; stop it, or change the address in the fabric file"
                ) from error
            reason = f"{error.strerror}; is it an address of this machine?"
            raise FabricError(f"{what}: cannot bind {address}: {reason}") from error


def holder(host: str, port: int, kind: socket.SocketKind) -> str | None:
    """The process that listens at an address, also by a socket of all addresses: "NAME (process ID)".

    None if there is none or it is not visible.
    """
    inodes = {inode for table in _TABLES[kind] for inode in _listeners(Path("/proc/net") / table, host, port)}
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for folder in Path("/proc").glob("[0-9]*"):
        if wanted & _open_files(folder):
            with contextlib.suppress(OSError):
                return f"{(folder / 'comm').read_text().strip()} (process {folder.name})"
    return None


def _open_files(process: Path) -> set[str]:
    """The targets of a process's file descriptors; unreadable ones and those closed meanwhile are omitted."""
    names = set()
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                names.add(os.readlink(descriptor))
    return names


def _listeners(table: Path, host: str, port: int) -> list[str]:
    """Inodes of the unconnected sockets of a /proc/net table that are bound to `port` of `host` or of all addresses."""
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []
    bound = {f"{address}:{port:04X}" for address in _table_addresses(host)}
    return [row[9] for row in rows if row[1] in bound and row[2].endswith(":0000")]


def _table_addresses(host: str) -> set[str]:
    """How /proc/net writes `host` and the addresses that stand for all: 32-bit words of the machine's byte order."""
    numeric = str(socket.getaddrinfo(host, None)[0][4][0])
    mapped = [f"::ffff:{numeric}"] if ":" not in numeric else []
    addresses = [ipaddress.ip_address(text) for text in (numeric, *mapped, "0.0.0.0", "::")]
    words = (struct.unpack(f"={len(address.packed) // 4}I", address.packed) for address in addresses)
    return {"".join(f"{word:08X}" for word in each) for each in words}
