"""GPUs as namespaces: a shaped pair of devices for every link between them, and a fast network for management.

Addresses: the ends of link i are 10.78.i.1 and 10.78.i.2, the hosts of the GPUs 10.79.0.rank+1.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path

from namespaces import GUARD_S, Namespaces, namespace, run

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "target/release/examples/plan_rank"
BURST_BYTES = 20_000
QUEUE_BYTES = 400_000
"""More than TCP queues in a device ("small queues"): nothing is dropped, and queues stay short."""
SWITCH_QUEUE_BYTES = 40_000
SEGMENTS_BYTES = 4_000
"""Largest segment that TCP passes down. A whole 64 KiB would be a burst of 13 ms on these links, at each hop."""
MTU = "4000"
"""Large, to reduce the processor time per byte, which is not measured."""
MANAGEMENT = "management"
PORT = 7800


class Fragment(Namespaces):
    """A namespace per GPU and per switch of a topology, and its links; use as a context manager."""

    def __init__(self, graph: dict):
        self.gpus = [gpu["name"] for gpu in graph["gpu"]]
        self.switches = [switch["name"] for switch in graph.get("switch", [])]
        self.links = [(link["ends"], int(link["rate"].removesuffix("Mbit/s"))) for link in graph["link"]]
        self.shares: list[float] = []
        self.address: dict[tuple[str, str], str] = {}
        """Address of the first node on its link to the second."""

    def host(self, rank: int) -> str:
        """A rank's management address."""
        return f"10.79.0.{rank + 1}"

    def ways(self, name: str) -> dict[str, str]:
        """A GPU's own addresses by neighbour."""
        return {peer: address for (node, peer), address in self.address.items() if node == name}

    def cut(self, a: str, b: str) -> None:
        """Take a link down like a pulled cable: connections over it stay open, and nothing passes."""
        run(*self.inside(a), "ip", "link", "set", b, "down")

    def shape(self, a: str, b: str, mbit: int) -> None:
        """Set a link's rate, in both directions."""
        for node, peer in ((a, b), (b, a)):
            queue = SWITCH_QUEUE_BYTES if node in self.switches else QUEUE_BYTES
            words = ["tbf", "rate", f"{mbit}mbit", "burst", str(BURST_BYTES), "limit", str(queue)]
            run(*self.inside(node), "tc", "qdisc", "replace", "dev", peer, "root", *words)

    def sent_bytes(self, node: str) -> dict[str, int]:
        """Bytes that a node has sent, by neighbour."""
        peers = [peer for own, peer in self.address if own == node]
        counter = "/sys/class/net/{}/statistics/tx_bytes"
        return {peer: int(run(*self.inside(node), "cat", counter.format(peer))) for peer in peers}

    def seconds(self, plan: dict, size: int, folder: Path, repeats: int) -> float:
        """Median time of an allreduce of `size` bytes, of the slowest rank. Every rank checks every sum."""
        return statistics.median(self.times(plan, [size], folder, repeats)[0][0])

    def times(
        self, plan: dict, sizes: list[int], folder: Path, repeats: int, measure: bool = False, sharing: str = "plan"
    ) -> tuple[list[list[float]], dict[tuple[str, str], tuple[float, float]]]:
        """Times of the slowest rank by size and repeat; if links are measured first, latency (s) and rate (bit/s).

        sharing: shares to adapt to the traffic; `shares` has them at the end.
        """
        peers = {
            rank: {
                "tcp": f"{self.host(rank)}:{PORT}",
                "ways": self.ways(name),
                "machine": "",
                "unix": "",
                "secret": [0] * 16,
            }
            for rank, name in enumerate(self.gpus)
        }
        ranks = []
        for rank, name in enumerate(self.gpus):
            config = {
                "plan": plan,
                "rank": rank,
                "listen": peers[rank]["tcp"],
                "ways": peers[rank]["ways"],
                "peers": peers,
                "bytes": sizes,
                "repeats": repeats,
                "measure": measure,
                "sharing": sharing,
            }
            file = folder / f"{rank}.json"
            file.write_text(json.dumps(config))
            words = [*self.inside(name), str(PROGRAM), str(file)]
            ranks.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        times, links = [], {}
        try:
            for process in ranks:
                out, err = process.communicate(timeout=GUARD_S)
                assert process.returncode == 0, err
                found = json.loads(out)
                assert {medium for _, medium in found["lanes"]} == {"TCP"}
                times.append(found["seconds"])
                self.shares = found["shares"]
                links |= {(link[0], link[-1]): (latency, rate) for link, latency, rate in found["links"]}
        finally:
            for process in ranks:
                process.kill()
        by_size = [[max(step) for step in zip(*ranks, strict=True)] for ranks in zip(*times, strict=True)]
        return by_size, links

    def _build(self) -> None:
        for node in [*self.gpus, *self.switches, MANAGEMENT]:
            run("ip", "netns", "add", namespace(node))
            run(*self.inside(node), "ip", "link", "set", "lo", "up")
        for switch in self.switches:
            run(*self.inside(switch), "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for index, ((a, b), mbit) in enumerate(self.links):
            ends = ("ip", "link", "add", b, "mtu", MTU, "netns", namespace(a), "type", "veth")
            run(*ends, "peer", "name", a, "mtu", MTU, "netns", namespace(b))
            for end, (node, peer) in enumerate(((a, b), (b, a))):
                self.address[node, peer] = f"10.78.{index}.{end + 1}"
                run(*self.inside(node), "ip", "addr", "add", f"10.78.{index}.{end + 1}/30", "dev", peer)
                run(*self.inside(node), "ip", "link", "set", peer, "gso_max_size", str(SEGMENTS_BYTES), "up")
            self.shape(a, b, mbit)
        for (gpu, switch), own in self.address.items():
            if switch in self.switches:
                for other in self.gpus:
                    # GPUs behind the switch are reached through it, in both directions.
                    if other != gpu and (other, switch) in self.address:
                        via = ("via", self.address[switch, gpu], "src", own)
                        run(*self.inside(gpu), "ip", "route", "add", self.address[other, switch], *via)
        bridge = self.inside(MANAGEMENT)
        run(*bridge, "ip", "link", "add", "bridge", "type", "bridge")
        run(*bridge, "ip", "link", "set", "bridge", "up")
        for rank, name in enumerate(self.gpus):
            ends = ("ip", "link", "add", "host", "netns", namespace(name), "type", "veth")
            run(*ends, "peer", "name", name, "netns", namespace(MANAGEMENT))
            run(*bridge, "ip", "link", "set", name, "master", "bridge", "up")
            run(*self.inside(name), "ip", "addr", "add", f"{self.host(rank)}/24", "dev", "host")
            run(*self.inside(name), "ip", "link", "set", "host", "up")
