"""The golden vectors: for every packet in, exactly the Rust switch's packets out, bit for bit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import cocotb
from bench.driver import Driver
from bench.lines import Lines
from bench.packets import HEADER, VERSION, Fields, frame, packet_of
from bench.registers import DROPS

FOLDER = Path(__file__).resolve().parents[2] / "vectors" / "panama"
FORMATS = {"float32 sum", "bfloat16 sum"}
CUT_SHORT = {"truncated_header", "payload_length"}
"""A frame that ends within its header has no length; the switch, which sees no frames, distinguishes these."""


def is_passed_on(packet: bytes) -> bool:
    """Whether the accelerator passes a packet to software: versions, kinds, flags and formats that it does not
    support."""
    if len(packet) < 4:
        return True
    version, kind, _, fmt = packet[:4]
    return version != VERSION or kind & 0xC0 != 0 or kind & 15 > 2 or fmt not in (0x00, 0x20)


def names() -> list[str]:
    """Files supported by this device, or the requested ones."""
    if wanted := os.environ.get("NETSUM_HW_VECTORS"):
        return wanted.split(",")
    lines = (FOLDER.parent / "digests.txt").read_text().splitlines()
    found = sorted(Path(line.split()[0]).stem for line in lines if line.startswith("panama/"))
    if missing := [name for name in found if not (FOLDER / f"{name}.json").exists()]:
        raise FileNotFoundError(f"vectors {', '.join(missing)} are not there; run `make vectors-check`")
    return found


def ports_needed(file: dict) -> int:
    """The highest port in a file, plus one."""
    return 1 + max(step["port"] for step in file["steps"] if "in" in step)


def describe(port: int, packet: bytes) -> str:
    """A packet as text, with the beginning of its payload."""
    return f"  port {port}: {Fields.of(packet)} {packet[HEADER.size : HEADER.size + 32].hex()}"


async def play(driver: Driver, lines: Lines, file: dict) -> int:
    """Play a file's steps; returns the number of packets sent."""
    packets, before = 0, await driver.outcomes()
    for number, step in enumerate(file["steps"]):
        what = f"{file['name']}, step {number}"
        if "install" in step:
            await driver.install(step["install"])
            continue
        packet, port = bytes.fromhex(step["in"]), step["port"]
        sent = frame(packet, port, ce=step["ce"])
        lines.send(port, sent)
        await lines.settle()
        packets += 1
        passed = [[f.data for f in line] for line in lines.sent["sw"]]
        out = {(port, packet_of(f.data, port)) for port, line in enumerate(lines.sent["net"]) for f in line}
        count = sum(map(len, lines.sent["net"]))
        for line in lines.sent["net"] + lines.sent["sw"]:
            line.clear()
        if is_passed_on(packet):
            assert out == set(), f"{what}: a packet for software made the accelerator send"
            assert passed[port] == [sent], f"{what}: not passed on unchanged"
            continue
        assert not any(passed), f"{what}: an aggregation packet was passed on"
        expected = [(s["port"], bytes.fromhex(s["packet"])) for s in step["out"]]
        if out != set(expected) or count != len(expected):
            wrong = [describe(*sent) for sent in sorted(out - set(expected))]
            missing = [describe(*sent) for sent in sorted(set(expected) - out)]
            text = "\n".join(["sent", *wrong, "instead of", *missing])
            raise AssertionError(f"{what}: {count} packets for {len(expected)}: {text}")
        after = await driver.outcomes()
        counted = {name for name in after if after[name] != before[name]}
        allowed = {name for name, drop in DROPS.items() if drop == step.get("drop")}
        if step.get("drop") in CUT_SHORT:
            allowed.add("broken_frame")
        assert len(counted) == 1 and counted <= allowed, f"{what}: counted {counted}, not {allowed}"
        before = after
    return packets


@cocotb.test()
async def vectors(dut):
    """Every file whose formats and ports the accelerator has."""
    lines = Lines(dut)
    await lines.start()
    total = 0
    for name in names():
        file = json.loads((FOLDER / f"{name}.json").read_text())
        if not set(file["formats"]) <= FORMATS or ports_needed(file) > lines.ports:
            dut._log.info("left out: %s (%s)", name, ", ".join(file["formats"]))
            continue
        driver = Driver(lines)
        await driver.probe()
        leases = [step["install"] for step in file["steps"] if "install" in step]
        packets = await play(driver, lines, file)
        total += packets
        for job, tree in {(lease["job"], lease["tree"]) for lease in leases}:
            await driver.remove(job, tree)
        dut._log.info("%s: %d packets", name, packets)
    lines.coverage.save("vectors")
    assert total > 0
