"""Traffic: many jobs under stalls, loss and foreign frames; throughput and latency in cycles."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path

import cocotb
import numpy as np
from bench.driver import Driver
from bench.lines import Lines
from bench.packets import BFLOAT16, FLOAT32, HEADER, RESULT, SWITCH_MAC, Fields, frame, packet_of, worker_mac

RESENT = 0x10


def lease(job: int, tree: int, children: int, slots: int = 4) -> dict:
    """A root's lease in the vectors' format."""
    return {
        "job": job, "epoch": 0x0506, "tree": tree, "parent": None, "slots": slots, "fragment_bytes": 1408,
        "children": [{"port": port, "ranks": 1 << port, "branch": port} for port in range(children)],
    }  # fmt: skip


def balanced(terms: list[np.ndarray]) -> np.ndarray:
    """Sum of float32 arrays in the order of additions: the right half of 2**n positions joins the left."""
    if len(terms) == 1:
        return terms[0]
    half = 1 << (len(terms) - 1).bit_length() - 1
    return balanced(terms[:half]) + balanced(terms[half:])


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round to nearest even; no NaN comes here."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


class Job:
    """A tree's workers: their packets, and the expected results."""

    def __init__(self, at: dict, vids: int, rng: np.random.Generator, sizes: list[int]):
        self.lease, self.vids = at, vids
        self.children = len(at["children"])
        self.n = [int(rng.choice(sizes)) for _ in range(vids)]
        self.format = [BFLOAT16 if rng.random() < 0.3 else FLOAT32 for _ in range(vids)]
        self.payload, self.sums = [], []
        for n, fmt in zip(self.n, self.format, strict=True):
            values = [
                (rng.standard_normal(n) * 10.0 ** rng.integers(-3, 3)).astype(np.float32) for _ in range(self.children)
            ]
            if fmt == BFLOAT16:
                halves = [to_bfloat16(v) for v in values]
                wide = [(h.astype(np.uint32) << 16).view(np.float32) for h in halves]
                self.payload.append([h.tobytes() for h in halves])
                self.sums.append(to_bfloat16(balanced(wide)).tobytes())
            else:
                self.payload.append([v.tobytes() for v in values])
                self.sums.append(balanced(values).astype(np.float32).tobytes())
        self.next = [0] * self.children
        self.have: list[set[int]] = [set() for _ in range(self.children)]
        self.sent_at = [[-1] * vids for _ in range(self.children)]

    def fields(self, vid: int, flags: int = 0) -> Fields:
        """Header of a contribution."""
        return Fields(self.lease["job"], vid, self.n[vid], 0, flags, self.lease["tree"], self.format[vid], 7 * vid)

    def base(self, child: int) -> int:
        """The lowest vid without a result."""
        return next((v for v in range(self.vids) if v not in self.have[child]), self.vids)

    def take(self, child: int, packet: bytes) -> None:
        """Check a result; its bits must be right, however often it arrives."""
        fields, payload = Fields.of(packet), packet[HEADER.size :]
        if fields.kind != RESULT:
            return
        assert fields.n_elems == self.n[fields.vid] and fields.chunk == 7 * fields.vid
        right = self.sums[fields.vid]
        wrong = [at for at in range(0, len(right), 2) if payload[at : at + 2] != right[at : at + 2]]
        assert payload == right, f"job {fields.job}, vid {fields.vid}, {fields}: wrong at {wrong[:9]} of {len(right)}"
        self.have[child].add(fields.vid)

    @property
    def done(self) -> bool:
        """Every child has every result."""
        return all(len(have) == self.vids for have in self.have)


def foreign(rng: random.Random, port: int) -> bytes:
    """A frame that is not an aggregation packet: any length, DSCP, protocol."""
    length = rng.choice([60, 64, 65, 127, 400, 1514, rng.randrange(60, 1514)])
    body = rng.randbytes(length - 42)
    if rng.random() < 0.5:
        return frame(body, port, dscp=rng.choice([0, 46, 57]))
    return (
        SWITCH_MAC + worker_mac(port) + rng.choice([b"\x08\x06", b"\x86\xdd", b"\x81\x00"]) + rng.randbytes(length - 14)
    )


@cocotb.test()
async def random_traffic(dut):
    """Three trees of two jobs, lost and repeated packets, foreign and broken frames, stalls everywhere."""
    seed = int(os.environ.get("NETSUM_HW_SEED", 1))
    rng, rnd = np.random.default_rng(seed), random.Random(seed)
    lines = Lines(dut, seed=seed, idle=0.15, stall=0.2)
    await lines.start()
    driver = Driver(lines)
    await driver.probe()
    ports = lines.ports
    jobs = [
        Job(lease(1, 0, ports), 24, rng, [1, 2, 3, 5, 33]),
        Job(lease(1, 1, ports), 24, rng, [64, 351, 352]),
        Job(lease(6, 0, 3), 24, rng, [1, 7, 128]),
    ]
    for job in jobs:
        await driver.install(job.lease)
    start = await driver.outcomes()
    passed: list[list[bytes]] = [[] for _ in range(ports)]
    back: list[list[bytes]] = [[] for _ in range(ports)]
    got_foreign: list[list[bytes]] = [[] for _ in range(ports)]
    got_back: list[list[bytes]] = [[] for _ in range(ports)]
    coverage: Counter[str] = Counter()
    while not all(job.done for job in jobs):
        assert lines.cycle < 400_000, "not done: a packet or a result was lost for good"
        for port in range(ports):
            if len(lines.sources["net"][port].frames) < 2:
                offer(lines, rnd, jobs, port, passed, coverage)
            if len(lines.sources["sw"][port].frames) < 2 and rnd.random() < 0.02:
                back[port].append(foreign(rnd, port))
                lines.send(port, back[port][-1], line="sw")
        await lines.run(16)
        collect(lines, jobs, got_foreign, got_back)
    lines.idle = lines.stall = 0.0
    await lines.settle()
    collect(lines, jobs, got_foreign, got_back)
    assert got_foreign == passed, "foreign frames must pass unchanged and in order"
    assert got_back == back, "frames of the switch chip must pass unchanged and in order"
    counted = await driver.outcomes()
    counted = {name: counted[name] - start[name] for name in counted}
    for name in (
        "contribution",
        "released",
        "answered",
        "waiting",
        "duplicate",
        "broken_frame",
        "no_lease",
        "beyond_window",
    ):
        coverage[f"outcome {name}"] = counted[name]
    released = sum(job.vids for job in jobs)
    assert counted["released"] == released, f"{counted['released']} sums released for {released} fragments"
    report(dut, "random_traffic", coverage)
    lines.coverage.save("random_traffic")
    assert all(coverage.values()), f"never met: {[name for name, n in coverage.items() if n == 0]}"


def offer(
    lines: Lines, rnd: random.Random, jobs: list[Job], port: int, passed: list[list[bytes]], coverage: Counter[str]
):
    """A random frame for one line: a contribution, a resend, or another frame."""
    for name in ("frame lost", "frame repeated", "contribution resent", "foreign frame", "broken frame", "unknown job",
                 "ahead of the window", "odd bfloat16", "largest fragment", "smallest fragment", "CE"):  # fmt: skip
        coverage[name] += 0
    kind = rnd.random()
    if kind < 0.15:
        passed[port].append(foreign(rnd, port))
        coverage["foreign frame"] += 1
        lines.send(port, passed[port][-1])
        return
    member = [job for job in jobs if port < job.children and not job.done]
    if not member:
        return
    job = rnd.choice(member)
    base = job.base(port)
    if base == job.vids:
        return
    if kind < 0.2:
        strange = (
            Fields(job=99, n_elems=2).packet(bytes(8))
            if rnd.random() < 0.5
            else job.fields(base).packet(job.payload[base][port])
        )
        coverage["unknown job" if strange[4:8] == bytes([0, 0, 0, 99]) else "broken frame"] += 1
        lines.send(port, frame(strange, port), error=strange[4:8] != bytes([0, 0, 0, 99]))
        return
    if kind < 0.23 and base + 6 < job.vids:
        coverage["ahead of the window"] += 1
        vid = base + 6
        lines.send(port, frame(job.fields(vid).packet(job.payload[vid][port]), port))
        return
    vid, flags = job.next[port], 0
    if vid >= min(base + 4, job.vids):
        vid, flags = rnd.choice([v for v in range(base, min(base + 4, job.vids))]), RESENT
        if lines.cycle - job.sent_at[port][vid] < 600:
            return
        coverage["contribution resent"] += 1
    else:
        job.next[port] += 1
    job.sent_at[port][vid] = lines.cycle
    if rnd.random() < 0.08:
        coverage["frame lost"] += 1
        return
    ce = rnd.random() < 0.2
    coverage["CE"] += ce
    coverage["largest fragment"] += job.n[vid] == 352
    coverage["smallest fragment"] += job.n[vid] == 1
    coverage["odd bfloat16"] += job.format[vid] == BFLOAT16 and job.n[vid] % 2
    sent = frame(job.fields(vid, flags).packet(job.payload[vid][port]), port, ce=ce)
    for _ in range(2 if rnd.random() < 0.05 else 1):
        lines.send(port, sent)
    coverage["frame repeated"] += rnd.random() < 0.05


def collect(lines: Lines, jobs: list[Job], got_foreign: list[list[bytes]], got_back: list[list[bytes]]) -> None:
    """Sort the received frames: results to their jobs, the rest by line."""
    by_key = {(job.lease["job"], job.lease["tree"]): job for job in jobs}
    for port in range(lines.ports):
        got_foreign[port] += [f.data for f in lines.sent["sw"][port]]
        for sent in lines.sent["net"][port]:
            data = sent.data
            if data[14:16] == b"\x45\xe2" and data[:6] == worker_mac(port) and data[42:43] == b"\x11":
                packet = packet_of(data, port)
                fields = Fields.of(packet)
                by_key[fields.job, fields.tree].take(port, packet)
            else:
                got_back[port].append(data)
        lines.sent["sw"][port].clear()
        lines.sent["net"][port].clear()


@cocotb.test()
async def throughput(dut):
    """Full fragments back to back on every line: results leave without a cycle between them."""
    lines = Lines(dut)
    await lines.start()
    driver = Driver(lines)
    await driver.probe()
    rng = np.random.default_rng(3)
    job = Job(lease(1, 0, lines.ports, slots=16), 20, rng, [352])
    job.format = [FLOAT32] * job.vids
    for vid in range(job.vids):
        values = [rng.standard_normal(352).astype(np.float32) for _ in range(job.children)]
        job.payload[vid] = [v.tobytes() for v in values]
        job.sums[vid] = balanced(values).tobytes()
    await driver.install(job.lease)
    for vid in range(job.vids):
        for port in range(lines.ports):
            lines.send(port, frame(job.fields(vid).packet(job.payload[vid][port]), port))
    await lines.settle()
    words = -(-1488 // lines.bytes)
    for port in range(lines.ports):
        inputs, results = lines.sources["net"][port].done, lines.sent["net"][port]
        assert len(results) == job.vids
        for sent in results:
            job.take(port, packet_of(sent.data, port))
        took = inputs[-1].last - inputs[0].first + 1
        steady = results[-1].last - results[4].last
        report(dut, f"throughput-{port}", {
            "words per frame": words, "cycles per frame in": took / job.vids,
            "cycles per result": steady / (job.vids - 5),
        })  # fmt: skip
        assert took == words * job.vids, f"port {port}: {took - words * job.vids} cycles lost at the input"
        assert steady == words * (job.vids - 5), f"port {port}: results lose {steady - words * (job.vids - 5)} cycles"
    lines.coverage.save("throughput")
    assert job.done


@cocotb.test()
async def latency(dut):
    """Cycles from the first word in to the first word out: foreign frames, and sums."""
    lines = Lines(dut)
    await lines.start()
    driver = Driver(lines)
    await driver.probe()
    figures = {}
    for length in (60, 1514):
        lines.send(0, frame(bytes(length - 42), 0, dscp=0))
        await lines.settle()
        figures[f"foreign frame of {length} B, first in to first out"] = (
            lines.sent["sw"][0].pop().first - lines.sources["net"][0].done[-1].first
        )
    await driver.install(lease(1, 0, lines.ports))
    for vid, n in enumerate((2, 32, 352)):
        for port in range(lines.ports):
            fields = Fields(job=1, vid=vid, n_elems=n)
            lines.send(port, frame(fields.packet(bytes(4 * n)), port))
        await lines.settle()
        last = max(lines.sources["net"][port].done[-1].last for port in range(lines.ports))
        first = lines.sources["net"][0].done[-1].first
        out = lines.sent["net"][0].pop().first
        figures[f"sum of {n} elements, last in to first out"] = out - last
        figures[f"sum of {n} elements, first in to first out"] = out - first
    report(dut, "latency", figures)
    lines.coverage.save("latency")
    assert len({figures[name] for name in figures if name.startswith("foreign")}) == 1, "bypass takes a fixed time"


@cocotb.test()
async def nobody_blocks(dut):
    """A line that takes nothing stops sums to it, but no other traffic, and nothing is lost."""
    lines = Lines(dut)
    await lines.start()
    driver = Driver(lines)
    await driver.probe()
    job = Job(lease(1, 0, lines.ports, slots=16), 16, np.random.default_rng(5), [352])
    await driver.install(job.lease)
    lines.blocked.add(("net", 1))
    for vid in range(16):
        for port in range(lines.ports):
            lines.send(port, frame(job.fields(vid).packet(job.payload[vid][port]), port))
    foreign_frames = [[frame(bytes([i]) * 300, port, dscp=0) for i in range(12)] for port in range(lines.ports)]
    for port in range(lines.ports):
        for data in foreign_frames[port]:
            lines.send(port, data)
    await lines.run(16 * 400)
    for port in range(lines.ports):
        assert [f.data for f in lines.sent["sw"][port]] == foreign_frames[port], f"port {port} is held up"
    assert not lines.sent["net"][1] and len(lines.sent["net"][0]) < 16
    lines.blocked.clear()
    await lines.settle()
    for port in range(lines.ports):
        assert [Fields.of(packet_of(f.data, port)).vid for f in lines.sent["net"][port]] == list(range(16))
        for sent in lines.sent["net"][port]:
            job.take(port, packet_of(sent.data, port))
    lines.coverage.save("nobody_blocks")


def report(dut, name: str, figures: dict) -> None:
    """Logs figures, and adds them to the run's file."""
    for key, value in figures.items():
        dut._log.info("%s: %s: %s", name, key, value)
    path = Path(f"figures-{name}.json")
    path.write_text(json.dumps(figures, indent=1))
