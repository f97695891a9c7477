"""Frames and packets as the benches write and read them, from docs/protocol-panama.md; no code of the switch."""

from __future__ import annotations

import struct
from dataclasses import dataclass

HEADER = struct.Struct(">BBBBIIIHHHIQI")
"""version, flags and kind, tree, format, job, vid, chunk, epoch, window_cap, n_elems, marks, missing, reserved"""

VERSION = 0x11
CONTRIBUTION, PARTIAL, RESULT, WAITING, MISMATCH, ACKNOWLEDGEMENT, FIN = range(7)
FLOAT32, BFLOAT16 = 0x00, 0x20
SWITCH_MAC, SWITCH_IP, UDP_PORT = bytes.fromhex("02005e000001"), bytes([10, 0, 0, 1]), 7701


def worker_mac(port: int) -> bytes:
    """Address of the worker behind a port."""
    return bytes.fromhex("02005e0001") + bytes([port])


def worker_ip(port: int) -> bytes:
    """Address of the worker behind a port."""
    return bytes([10, 0, 1, port])


def ones_sum(data: bytes) -> int:
    """Ones' complement sum of 16-bit words, of an even number of bytes."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def network(to: bytes, src: bytes, to_ip: bytes, src_ip: bytes, length: int, ident: int, tos: int) -> bytes:
    """Ethernet and IPv4 headers of a UDP datagram of `length` bytes with its IP header."""
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, tos, length, ident, 0x4000, 64, 17, 0, src_ip, to_ip)
    return to + src + b"\x08\x00" + ip[:10] + struct.pack(">H", 0xFFFF ^ ones_sum(ip)) + ip[12:]


def frame(packet: bytes, port: int, *, ce: bool = False, dscp: int = 56, source_port: int = 40000) -> bytes:
    """A worker's frame with `packet` after UDP."""
    tos = dscp << 2 | (3 if ce else 2)
    head = network(SWITCH_MAC, worker_mac(port), SWITCH_IP, worker_ip(port), 28 + len(packet), 0x1234, tos)
    return head + struct.pack(">HHHH", source_port, UDP_PORT, 8 + len(packet), 0xBEEF) + packet


def template(port: int) -> bytes:
    """First 44 bytes of frames to a worker: no lengths, no identification; the checksum as if these were 0."""
    head = network(worker_mac(port), SWITCH_MAC, worker_ip(port), SWITCH_IP, 0, 0, 56 << 2 | 2)
    return head + struct.pack(">HHHHH", UDP_PORT, 40000, 0, 0, 0)


def packet_of(sent: bytes, port: int) -> bytes:
    """The packet in a frame to a worker; asserts everything before it."""
    assert sent[:6] == worker_mac(port) and sent[6:14] == SWITCH_MAC + b"\x08\x00", sent[:14].hex()
    ip, udp = sent[14:34], sent[34:42]
    assert ip[:2] == b"\x45\xe2" and ip[12:] == SWITCH_IP + worker_ip(port), ip.hex()
    assert ones_sum(ip) == 0xFFFF, f"IP checksum: {ip.hex()}"
    assert int.from_bytes(ip[2:4], "big") == len(sent) - 14, f"IP length: {ip.hex()}"
    assert ip[6:8] == b"\x40\x00", "an identification that stands for nothing needs don't fragment"
    assert struct.unpack(">HHHH", udp) == (UDP_PORT, 40000, len(sent) - 34, 0), udp.hex()
    return sent[42:]


@dataclass
class Fields:
    """A header, to build packets with."""

    job: int = 1
    vid: int = 0
    n_elems: int = 2
    kind: int = CONTRIBUTION
    flags: int = 0
    tree: int = 0
    format: int = FLOAT32
    chunk: int = 0
    epoch: int = 0x0506
    window_cap: int = 0xFFFF
    marks: int = 0
    missing: int = 0

    def packet(self, payload: bytes) -> bytes:
        """Header and payload."""
        head = HEADER.pack(
            VERSION, self.flags | self.kind, self.tree, self.format, self.job, self.vid, self.chunk, self.epoch,
            self.window_cap, self.n_elems, self.marks, self.missing, 0,
        )  # fmt: skip
        return head + payload

    @staticmethod
    def of(packet: bytes) -> Fields:
        """Header of a packet."""
        _, kind, tree, fmt, job, vid, chunk, epoch, cap, n, marks, missing, _ = HEADER.unpack_from(packet)
        return Fields(job, vid, n, kind & 15, kind & 0xF0, tree, fmt, chunk, epoch, cap, marks, missing)
