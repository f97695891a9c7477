"""One rank: a reduce-scatter and an all-gather at once, by switches (trees of panama, or slots of atp), between hosts,
and by Gloo, in turn and checked.

Arguments: a JSON object {"mib": n, "rounds": n, "ways": ["switches", "atp", "hosts", "gloo"], "operations":
["reduce_scatter", "allgather"], "in_place": bool}. `mib`: of the whole buffer of each operation. `in_place`: the input
of an all-gather is where its output is; optional. The slowest rank's time counts.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from core_group import TIMEOUT_S, connected
from netsum.communicator import connect

GIVEN = {"link_latency_s": "1e-4", "link_bytes_per_s": "12500000"}
"""So that ranks do not send bytes to measure them."""


class Rank:
    """This rank's groups and tensors."""

    def __init__(self, ways: list[str], numel: int, in_place: bool) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.meeting = connect(name="meeting", in_network=False, timeout_s=TIMEOUT_S)
        controller = os.environ["NETSUM_CONTROLLER"]
        self.groups = {}
        for way, protocol in (("switches", "panama"), ("atp", "atp")):
            if way in ways:
                options = GIVEN | {"collectives": "all", "min_bytes": "0", "protocol": protocol}
                self.groups[way] = connected(self.meeting, way, controller, options)
        if "hosts" in ways:
            self.groups["hosts"] = connected(self.meeting, "hosts", None, GIVEN)
        if "gloo" in ways:
            dist.init_process_group("gloo")
        part = numel // self.size
        # Exact sums, different for each element and rank.
        self.given = torch.arange(numel, dtype=torch.float32) % 1021 + self.rank
        self.sums = torch.empty(part)
        mine = slice(self.rank * part, (self.rank + 1) * part)
        extra = self.size * (self.size - 1) / 2
        self.expected_sums = (torch.arange(numel, dtype=torch.float32) % 1021)[mine] * self.size + extra
        self.gathered = torch.empty(numel)
        self.shard = self.gathered[mine] if in_place else torch.empty(part)
        self.expected_gathered = torch.arange(self.size, dtype=torch.float32).repeat_interleave(part)

    def begin(self, way: str, operation: str) -> Callable[[], object]:
        """Start an operation; returns what waits for it."""
        if way == "gloo":
            if operation == "reduce_scatter":
                return dist.reduce_scatter_tensor(self.sums, self.given, async_op=True).wait
            return dist.all_gather_into_tensor(self.gathered, self.shard, async_op=True).wait
        group, part = self.groups[way], self.sums.numel()
        if operation == "reduce_scatter":
            start = self.given.data_ptr()
            inputs = [(start + 4 * r * part, part) for r in range(self.size)]
            work = group.reduce_scatter(self.sums.data_ptr(), inputs, "float32", "sum", 1.0, TIMEOUT_S)
        else:
            start = self.gathered.data_ptr()
            outputs = [(start + 4 * r * part, 4 * part) for r in range(self.size)]
            work = group.allgather(outputs, (self.shard.data_ptr(), 4 * part), TIMEOUT_S)
        return lambda: work.wait(None)

    def timed(self, way: str, operations: list[str]) -> float:
        """Seconds of the operations at once, at the slowest rank."""
        self.sums.zero_()
        self.gathered.zero_()
        self.shard.fill_(self.rank)
        self.meeting.barrier()
        start = time.perf_counter()
        waits = [self.begin(way, operation) for operation in operations]
        for wait in waits:
            wait()
        elapsed = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        if "reduce_scatter" in operations and not torch.equal(self.sums, self.expected_sums):
            raise SystemExit(f"rank {self.rank}: {way} has wrong sums")
        if "allgather" in operations and not torch.equal(self.gathered, self.expected_gathered):
            raise SystemExit(f"rank {self.rank}: {way} has gathered something else")
        self.meeting.allreduce(elapsed.numpy(), "max")
        return float(elapsed)


def main() -> None:
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    ways = arguments["ways"]
    rank = Rank(ways, arguments["mib"] << 18, arguments.get("in_place", False))
    times: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(arguments["rounds"]):
        for way in [*ways[number % len(ways) :], *ways[: number % len(ways)]]:
            times[way].append(rank.timed(way, arguments["operations"]))
            print(f"{way}: {times[way][-1]:.3f} s", flush=True)
    in_network = {way: json.loads(group.stats())["network_operations"] for way, group in rank.groups.items()}
    pathlib.Path(os.environ["RESULT"]).write_text(json.dumps({"times": times, "in_network": in_network}))
    rank.meeting.barrier()
    for group in rank.groups.values():
        group.close()
    rank.meeting.close()


if __name__ == "__main__":
    main()
