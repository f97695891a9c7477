"""Checks of this machine: kernel settings and addresses."""

import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from netsum.doctor.check import Check, fail, ok, warn
from netsum.fabric.description import Description
from netsum.fabric.sockets import family, is_local, split_address
from netsum.reports import ControllerStatus

RECEIVE_BUFFER = 4 << 20
"""Bytes: holds a window of 512 fragments from two children with the kernel's overhead."""
PLAIN_MTU = 1500
_UDP_SEGMENT, _UDP_GRO, _IP_MTU = 103, 104, 14
_ECT0 = 2
_LATE_S = 0.020


@dataclass(frozen=True)
class Places:
    """Where a fabric says that its machines are: addresses without ports, by name."""

    fabric: str
    hosts: dict[str, str]
    switches: dict[str, str]

    @classmethod
    def described(cls, fabric: Description) -> Self:
        """Those of a fabric file."""
        hosts = {host.name: host.address for host in fabric.hosts}
        return cls(fabric.name, hosts, {each.name: split_address(each.address)[0] for each in fabric.switches})

    @classmethod
    def reported(cls, status: ControllerStatus) -> Self:
        """Those of a running controller."""
        hosts = {host["name"]: host["address"] for host in status["hosts"]}
        return cls(status["fabric"], hosts, {s["name"]: split_address(s["address"])[0] for s in status["switches"]})

    def addresses(self) -> list[str]:
        """All addresses, each once."""
        return list(dict.fromkeys([*self.hosts.values(), *self.switches.values()]))


def machine_checks(places: Places | None) -> list[Check]:
    """All checks that need no running fabric. `None`: what is in the fabric is not known."""
    checks = [
        receive_buffer(),
        offload("UDP segmentation", _UDP_SEGMENT, "sends one packet per system call"),
        offload("UDP receive coalescing", _UDP_GRO, "receives one packet per system call"),
        timers(),
    ]
    if places is None:
        return checks
    everywhere = places.addresses()
    here = [address for address in everywhere if is_local(address)]
    return [*checks, *([ecn(here), *mtus(here[0], everywhere)] if here else []), ours(places, here)]


def ours(places: Places, addresses: list[str]) -> Check:
    """Which of the fabric's hosts this machine is. addresses: those of the fabric that it has."""
    hosts = [name for name, address in places.hosts.items() if address in addresses]
    if hosts:
        return ok("hosts on this machine", ", ".join(hosts))
    return warn(
        "hosts on this machine",
        f"none of the {len(places.hosts)} hosts of '{places.fabric}' has an address of this machine",
        "workers here would need NETSUM_HOST and an address in the fabric file",
    )


def receive_buffer() -> Check:
    """The receive buffer a switch can get: packets beyond it are lost and resent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        so_rcvbufforce = 33
        try:
            probe.setsockopt(socket.SOL_SOCKET, so_rcvbufforce, RECEIVE_BUFFER)
        except PermissionError:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        # The kernel doubles the requested size, for its own overhead, and reports the double.
        granted = probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
    limit = Path("/proc/sys/net/core/rmem_max").read_text().strip()
    found = f"{granted // 1024} KiB granted (net.core.rmem_max {limit})"
    if granted >= RECEIVE_BUFFER:
        return ok("socket receive buffer", found)
    return warn(
        "socket receive buffer",
        found,
        f"as root: sysctl -w net.core.rmem_max={RECEIVE_BUFFER}; until then windows are smaller",
    )


def offload(name: str, option: int, consequence: str) -> Check:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_UDP, option, 1)
        except OSError as error:
            return warn(name, f"the kernel refuses it ({error.strerror})", f"works without, but {consequence}")
    return ok(name, "supported")


def timers() -> Check:
    """How late this machine wakes a sleeping thread, which delays resends."""
    worst = 0.0
    for _ in range(50):
        began = time.monotonic()
        time.sleep(0.001)
        worst = max(worst, time.monotonic() - began - 0.001)
    found = f"a sleep of 1 ms ends up to {worst * 1e3:.1f} ms late"
    if worst < _LATE_S:
        return ok("timers", found)
    return warn("timers", found, "the machine is overloaded: pauses and resends will take longer")


def ecn(addresses: list[str]) -> Check:
    """Whether ECN bits are preserved between two addresses of the fabric on this machine."""
    source, target = addresses[0], addresses[-1]
    if family(source) != socket.AF_INET or family(target) != socket.AF_INET:
        return warn("ECN marks", "not looked at for IPv6", "")
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as two,
    ):
        one.bind((source, 0))
        one.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _ECT0)
        two.bind((target, 0))
        two.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        two.settimeout(1.0)
        try:
            one.sendto(b"netsum", two.getsockname())
            _, ancillary, _, _ = two.recvmsg(64, socket.CMSG_SPACE(4))
        except OSError as error:
            reason = error.strerror or "no packet came in 1 s"
            return fail("ECN marks", f"UDP from {source} to {target}: {reason}", "allow UDP between these addresses")
    bits = next((data[0] & 3 for level, kind, data in ancillary if (level, kind) == (0, socket.IP_TOS)), None)
    if bits == _ECT0:
        return ok("ECN marks", f"ECT(0) passes from {source} to {target}")
    return warn(
        "ECN marks", f"ECT(0) arrives as {bits}", "congestion is then seen by loss alone; look for rules that reset TOS"
    )


def mtus(source: str, targets: list[str]) -> list[Check]:
    """The largest packet that leaves this machine's address for each of the others, which may be on other machines."""
    sizes: dict[int, list[str]] = {}
    for target in targets:
        if family(target) != family(source):
            continue
        with socket.socket(family(target), socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((source, 0))
                probe.connect((target, 9))
                size = struct.unpack("i", probe.getsockopt(socket.IPPROTO_IP, _IP_MTU, 4))[0]
            except OSError as error:
                return [fail("MTU", f"{target}: {error.strerror}", "give the machine a route to this address")]
        sizes.setdefault(size, []).append(target)
    return [_mtu(size, targets) for size, targets in sizes.items()]


def _mtu(size: int, targets: list[str]) -> Check:
    found = f"{size} bytes to {', '.join(targets[:4])}" + (f" and {len(targets) - 4} more" if len(targets) > 4 else "")
    if size >= PLAIN_MTU:
        return ok("MTU", found)
    return fail(
        "MTU",
        found,
        f"netsum's packets need {PLAIN_MTU}: raise the interface's MTU (`ip link set DEV mtu {PLAIN_MTU}`)",
    )
