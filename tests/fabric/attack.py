"""A host that forges packets of an `atp` job without being a member.

As a program: `attack.py FILE`, FILE a JSON object {"job": n, "epoch": n, "ways": [{...}, ...]} with the packets of each
edge of its trees, see `Way`. It floods until its input ends, and prints how many packets it has sent.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
import select
import socket
import struct
import subprocess
import sys

from fabric import Fabric
from namespaces import GUARD_S

# Fragments that the attacked job may currently have in flight.
SEQUENCES = 30_000


@dataclasses.dataclass(frozen=True)
class Way:
    """One direction of an edge of a tree, and the corresponding header fields."""

    source: str
    to: str
    tree: int
    down: bool
    level: int
    rack_fan_in: int
    server_fan_in: int
    workers: int
    racks: int


def ways(job: dict, aggregators: dict[str, str]) -> list[Way]:
    """All edges of a job's trees. `aggregators`: addresses of switches and servers by name."""
    addresses = {r["rank"]: r["udp_address"] for r in job["ranks"]}

    def address(child: dict) -> str:
        which = child["child"]
        return addresses[which["Rank"]] if "Rank" in which else aggregators[which["Switch"]]

    found = []
    for tree in job["trees"]:
        nodes = {node["switch"]: node for node in tree["nodes"]}

        def add(child: dict, at: str, level: int, fans: tuple[int, int], bits: tuple[int, int], number=tree["tree"]):
            ends = address(child), aggregators[at]
            found.append(Way(*ends, number, False, level, *fans, *bits))
            found.append(Way(*reversed(ends), number, True, level, *fans, 0, 0))

        root = nodes[tree["root"]]
        middle = nodes.get(root["children"][0]["child"].get("Switch", "")) if len(root["children"]) == 1 else None
        top = middle or root
        racks = len(top["children"])
        for place, rack in enumerate(top["children"]):
            below = nodes[rack["child"]["Switch"]]["children"] if "Switch" in rack["child"] else []
            fans = max(1, len(below)), racks
            add(rack, top["switch"], 1, fans, ((1 << fans[0]) - 1, 1 << place))
            for bit, worker in enumerate(below):
                add(worker, rack["child"]["Switch"], 0, fans, (1 << bit, 1 << place))
        if middle is not None:
            add(root["children"][0], root["switch"], 1, (1, racks), (0, (1 << racks) - 1))
    return found


class Attacker:
    """Floods a job's switches, servers and workers from `host`; a context manager."""

    def __init__(self, fabric: Fabric, host: str, job: dict):
        aggregators = {s["name"]: s["address"] for s in fabric.status()["switches"]}
        edges = [dataclasses.asdict(way) for way in ways(job, aggregators)]
        file = fabric.directory / "attack.json"
        file.write_text(json.dumps({"job": job["job"], "epoch": job["epoch"], "ways": edges}))
        self.command = [*fabric.network.inside(host), sys.executable, __file__, str(file)]

    def __enter__(self) -> Attacker:
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def packets(self) -> int:
        """End the flood; returns its number of packets."""
        return int(self.process.communicate(timeout=GUARD_S)[0])

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def forged(chance: random.Random, job: int, epoch: int, way: Way) -> bytes:
    """A packet of docs/protocol-atp.md with a guessed tag; some also have another wrong field."""
    elements = chance.choice([352, 352, 352, 352, 16])
    fields = dataclasses.asdict(way)
    if chance.random() < 0.2:
        fields[chance.choice(["tree", "level", "rack_fan_in", "server_fan_in", "workers", "racks"])] ^= 1
    head = struct.pack(
        ">BBBBIIIHHBBIIIIQQ",
        0x22,
        0x10 * fields["level"] + fields["down"],
        chance.choice([0x00, 0x00, 0x00, 0x01, 0x40]),
        fields["tree"],
        job,
        chance.randrange(SEQUENCES),
        chance.getrandbits(32),
        epoch,
        elements,
        fields["rack_fan_in"],
        fields["server_fan_in"],
        chance.randrange(4096),
        fields["workers"],
        fields["racks"],
        chance.randrange(4096),
        chance.randrange(1 << 20),
        chance.getrandbits(64),
    )
    return head + b"\x01\x00\x00\x40" * elements


def datagram(source: tuple[str, int], to: tuple[str, int], payload: bytes) -> bytes:
    """IPv4 and UDP without checksums: the kernel fills in IP's, UDP's is optional."""
    udp = struct.pack(">HHHH", source[1], to[1], 8 + len(payload), 0)
    addresses = socket.inet_aton(source[0]) + socket.inet_aton(to[0])
    return struct.pack(">BBHHHBBH", 0x45, 0, 0, 0, 0, 64, 17, 0) + addresses + udp + payload


def place(text: str) -> tuple[str, int]:
    address, port = text.rsplit(":", 1)
    return address, int(port)


def main() -> None:
    job = json.loads(pathlib.Path(sys.argv[1]).read_text())
    edges = [Way(**way) for way in job["ways"]]
    chance, sent = random.Random(1), 0
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        while not select.select([sys.stdin], [], [], 0.001)[0]:
            for way in edges:
                source, to = place(way.source), place(way.to)
                raw.sendto(datagram(source, to, forged(chance, job["job"], job["epoch"], way)), to)
                sent += 1
    print(sent)


if __name__ == "__main__":
    main()
