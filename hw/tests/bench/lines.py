"""All lines of an accelerator under test, driven and monitored cycle by cycle."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from .coverage import Coverage


@dataclass
class Frame:
    """A transferred frame, and the cycles of its first and last word."""

    data: bytes
    first: int
    last: int
    error: bool = False


@dataclass
class Source:
    """Frames waiting on one input line."""

    frames: deque[tuple[bytes, bool]] = field(default_factory=deque)
    at: int = 0
    offered: bool = False
    first: int = 0
    done: list[Frame] = field(default_factory=list)


def known(value, mask: int, size: int = 1) -> int:
    """A vector as a number; bits of a piece (`size` bits) whose bit in `mask` is set must not be X, others read as
    0."""
    if value.is_resolvable:
        return int(value.to_unsigned())
    pieces = [str(value)[::-1][size * i : size * (i + 1)][::-1] for i in range(len(value) // size)]
    return sum(int(piece, 2) << size * i for i, piece in enumerate(pieces) if mask >> i & 1)


class Lines:
    """Every stream of the device: `net` towards the wires, `sw` towards the switch chip, both ways.

    idle: chance that a source pauses before a word; stall: chance that a sink takes none in a cycle.
    """

    def __init__(self, dut, *, seed: int = 1, idle: float = 0.0, stall: float = 0.0):
        self.dut = dut
        self.ports = int(dut.PORTS.value)
        self.width = int(dut.W.value)
        self.bytes = self.width // 8
        self.random = random.Random(seed)
        self.idle, self.stall = idle, stall
        self.blocked: set[tuple[str, int]] = set()
        self.cycle = 0
        self.sources = {name: [Source() for _ in range(self.ports)] for name in ("net", "sw")}
        self.sent = {name: [[] for _ in range(self.ports)] for name in ("net", "sw")}
        self.partial: dict[tuple[str, int], tuple[bytearray, int]] = {}
        self.quiet = 0
        self.coverage = Coverage(dut)

    async def start(self) -> None:
        """Clock and reset."""
        dut = self.dut
        for name in ("net", "sw"):
            for signal in ("tdata", "tkeep", "tlast", "tvalid"):
                getattr(dut, f"s_{name}_{signal}").value = 0
            getattr(dut, f"m_{name}_tready").value = 0
        dut.s_net_terror.value = 0
        for signal in ("awvalid", "wvalid", "arvalid", "awaddr", "wdata", "wstrb", "araddr"):
            getattr(dut, f"s_axil_{signal}").value = 0
        dut.s_axil_bready.value = 1
        dut.s_axil_rready.value = 1
        dut.rst_n.value = 0
        Clock(dut.clk, 5, "ns").start()
        await ClockCycles(dut.clk, 96)
        dut.rst_n.value = 1
        await self.run(8)

    def send(self, port: int, data: bytes, *, line: str = "net", error: bool = False) -> None:
        """Queues a frame on an input line."""
        self.sources[line][port].frames.append((data, error))

    async def run(self, cycles: int) -> None:
        """Run the clock."""
        for _ in range(cycles):
            await self.step()

    async def settle(self, quiet: int = 160, limit: int = 200_000) -> None:
        """Run until no line has transferred a word for `quiet` cycles."""
        self.quiet = 0
        for _ in range(limit):
            await self.step()
            if self.quiet >= quiet:
                return
        raise AssertionError(f"lines still busy after {limit} cycles")

    async def step(self) -> None:
        """One clock cycle: what was transferred at this edge, then what is offered at the next."""
        await RisingEdge(self.dut.clk)
        self.cycle += 1
        self.quiet += 1
        self.coverage.sample()
        for name in ("net", "sw"):
            self._watch(name)
            self._drive(name)

    def _watch(self, name: str) -> None:
        dut = self.dut
        valid = int(getattr(dut, f"m_{name}_tvalid").value)
        ready_signal = getattr(dut, f"m_{name}_tready")
        moved = valid & int(ready_signal.value)
        if valid:
            self.quiet = 0
        if valid & ~moved:
            self.coverage.counts[f"{name} out: stalled"] += 1
        if moved:
            lanes = sum((1 << self.bytes) - 1 << port * self.bytes for port in range(self.ports) if moved >> port & 1)
            keep = known(getattr(dut, f"m_{name}_tkeep").value, lanes)
            data = known(getattr(dut, f"m_{name}_tdata").value, keep, 8)
            last = known(getattr(dut, f"m_{name}_tlast").value, moved)
            error = known(dut.m_sw_terror.value, moved) if name == "sw" else 0
            for port in range(self.ports):
                if moved >> port & 1:
                    self._collect(name, port, data, keep, last, error)
        ready = 0
        for port in range(self.ports):
            if (name, port) not in self.blocked and (not self.stall or self.random.random() >= self.stall):
                ready |= 1 << port
        ready_signal.value = ready

    def _collect(self, name: str, port: int, data: int, keep: int, last: int, error: int) -> None:
        collected, first = self.partial.pop((name, port), (bytearray(), self.cycle))
        mask = keep >> port * self.bytes & (1 << self.bytes) - 1
        count = mask.bit_length()
        assert mask == (1 << count) - 1, f"tkeep with holes: {mask:b}"
        is_last = last >> port & 1
        assert is_last or count == self.bytes, "a partial word within a frame"
        word = data >> port * self.width & (1 << self.width) - 1
        collected += word.to_bytes(self.bytes, "little")[:count]
        if first == self.cycle and self.sent[name][port] and self.sent[name][port][-1].last == self.cycle - 1:
            self.coverage.hit(f"{name} out: back to back")
        if is_last:
            self.sent[name][port].append(Frame(bytes(collected), first, self.cycle, bool(error >> port & 1)))
        else:
            self.partial[name, port] = (collected, first)

    def _drive(self, name: str) -> None:
        dut = self.dut
        ready = int(getattr(dut, f"s_{name}_tready").value)
        data = keep = last = valid = error = 0
        for port, source in enumerate(self.sources[name]):
            if source.offered and ready >> port & 1:
                self._advance(source)
            elif source.offered:
                self.coverage.counts[f"{name} in: stalled"] += 1
            if not source.frames:
                continue
            self.quiet = 0
            if not source.offered:
                if self.idle and self.random.random() < self.idle:
                    if source.at > 0:
                        self.coverage.counts[f"{name} in: idle within a frame"] += 1
                    continue
                source.offered = True
                if source.at == 0:
                    source.first = self.cycle + 1
                    if source.done and source.done[-1].last == self.cycle:
                        self.coverage.counts[f"{name} in: back to back"] += 1
            frame, broken = source.frames[0]
            word = frame[source.at : source.at + self.bytes]
            data |= int.from_bytes(word, "little") << port * self.width
            keep |= ((1 << len(word)) - 1) << port * self.bytes
            if source.at + self.bytes >= len(frame):
                last |= 1 << port
                error |= int(broken) << port
            valid |= 1 << port
        getattr(dut, f"s_{name}_tdata").value = data
        getattr(dut, f"s_{name}_tkeep").value = keep
        getattr(dut, f"s_{name}_tlast").value = last
        getattr(dut, f"s_{name}_tvalid").value = valid
        if name == "net":
            dut.s_net_terror.value = error

    def _advance(self, source: Source) -> None:
        frame, broken = source.frames[0]
        source.offered = False
        source.at += self.bytes
        if source.at >= len(frame):
            source.done.append(Frame(frame, source.first, self.cycle, broken))
            source.frames.popleft()
            source.at = 0

    async def write(self, address: int, value: int) -> None:
        """Writes a register."""
        dut = self.dut
        dut.s_axil_awaddr.value = address
        dut.s_axil_wdata.value = value
        dut.s_axil_wstrb.value = 15
        dut.s_axil_awvalid.value = dut.s_axil_wvalid.value = 1
        while True:
            await self.step()
            if int(dut.s_axil_awready.value):
                break
        dut.s_axil_awvalid.value = dut.s_axil_wvalid.value = 0
        await self.step()

    async def read(self, address: int) -> int:
        """Reads a register."""
        dut = self.dut
        dut.s_axil_araddr.value = address
        dut.s_axil_arvalid.value = 1
        while True:
            await self.step()
            if int(dut.s_axil_arready.value):
                break
        dut.s_axil_arvalid.value = 0
        while True:
            await self.step()
            if int(dut.s_axil_rvalid.value):
                return int(dut.s_axil_rdata.value.to_unsigned())
