"""Cases that random traffic rarely covers: frames of every length, sparse members, opposite orders, a full queue."""

from __future__ import annotations

import os
import random

import cocotb
import numpy as np
from bench.driver import Driver
from bench.lines import Lines
from bench.packets import BFLOAT16, FLOAT32, PARTIAL, RESULT, WAITING, Fields, frame, packet_of
from bench_traffic import balanced, lease, to_bfloat16

RESENT, FIN = 0x10, 6


async def started(dut, **stalls: float) -> tuple[Lines, Driver]:
    """A device after reset, and its driver."""
    lines = Lines(dut, seed=int(os.environ.get("NETSUM_HW_SEED", 1)), **stalls)
    await lines.start()
    driver = Driver(lines)
    await driver.probe()
    return lines, driver


def members(job: int, ports: list[int], slots: int = 4, tree: int = 0) -> dict:
    """A root's lease for the workers at some ports."""
    children = [{"port": port, "ranks": 1 << port, "branch": port % 32} for port in ports]
    return lease(job, tree, 0, slots) | {"children": children}


def expected(values: dict[int, np.ndarray], ports: int, fmt: int) -> bytes:
    """The sum over all positions, -0 for absent contributions."""
    n = len(next(iter(values.values())))
    terms = [values.get(port, np.full(n, -0.0, np.float32)) for port in range(1 << (ports - 1).bit_length())]
    total = balanced(terms).astype(np.float32)
    return to_bfloat16(total).tobytes() if fmt == BFLOAT16 else total.tobytes()


def results(lines: Lines, port: int) -> dict[int, bytes]:
    """Payloads of the results that have left on a line, by vid."""
    packets = [packet_of(sent.data, port) for sent in lines.sent["net"][port]]
    return {Fields.of(p).vid: p[38:] for p in packets if Fields.of(p).kind == RESULT}


@cocotb.test()
async def frames_of_every_length(dut):
    """Other frames pass whatever their length, between sums; an aggregation packet too long for a buffer is dropped."""
    lines, driver = await started(dut, idle=0.05, stall=0.1)
    await driver.install(lease(1, 0, lines.ports))
    rnd = random.Random(2)
    lengths = [*range(14, 47), *range(47, 47 + 2 * lines.bytes), 1514, 9014]
    foreign = [[frame(bytes(9000), port, dscp=0)[:14] + rnd.randbytes(n - 14) for n in lengths] for port in (0, 1)]
    for port in (0, 1):
        for at, data in enumerate(foreign[port]):
            # A different EtherType, and occasionally an aggregation packet that is longer than a buffer.
            foreign[port][at] = data[:12] + b"\x86\xdd" + data[14:]
            lines.send(port, foreign[port][at])
            lines.send(port, foreign[port][at], line="sw")
            if len(data) < 46 or len(data) > 1514:
                lines.coverage.hit("frame: runt" if len(data) < 46 else "frame: jumbo")
            if at % 16 == 0:
                lines.send(port, frame(Fields(n_elems=2000).packet(bytes(8000)), port))
                lines.coverage.hit("frame: jumbo with a sum's header")
    for port in range(lines.ports):
        lines.send(port, frame(Fields(n_elems=1, vid=0).packet(np.float32(port).tobytes()), port))
        lines.send(port, frame(Fields(n_elems=352, vid=1).packet(bytes(1408)), port))
        lines.coverage.hit("frame: smallest sum")
        lines.coverage.hit("frame: largest sum")
    await lines.settle()
    for port in (0, 1):
        assert [sent.data for sent in lines.sent["sw"][port]] == foreign[port]
        back = [sent.data for sent in lines.sent["net"][port] if sent.data[12:14] == b"\x86\xdd"]
        assert back == foreign[port]
    for port in range(lines.ports):
        lines.sent["net"][port] = [s for s in lines.sent["net"][port] if s.data[12:14] == b"\x08\x00"]
        whole = np.float32(sum(range(lines.ports))).tobytes()
        assert results(lines, port) == {0: whole, 1: bytes(1408)}
    lines.coverage.save("lengths")


SIGN = {12: 0xFF, 13: 0xFF, 14: 0xFF, 15: 0xFC, 20: 0x3F, 21: 0xFF, 23: 0xFF, 42: 0xFF, 43: 0xCC, 45: 0xDF}
"""Bits that identify a contribution: EtherType, IPv4 without options, DSCP, no fragment, UDP, version, kind, format."""


@cocotb.test()
async def one_bit_from_a_sum(dut):
    """A contribution with one identifying bit changed passes as an ordinary frame and is not counted."""
    lines, driver = await started(dut)
    await driver.install(lease(1, 0, lines.ports))
    right = frame(Fields(n_elems=2).packet(np.float32([1, 2]).tobytes()), 0)
    strange = [
        right[:at] + bytes([right[at] ^ 1 << bit]) + right[at + 1 :]
        for at, bits in SIGN.items() for bit in range(8) if bits >> bit & 1
    ]  # fmt: skip
    before = await driver.outcomes()
    for data in strange:
        lines.send(0, data)
        lines.coverage.hit("frame: one bit from a sum")
    await lines.settle()
    assert [sent.data for sent in lines.sent["sw"][0]] == strange
    assert await driver.outcomes() == before
    for port in range(lines.ports):
        lines.send(port, frame(Fields(n_elems=2).packet(np.float32([1, 2]).tobytes()), port))
    await lines.settle()
    for port in range(lines.ports):
        assert results(lines, port) == {0: (np.float32([1, 2]) * lines.ports).tobytes()}
    lines.coverage.save("almost")


@cocotb.test()
async def sparse_members(dut):
    """Any subset of ports may be a job's; the other positions are -0, and workers at wrong ports are refused."""
    lines, driver = await started(dut, stall=0.1)
    rng = np.random.default_rng(4)
    last = lines.ports - 1
    for job, ports in enumerate([[last], [0, last], [1, 2], list(range(lines.ports))], start=1):
        await driver.install(members(job, ports))
        for vid, (n, fmt) in enumerate([(1, FLOAT32), (2, FLOAT32), (1, BFLOAT16), (6, BFLOAT16), (33, FLOAT32)]):
            values, payloads = {}, {}
            for port in ports:
                numbers = (rng.standard_normal(n) * 10.0 ** rng.integers(-3, 3, n)).astype(np.float32)
                if vid == 1:
                    numbers[:] = -0.0
                if fmt == BFLOAT16:
                    halves = to_bfloat16(numbers)
                    numbers, payloads[port] = (halves.astype(np.uint32) << 16).view(np.float32), halves.tobytes()
                else:
                    payloads[port] = numbers.tobytes()
                values[port] = numbers
            fields = Fields(job=job, vid=vid, n_elems=n, format=fmt)
            for port in range(lines.ports):
                lines.send(port, frame(fields.packet(payloads.get(port, bytes(n * (2 if fmt else 4)))), port))
            await lines.settle()
            for port in range(lines.ports):
                want = {vid: expected(values, lines.ports, fmt)} if port in ports else {}
                assert results(lines, port) == want, f"job {job}, vid {vid}, port {port}"
                lines.sent["net"][port].clear()
    lines.coverage.save("sparse")


@cocotb.test()
async def jobs_in_opposite_order(dut):
    """Port 0 sends job A before B, port 1 B before A: queues per port would deadlock."""
    lines, driver = await started(dut)
    for job in (1, 2):
        await driver.install(members(job, [0, 1]))
    for port, order in ((0, (1, 2)), (1, (2, 1))):
        for job in order:
            lines.send(port, frame(Fields(job=job, n_elems=2).packet(bytes(8)), port))
        lines.send(port, fin := frame(Fields(job=1, n_elems=0, kind=FIN).packet(b""), port))
        lines.coverage.hit("fin passed on")
    await lines.settle()
    for port in (0, 1):
        assert sorted(Fields.of(packet_of(s.data, port)).job for s in lines.sent["net"][port]) == [1, 2]
        assert len(lines.sent["sw"][port]) == 1
    assert lines.sent["sw"][1][0].data == fin
    lines.coverage.hit("jobs in opposite order")
    lines.coverage.save("opposite")


@cocotb.test()
async def a_full_queue(dut):
    """Workers that exceed their window while no sum can leave fill the queue of orders; another job is not affected."""
    lines, driver = await started(dut)
    await driver.install(members(1, [0], slots=4))
    await driver.install(members(2, [0, 1], slots=4))
    lines.blocked |= {("net", 0), ("net", 1)}
    many = 3 * driver.slots
    for vid in range(many):
        lines.send(0, frame(Fields(job=1, vid=vid, n_elems=2).packet(bytes(8)), 0))
        if vid % 4 == 3:
            lines.send(0, frame(Fields(job=1, vid=vid, n_elems=2, flags=RESENT).packet(bytes(8)), 0))
    await lines.run(40 * many)
    lines.blocked.clear()
    await lines.settle()
    lines.sent["net"][0].clear()
    # The line is free again: the next fragments of both jobs are summed, with the right bits.
    one = np.float32([1.5, -2.25])
    for port in (0, 1):
        lines.send(port, frame(Fields(job=2, n_elems=2).packet(one.tobytes()), port))
    await lines.settle()
    for port in (0, 1):
        assert results(lines, port) == {0: (one + one).tobytes()}
    lines.coverage.save("queue")


@cocotb.test()
async def answers_are_not_late(dut):
    """A sum requested again while its line is blocked, and whose slot gets another vid: it is dropped, never sent with
    other bits."""
    lines, driver = await started(dut)
    await driver.install(members(1, [0, 1], slots=2))
    for vid in range(2):
        for port in (0, 1):
            lines.send(port, frame(Fields(vid=vid, n_elems=352).packet(bytes([vid]) * 1408), port))
    await lines.settle()
    lines.blocked.add(("net", 0))
    for _ in range(8):
        lines.send(0, frame(Fields(vid=0, n_elems=352, flags=RESENT).packet(bytes(1408)), 0))
    await lines.run(12 * 200 * 64 // lines.width + 400)
    for vid in range(2, 5):
        for port in (0, 1):
            lines.send(port, frame(Fields(vid=vid, n_elems=352).packet(bytes([vid]) * 1408), port))
        await lines.run(600)
    lines.blocked.clear()
    await lines.settle()
    for port in (0, 1):
        for sent in lines.sent["net"][port]:
            packet = packet_of(sent.data, port)
            vid = Fields.of(packet).vid
            one = np.frombuffer(bytes([vid]) * 1408, np.float32)
            assert packet[38:] == (one + one).tobytes(), f"vid {vid} has bits of another"
    lines.coverage.save("late")


@cocotb.test()
async def a_rack_of_racks(dut):
    """Partials from below, one twice and one that asks; a result that disagrees, and the right one."""
    lines, driver = await started(dut)
    above = lines.ports - 1
    await driver.install(members(1, [0, 1]) | {"parent": above})
    values = np.float32([1.0, 2.0, 3.0])

    def partial(port: int, flags: int = 0) -> bytes:
        return frame(Fields(kind=PARTIAL, n_elems=3, flags=flags, chunk=5).packet(values.tobytes()), port)

    for data in (partial(0), partial(0), partial(0, RESENT)):
        lines.send(0, data)
    await lines.settle()
    told = [Fields.of(packet_of(sent.data, 0)) for sent in lines.sent["net"][0]]
    assert [(packet.kind, packet.missing) for packet in told] == [(WAITING, 2)], told
    lines.send(1, partial(1))
    await lines.settle()
    (up,) = (packet_of(sent.data, above) for sent in lines.sent["net"][above])
    assert Fields.of(up).kind == PARTIAL and up[38:] == (values + values).tobytes()
    for chunk in (6, 5):
        fields = Fields(kind=RESULT, n_elems=3, chunk=chunk)
        lines.send(above, frame(fields.packet((values * chunk).tobytes()), above))
    await lines.settle()
    for port in (0, 1):
        assert results(lines, port) == {0: (values * 5).tobytes()}
    lines.coverage.save("racks")
