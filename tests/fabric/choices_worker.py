"""One rank of the comparison of paths: every way of every operation, in turn, in one process.

Arguments: a JSON object {"operations": [...], "sizes": [...], "seconds": s, "rounds": n}. The way `auto` is the job as
users start it on several machines, with a controller. The others are forced: `trees`, and each of the hosts' algorithms
by name. Ways whose predicted time is far above the least are left out. The slowest rank's time counts.
"""

from __future__ import annotations

import array
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable

from core_group import TIMEOUT_S, connected
from netsum import _core
from netsum.communicator import connect

ALL = {"collectives": "all"}
FAR = 4.0
"""A way that the model expects to take this much longer than the best is not tried."""
ALGORITHMS = {
    "allreduce": ["one-hop", "shares", "halving-doubling"],
    "reduce_scatter": ["one-hop"],
    "allgather": ["one-hop", "bruck", "ring"],
    "broadcast": ["binomial", "one-hop", "chain"],
    "reduce": ["one-hop"],
    "alltoall": ["one-hop"],
    "barrier": ["dissemination"],
}
"""Of float32 between hosts with one rank each; those that add floats in another order than the group's are left out."""


class Ways:
    """The groups of this rank: by way, connected."""

    def __init__(self, operations: list[str]) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.meeting = connect(name="meeting", in_network=False, timeout_s=TIMEOUT_S)
        controller = os.environ["NETSUM_CONTROLLER"]
        # Without measurements first: what a host's first group does longer is not theirs.
        self.groups, self.connect_s = {}, {}
        for way, least in (("trees", "0"), ("auto", "measured")):
            self.meeting.barrier()
            begun = time.monotonic()
            self.groups[way] = connected(self.meeting, way, controller, ALL | {"min_bytes": least})
            self.connect_s[way] = time.monotonic() - begun
        most = max(len(ALGORITHMS[operation]) for operation in operations)
        for number in range(most):
            named = {o: ALGORITHMS[o][min(number, len(ALGORITHMS[o]) - 1)] for o in operations}
            options = {"algorithms": ",".join(f"{o}={name}" for o, name in named.items())}
            self.groups[f"host-{number}"] = connected(self.meeting, f"host-{number}", None, options)
        self.in_network = [
            operation for operation in operations if self.goes_through_switches("trees", operation, 1 << 20)
        ]

    def of(self, operation: str, size: int) -> dict[str, _core.Group]:
        """The ways to try, by the names of their algorithms."""
        choice = self.explained(operation, size)
        costs = {cost["name"]: cost["seconds"] for cost in choice["costs"] if cost["seconds"] is not None}
        near = FAR * min(costs.values())
        found = {"auto": self.groups["auto"]}
        if operation in self.in_network:
            found["trees"] = self.groups["trees"]
        for number, name in enumerate(ALGORITHMS[operation]):
            if costs.get(name, near) <= near:
                found[name] = self.groups[f"host-{number}"]
        return found

    def explained(self, operation: str, size: int) -> dict:
        """The hosts' choice; of an all-gather the core asks for the bytes that each rank has."""
        own = size // self.size if operation == "allgather" else size
        return json.loads(self.groups["auto"].explain(operation, own, "float32", "sum"))

    def goes_through_switches(self, way: str, operation: str, size: int) -> bool:
        group, memory = self.groups[way], array.array("f", bytes(2 * max(size, 4 * self.size)))
        before = json.loads(group.stats())["network_operations"]
        finish(call(group, operation, size, self.size, self.rank, memory)())
        return json.loads(group.stats())["network_operations"] > before

    def slowest(self, seconds: float) -> float:
        value = array.array("d", [seconds])
        self.meeting.allreduce(value, "max")
        return value[0]


def call(group: _core.Group, operation: str, size: int, ranks: int, rank: int, memory: array.array) -> Callable:
    """A function that does the operation once for a caller that waits. memory: at least twice the size, by all."""
    address = memory.buffer_info()[0]
    other, part = address + len(memory) // 2 * 4, max(size // ranks // 4 * 4, 4)
    parts = [(address + r * part, part) for r in range(ranks)]
    others = [(other + r * part, part) for r in range(ranks)]
    counts = [(start, part // 4) for start, _ in parts]
    calls: dict[str, Callable] = {
        "allreduce": lambda: group.allreduce(address, size // 4, "float32", "sum", 1.0, TIMEOUT_S, True),
        "reduce": lambda: group.reduce(address, size // 4, "float32", "sum", 1.0, 0, TIMEOUT_S, True),
        "broadcast": lambda: group.broadcast(address, size, 0, TIMEOUT_S, True),
        "reduce_scatter": lambda: group.reduce_scatter(other, counts, "float32", "sum", 1.0, TIMEOUT_S, True),
        "allgather": lambda: group.allgather(parts, parts[rank], TIMEOUT_S, True),
        "alltoall": lambda: group.alltoall(others, parts, TIMEOUT_S, True),
        "barrier": lambda: group.barrier(TIMEOUT_S, True),
    }
    return calls[operation]


def finish(work: _core.Work | None) -> None:
    """Wait, if the operation has not ended within its call."""
    if work is not None:
        work.wait(None)


def main() -> None:
    arguments = json.loads(sys.argv[1])
    ways = Ways(arguments["operations"])
    memory = array.array("f", bytes(2 * max(*arguments["sizes"], 4 * ways.size)))
    rows = []
    for operation in arguments["operations"]:
        for size in arguments["sizes"] if operation != "barrier" else [0]:
            groups = ways.of(operation, size)
            calls = {way: call(g, operation, size, ways.size, ways.rank, memory) for way, g in groups.items()}
            times: dict[str, list[float]] = {way: [] for way in calls}
            begun = time.monotonic()
            for number in range(arguments["rounds"]):
                for way in [*list(calls)[number % len(calls) :], *list(calls)[: number % len(calls)]]:
                    ways.meeting.barrier()
                    start = time.perf_counter()
                    finish(calls[way]())
                    seconds = time.perf_counter() - start
                    times[way].append(ways.slowest(seconds))
                # The same at all ranks, which agree on the time that has passed.
                if number >= 2 and ways.slowest(time.monotonic() - begun) > arguments["seconds"]:
                    break
            explained = ways.explained(operation, size)
            chosen = "trees" if ways.goes_through_switches("auto", operation, size) else explained["chosen"]
            row = {"operation": operation, "bytes": size, "chosen": chosen, "times": times, "explained": explained}
            rows.append(row)
            print(f"{operation} {size}: {[(w, round(1e6 * min(t))) for w, t in times.items()]}", flush=True)
    stats = json.loads(ways.groups["auto"].stats())
    costs = {"link": stats["link"], "switches": stats["switches"], "connect_s": ways.connect_s}
    pathlib.Path(os.environ["RESULT"]).write_text(json.dumps({"rows": rows, **costs}))
    ways.meeting.barrier()
    for group in ways.groups.values():
        group.close()
    ways.meeting.close()


if __name__ == "__main__":
    main()
