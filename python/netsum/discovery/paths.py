"""Which way probes take, and who clears their ECN bits.

A probe is a datagram with ECT(0) and a small time to live. The machine at which it expires returns the packet's header
as it arrived there (RFC 792, RFC 1812), so that a change of its ECN bits is seen hop by hop, as tracebox does.
"""

import contextlib
import socket
import struct
import time

from netsum.discovery.facts import Hop, Trace
from netsum.fabric.errors import FabricError

ECT0 = 2
DSCP = 56
"""As packets of jobs."""
HOPS_MAX = 12
FIRST_PORT = 33434
"""As traceroute: nobody listens there, so that the last machine answers, too."""
WAIT_S = 0.5
ATTEMPTS = 4
_EXCEEDED, _UNREACHABLE = 11, 3


def trace(destination: str, source: str | None, flow: int) -> Trace:
    """Follow the path of one flow to `destination`. flow: another number, another source port, perhaps another path.

    Raises FabricError without the right to open raw sockets.
    """
    try:
        answers = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    except PermissionError as error:
        raise FabricError(f"probes of paths need root or CAP_NET_RAW: {error}") from error
    hops: list[Hop | None] = []
    with answers, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probes:
        probes.bind((source or "", 0 if flow == 0 else _flow_port(source, flow)))
        probes.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, DSCP << 2 | ECT0)
        own_port = probes.getsockname()[1]
        for ttl in range(1, HOPS_MAX + 1):
            hop, last = _probe(probes, answers, own_port, destination, ttl)
            hops.append(hop)
            if last:
                return Trace(destination, tuple(hops))
    while hops and hops[-1] is None:
        hops.pop()
    return Trace(destination, tuple(hops))


def _flow_port(source: str | None, flow: int) -> int:
    """A free port that depends on the flow."""
    for port in range(40_000 + 97 * flow, 40_000 + 97 * flow + 97):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((source or "", port))
            return port
    return 0


def _probe(
    probes: socket.socket, answers: socket.socket, own_port: int, destination: str, ttl: int
) -> tuple[Hop | None, bool]:
    """The machine `ttl` hops away, and whether it is the destination."""
    probes.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
    port = FIRST_PORT + ttl
    for attempt in range(ATTEMPTS):
        with contextlib.suppress(OSError):
            probes.sendto(b"netsum path", (destination, port))
        # Machines limit how many such answers they give in a second.
        deadline = time.monotonic() + WAIT_S * (attempt + 1)
        while (left := deadline - time.monotonic()) > 0:
            answers.settimeout(left)
            try:
                packet, (sender, _) = answers.recvfrom(2048)
            except (TimeoutError, BlockingIOError):
                break
            found = read_answer(packet, own_port, port, destination)
            if found is not None:
                ecn, last = found
                return Hop(sender, ecn), last
    return None, False


def read_answer(packet: bytes, own_port: int, port: int, destination: str) -> tuple[int, bool] | None:
    """The ECN bits of the probe that a packet of ICMP quotes, and whether the destination answers; None: not ours."""
    inner = _after_header(packet, socket.IPPROTO_ICMP)
    if inner is None or len(inner) < 8 or inner[0] not in (_EXCEEDED, _UNREACHABLE):
        return None
    quoted = inner[8:]
    datagram = _after_header(quoted, socket.IPPROTO_UDP)
    if datagram is None or len(datagram) < 4:
        return None
    if struct.unpack("!HH", datagram[:4]) != (own_port, port) or quoted[16:20] != socket.inet_aton(destination):
        return None
    return quoted[1] & 3, inner[0] == _UNREACHABLE


def _after_header(packet: bytes, protocol: int) -> bytes | None:
    """What follows the header of an IPv4 packet of a protocol."""
    if len(packet) < 20 or packet[0] >> 4 != 4 or packet[9] != protocol:
        return None
    length = (packet[0] & 15) * 4
    return packet[length:] if 20 <= length <= len(packet) else None
