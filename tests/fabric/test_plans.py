"""Tree plans against rings on the same links: every NVLink of a DGX-1V fragment is a shaped pair of devices."""

from __future__ import annotations

import fcntl
import json
import statistics
import subprocess
from pathlib import Path

import pytest

import network
from netsum.plan import Selection, pack, topology
from network import LOCK, PREFIX, run

ROOT = Path(__file__).resolve().parents[2]
LINK_MBIT = 40
"""For one NVLink; all links of a fragment together must be far below what this machine can copy."""
PCIE_SHARE = 0.4
"""PCIe beside NVLink: 10 GB/s beside 25. NCCL falls back to it where there is no NVLink ring."""
REPEATS = 3

pytestmark = [
    pytest.mark.figures,
    pytest.mark.skipif(network.why_not() is not None, reason=str(network.why_not())),
]


class Fragment:
    """A namespace per GPU, a shaped veth pair per link of the graph; use as a context manager."""

    def __init__(self, graph: dict):
        self.names = [gpu["name"] for gpu in graph["gpu"]]
        self.links = [(link["ends"], int(link["rate"].removesuffix("Mbit/s"))) for link in graph["link"]]

    def __enter__(self) -> Fragment:
        # Names of namespaces are the machine's: another run waits for this one's end.
        self.lock = open(LOCK, "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.remove()
        self.address: dict[tuple[str, str], str] = {}
        for name in self.names:
            run("ip", "netns", "add", PREFIX + name)
            run("ip", "netns", "exec", PREFIX + name, "ip", "link", "set", "lo", "up")
        for index, ((a, b), mbit) in enumerate(self.links):
            run("ip", "link", "add", b, "netns", PREFIX + a, "type", "veth", "peer", "name", a, "netns", PREFIX + b)
            for end, (node, peer) in enumerate(((a, b), (b, a))):
                inside = ["ip", "netns", "exec", PREFIX + node]
                self.address[node, peer] = f"10.78.{index}.{end + 1}"
                run(*inside, "ip", "addr", "add", f"10.78.{index}.{end + 1}/30", "dev", peer)
                run(*inside, "ip", "link", "set", peer, "up")
                shape = ["tbf", "rate", f"{mbit}mbit", "burst", "20000", "limit", "200000"]
                run(*inside, "tc", "qdisc", "add", "dev", peer, "root", *shape)
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
        self.lock.close()

    def remove(self) -> None:
        for line in run("ip", "netns", "list").splitlines():
            if line.startswith(PREFIX):
                name = line.split()[0]
                for pid in run("ip", "netns", "pids", name).split():
                    subprocess.run(["kill", "-9", pid], capture_output=True)
                run("ip", "netns", "del", name)

    def seconds(self, plan: dict, size: int, folder: Path) -> float:
        """Median time of an allreduce of `size` bytes, of the slowest rank. Every rank checks every sum."""
        file = folder / "plan.json"
        file.write_text(json.dumps(plan))
        ranks = []
        for rank, name in enumerate(self.names):
            here = [pair for pair in self.address if pair[1] == name]
            peers = [f"{self.names.index(peer)}={self.address[peer, name]}:7800" for peer, _ in here]
            program = str(ROOT / "target/release/examples/plan_rank")
            words = [program, str(file), str(rank), "0.0.0.0:7800", str(size), str(REPEATS), *peers]
            command = ["ip", "netns", "exec", PREFIX + name, *words]
            ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        times = []
        for process in ranks:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            times.append(json.loads(out)["seconds"])
        return statistics.median(max(step) for step in zip(*times, strict=True))


@pytest.fixture(scope="session", autouse=True)
def program():
    command = ["cargo", "build", "--release", "--quiet", "-p", "netsum-collective", "--example", "plan_rank"]
    subprocess.run(command, cwd=ROOT, check=True)


def fragment(gpus: str) -> dict:
    """NVLinks of a DGX-1V fragment, each slowed down to LINK_MBIT."""
    graph = topology(Selection("dgx1v", gpus.split(","), ["nvlink"]))
    for link in graph["link"]:
        link["rate"] = f"{int(link['rate'].removesuffix('Gbit/s')) // 200 * LINK_MBIT}Mbit/s"
    return graph


def pcie_ring(graph: dict) -> dict:
    """The GPUs in a ring at PCIe's rate."""
    names = [gpu["name"] for gpu in graph["gpu"]]
    rate = f"{int(LINK_MBIT * PCIE_SHARE)}Mbit/s"
    ends = [[names[i], names[(i + 1) % len(names)]] for i in range(len(names))]
    return {"name": "pcie", "gpu": graph["gpu"], "link": [{"ends": pair, "rate": rate} for pair in ends]}


@pytest.mark.parametrize("gpus", ["0,1,4", "0,3,4", "0,1,2,4", "0,2,3", "0,1,2,3,4,6"])
def test_a_plan_against_a_ring(gpus, tmp_path):
    graph = fragment(gpus)
    best = pack(graph)
    others = dict(best["others"])
    ring_graph = graph if others["rings"] else pcie_ring(graph)
    ring = pack(ring_graph, method="rings")
    # About a second each: long beside the start of the pipeline.
    size = int(best["rate"] * 1e9) // 4 * 4
    with Fragment(graph) as links:
        planned = links.seconds(best["plan"], size, tmp_path)
    with Fragment(ring_graph) as links:
        ringed = links.seconds(ring["plan"], size, tmp_path)
    model, measured = best["rate"] / ring["rate"], ringed / planned
    print(f"{gpus}: model {model:.3f}, measured {measured:.3f} ({planned:.2f} s, ring {ringed:.2f} s)")
    assert measured == pytest.approx(model, rel=0.1)
