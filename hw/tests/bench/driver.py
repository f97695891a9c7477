"""A driver of the registers: leases in, counters out."""

from __future__ import annotations

from . import registers as r
from .lines import Lines
from .packets import template


class Driver:
    """Assigns indices and slots to leases, as long as there are any."""

    def __init__(self, lines: Lines):
        self.lines = lines
        self.free_from = 0
        self.places: dict[int, tuple[int, int]] = {}
        self.rings: dict[int, tuple[int, int]] = {}

    async def probe(self) -> None:
        """Read the device's shape."""
        assert await self.lines.read(r.ID) == 0x6E73756D
        shape, memory = await self.lines.read(r.SHAPE), await self.lines.read(r.MEMORY)
        self.width, self.ports, self.leases = shape >> 16, shape >> 8 & 255, shape & 255
        self.buffer_bytes, self.slots = memory >> 16, memory & 0xFFFF
        assert (self.width, self.ports) == (self.lines.width, self.lines.ports)

    def place(self, job: int, tree: int) -> int:
        """Index of a lease: low bits of the job, rotated with those of the tree."""
        bits = (self.leases - 1).bit_length()
        turned = int(f"{tree & self.leases - 1:0{bits}b}"[::-1], 2)
        return job & self.leases - 1 ^ turned

    async def install(self, lease: dict) -> None:
        """Install a lease in the vectors' format; a child's port is its position in the order of additions."""
        children = [child["port"] for child in lease["children"]]
        assert children == sorted(children), "ports in child order add alike"
        job, tree = lease["job"], lease["tree"]
        at = self.place(job, tree)
        assert self.places.get(at, (job, tree)) == (job, tree), f"place {at} is taken"
        ring = 1 << (2 * lease["slots"] - 1).bit_length()
        if at not in self.rings or self.rings[at][1] < ring:
            assert self.free_from + ring <= self.slots, "no slots left"
            self.rings[at] = (self.free_from, ring)
            self.free_from += ring
        first, ring = self.rings[at]
        self.places[at] = (job, tree)
        await self.word(at, r.WORD_VALID, 0)
        await self.idle()
        await self.word(at, r.WORD_JOB, job)
        await self.word(at, r.WORD_KEY, lease["epoch"] << 8 | tree)
        await self.word(at, r.WORD_WINDOW, lease["slots"] << 16 | lease["slots"])
        await self.word(at, r.WORD_RING, ring - 1 << 16 | first)
        await self.word(at, r.WORD_ELEMENTS, lease["fragment_bytes"] // 4)
        parent = 0 if lease["parent"] is None else 1 << lease["parent"]
        for half in range(-(-self.ports // 32)):
            bits = sum(1 << port for port in children) >> 32 * half & 0xFFFFFFFF
            await self.word(at, r.WORD_MEMBERS + half, bits)
            await self.word(at, r.WORD_PARENT + half, parent >> 32 * half & 0xFFFFFFFF)
        for child in lease["children"]:
            base = r.CHILDREN + (at * 64 + child["port"]) * 16
            await self.lines.write(base, child["branch"])
            await self.lines.write(base + 4, child["ranks"] >> 32)
            await self.lines.write(base + 8, child["ranks"] & 0xFFFFFFFF)
        neighbours = children + ([] if lease["parent"] is None else [lease["parent"]])
        for port in neighbours:
            head = template(port)
            for word in range(11):
                value = int.from_bytes(head[4 * word : 4 * word + 4], "little")
                await self.lines.write(r.TEMPLATES + (port * 16 + at) * 128 + 4 * word, value)
        await self.clear(at)
        await self.word(at, r.WORD_VALID, 1)

    async def remove(self, job: int, tree: int) -> None:
        """Remove a lease."""
        at = self.place(job, tree)
        await self.word(at, r.WORD_VALID, 0)
        await self.idle()
        del self.places[at]

    async def clear(self, at: int) -> None:
        """Reset a lease's slots."""
        await self.lines.write(r.CLEAR, at)
        await self.idle()

    async def idle(self) -> None:
        """Wait until control and the release engine are idle."""
        for _ in range(1000):
            if await self.lines.read(r.STATUS) == 0:
                return
        raise AssertionError("the device does not become idle")

    async def word(self, at: int, word: int, value: int) -> None:
        """Writes one word of a lease."""
        await self.lines.write(r.LEASES + at * 64 + word * 4, value)

    async def outcomes(self) -> dict[str, int]:
        """Packets by outcome."""
        return {name: await self.lines.read(r.OUTCOMES + 4 * i) for i, name in enumerate(r.DROPS)}
