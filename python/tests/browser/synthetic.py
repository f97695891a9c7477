"""A made-up fabric of any size: statuses as a controller gives them, with counters that grow."""

import math
import time
from typing import Any

RATE = 100_000_000_000
UPLINKS = 8
"""Of a rack, at most."""


class SyntheticFabric:
    """Racks of `hosts` hosts under spines, with jobs on the first hosts. `down`: names of switches that are dead."""

    def __init__(self, racks: int, spines: int, hosts: int, jobs: int, ranks: int) -> None:
        self.racks = [f"rack{i}" for i in range(racks)]
        self.spines = [f"spine{i}" for i in range(spines)]
        self.hosts = [[f"h{rack}-{i}" for i in range(hosts)] for rack in range(racks)]
        self.jobs, self.ranks = jobs, ranks
        self.began = time.time()
        self.down: set[str] = set()
        self.asked = 0

    def status(self) -> dict[str, Any]:
        """The status now."""
        age = time.time() - self.began
        self.asked += 1
        return {
            "fabric": "synthetic",
            "address": "127.0.0.1:7700",
            "version": "0.0",
            "uptime_s": age,
            "hosts": [{"name": name, "address": "10.0.0.1"} for rack in self.hosts for name in rack],
            "switches": [self._switch(name, age) for name in (*self.racks, *self.spines)],
            "links": list(self._links(age)),
            "jobs": [self._job(number, age) for number in range(1, self.jobs + 1)],
            "incarnation": 1,
            "store": None,
            "term": 1,
        }

    def operations(self, job: int) -> list[dict[str, Any]]:
        """The last operations of every rank of a job: three overlapping sums in each step of 100 ms."""
        step = int(time.time() * 10)
        found = []
        for rank in range(self.ranks):
            rows = []
            for number in range((step - 20) * 3, step * 3):
                called = number // 3 * 0.1 + 0.03 + number % 3 * 0.008 + (0.012 if rank == 1 else 0)
                ends = number // 3 * 0.1 + 0.055 + number % 3 * 0.01
                seconds = ends - called
                call = "allreduce float32" if number % 3 else "allreduce bfloat16"
                rows.append(
                    {"number": number, "call": call, "bytes": 4 << 20, "called_unix_s": called, "seconds": seconds}
                )
            found.append({"rank": rank, "operations": rows})
        return found

    def _switch(self, name: str, age: float) -> dict[str, Any]:
        dead = name in self.down
        marks = int(age * (300 if name == "rack1" else 2))
        children = [_child(rank, age, slow=name == "rack1" and rank == 2) for rank in range(4)]
        trees = [{"job": 1, "tree": 0, "epoch": 1, "results": int(age * 1000), "marks": marks, "children": children}]
        return {
            "name": name,
            "address": "10.1.0.1:7701",
            "role": "switch",
            "host": "",
            "state": "down" if dead else "up",
            "state_for_s": age,
            "memory_bytes": 64 << 20,
            "memory_used_bytes": 11 << 20,
            "memory_leased_bytes": 20 << 20,
            "trees": trees,
            "drops": {"stale": 3},
            "tenants": [
                {"tenant": f"team{i}", "packets": 9, "bytes": 9, "marked": 0, "dropped": 7 * i} for i in range(3)
            ],
        }

    def _links(self, age: float) -> Any:
        def link(a: str, b: str, share: float) -> dict[str, Any]:
            sent = int(age * RATE / 8 * share)
            return {
                "a": a,
                "b": b,
                "rate_bps": RATE,
                "bytes_ab": sent,
                "bytes_ba": sent // 2,
                "up": not {a, b} & self.down,
            }

        for at, rack in enumerate(self.racks):
            for host in self.hosts[at]:
                yield link(host, rack, 0.5 + 0.4 * math.sin(at))
            for other in range(min(len(self.spines), UPLINKS)):
                spine = self.spines[(at + other * 5) % len(self.spines)]
                yield link(rack, spine, abs(math.sin(at * 3 + other)) * (at % 9) / 9)

    def _job(self, number: int, age: float) -> dict[str, Any]:
        at = number % len(self.racks)
        places = [self.hosts[at][rank % len(self.hosts[at])] for rank in range(self.ranks)]
        rack, spine = self.racks[at], self.spines[at % len(self.spines)]
        children = [{"child": {"Rank": rank}, "branch": rank % 32} for rank in range(self.ranks)]
        nodes = [
            {
                "switch": spine,
                "address": "",
                "children": [{"child": {"Switch": rack}, "branch": 0}],
                "parent": "",
                "via": [],
            },
            {"switch": rack, "address": "", "children": children, "parent": spine, "via": []},
        ]
        return {
            "job": number,
            "name": f"train-{number}",
            "size": self.ranks,
            "state": "running",
            "epoch": 1,
            "order": "",
            "trees": [{"tree": 0, "root": spine, "nodes": nodes}],
            "reason": "",
            "window_max": 512,
            "fragment_bytes": 1408,
            "ranks": [self._rank(rank, places[rank], number, age) for rank in range(self.ranks)],
            "created_unix_s": self.began,
            "protocol": "panama",
            "choice": "",
            "tenant": f"team{number % 3}",
            "tags": True,
        }

    def _rank(self, rank: int, host: str, job: int, age: float) -> dict[str, Any]:
        sent = int(age * 1e9 * (1 + job % 4))
        late = rank == 1 and job % 5 == 1
        tree = {
            "tree": 0,
            "window": 200 + job % 100,
            "rtt_ns": 84_000,
            "results": int(age * 900),
            "retransmits": int(age * 2),
            "spurious_retransmits": int(age),
        }
        statistics = {
            "trees": [{**tree, "marks": int(age * 40), "bytes_tx": sent, "bytes_rx": sent}],
            "host_bytes_tx": 1000,
            "host_bytes_rx": 1000,
            "operations": int(age * 30),
            "network_operations": int(age * 30),
            "pauses": [{"what": "switch spine0 is down", "at_unix_s": self.began - 40, "seconds": 0.14}]
            if job == 1
            else [],
            "plan_epoch": 1,
            "silent_trees": [],
            "unreachable_ranks": [],
            "stale_messages": 0,
            "step": {
                "seconds": 0.1,
                "communicating_s": 0.045,
                "exposed_s": 0.012 if late else 0.024 + 0.001 * (job % 7),
                "operations": 3,
                "bytes": 12 << 20,
            },
            "recent": [],
        }
        return {
            "rank": rank,
            "host": host,
            "pid": 1000 + rank,
            "state": "connected",
            "udp_address": "",
            "statistics": statistics,
        }


def _child(rank: int, age: float, slow: bool) -> dict[str, Any]:
    """A child of a tree, awaited for a thousandth of the time or, over a slow link, for two fifths."""
    fragments = int(age * 1000)
    return {
        "address": f"10.0.0.{rank + 1}:7702",
        "name": f"rank {rank}",
        "histogram": [fragments] + [0] * 11,
        "late_ns": fragments * (9_000_000 if slow else 1_000),
        "last": fragments // 4,
        "awaited_ns": int(age * 1e9 * (0.4 if slow else 0.001)),
        "bursts": int(age * 10),
        "opening_ns": int(age * 10_000),
    }
