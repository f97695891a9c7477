"""What operations of a job cost: by switches as its own bursts did, by hosts by the hosts' cost model."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any

from netsum.report.files import Call, Job
from netsum.report.network import HEADERS, Edge, Net, edges_of, exchange_seconds, ring_seconds, tree_loads
from netsum.report.steps import Burst, Cost, Costs, Rhythm

IN_NETWORK_DTYPES = (
    "float32",
    "float16",
    "bfloat16",
    "int32",
    "int64",
    "int8",
    "int16_from_int8",
    "bfloat16_from_e4m3",
    "bfloat16_from_e5m2",
)
IN_NETWORK_OPS = ("sum", "avg", "min", "max")
FILLED = 0.7
"""Share of a burst's time in which the fullest link must be busy to be called the limit."""
APART = 2.0
"""Sizes that differ by this factor tell what does not depend on the size from what does."""
STEADY = 1.25
"""By no more than this factor may the median burst take longer than the shortest to be called steady."""
PAIRS_MAX = 64
"""Ranks up to which an exchange of all with all is computed."""


@dataclass(frozen=True)
class Curve:
    """Seconds of an operation by switches: straight lines between measured sizes, from `fixed_s` at size 0, and
    `per_byte_s` beyond the last.

    link_s: per byte, what the fullest link needs. measured: whether bursts of several sizes tell `fixed_s`.
    """

    fixed_s: float
    points: tuple[tuple[float, float], ...]
    per_byte_s: float
    link_s: float
    measured: bool

    def cost(self, nbytes: float) -> Cost:
        seconds = self._seconds(nbytes)
        return Cost(seconds, max(seconds - self.fixed_s, 0.0))

    def _seconds(self, nbytes: float) -> float:
        known = [(0.0, self.fixed_s), *self.points]
        at = bisect_left(known, (nbytes, 0.0))
        if at >= len(known):
            size, seconds = known[-1]
            return seconds + self.per_byte_s * (nbytes - size)
        (x1, y1), (x2, y2) = known[max(at - 1, 0)], known[max(at, 1)]
        return y1 + (y2 - y1) * (nbytes - x1) / (x2 - x1)

    def with_links(self, share: float) -> "Curve":
        """The same where the fullest link carries this share of what it carries."""

        def eased(size: float, seconds: float) -> float:
            return seconds - (1 - share) * min(self.link_s * size, seconds - self.fixed_s)

        points = tuple((size, eased(size, seconds)) for size, seconds in self.points)
        less = (1 - share) * min(self.link_s, self.per_byte_s)
        return replace(self, points=points, per_byte_s=self.per_byte_s - less, link_s=self.link_s * share)


class Hosts:
    """What the hosts' path costs, from the table that rank 0 has written."""

    def __init__(self, costs: Sequence[dict[str, Any]]) -> None:
        self._tables = {
            (table["operation"], table["dtype"], table["op"]): [
                (size, seconds[chosen]) for size, chosen, seconds in table["rows"] if seconds.get(chosen)
            ]
            for table in costs
        }

    def cost(self, call: Call, nbytes: float, factor: float = 1.0) -> Cost | None:
        """Of a call with other bytes; None if it is unknown."""
        table = self._tables.get((call.kind, call.dtype or "", call.op))
        if not table or len(table) < 2:
            return None
        smallest = table[0][1]
        at = min(max(bisect_left(table, (nbytes, 0.0)), 1), len(table) - 1)
        (x1, y1), (x2, y2) = table[at - 1], table[at]
        seconds = max(y1 + (y2 - y1) * (nbytes - x1) / (x2 - x1), 0.0) * factor
        return Cost(seconds, max(seconds - smallest * factor, 0.0))


class Model:
    """The costs of the operations of a job's steps."""

    def __init__(self, job: Job, rhythm: Rhythm) -> None:
        self.job, self.rhythm = job, rhythm
        self.calls = [job.first.calls[index] for index in rhythm.calls]
        by_switches = switched(job)
        self.by_switches = [call in by_switches for call in self.calls]
        controller = job.first.controller or {}
        self.net = Net.of(controller["fabric"]) if controller.get("fabric") else None
        self.plan = controller.get("job") if controller.get("fabric") else None
        self.hosts = Hosts(job.first.costs)

    @cached_property
    def placement(self) -> list[str]:
        """The host of each rank; empty if the controller has not said it."""
        ranks = {rank["rank"]: rank["host"] for rank in (self.plan or {}).get("ranks", ())}
        found = [ranks.get(rank, "") for rank in range(self.job.size)]
        return found if all(found) else []

    @cached_property
    def trees(self) -> list[list[Edge]]:
        """The links of each tree of the plan."""
        hosts = dict(enumerate(self.placement))
        return [edges_of(tree, hosts) for tree in (self.plan or {}).get("trees", ())] if hosts else []

    @cached_property
    def shares(self) -> list[float]:
        """The share of the fragments that each tree has had."""
        sent = {tree["tree"]: tree["bytes_tx"] for tree in self.job.first.stats["trees"]}
        counts = [sent.get(tree["tree"], 0) for tree in (self.plan or {}).get("trees", ())]
        total = sum(counts)
        return [count / total for count in counts] if total else [1 / len(counts) for _ in counts]

    @cached_property
    def wire(self) -> float:
        """Bytes on a link per byte that a rank sums: packets have headers."""
        fragment = (self.plan or {}).get("fragment_bytes") or 0
        calls = [call for call in self.job.first.calls if call in switched(self.job)]
        summed = sum(call.nbytes * call.count for call in calls)
        sent = sum(tree["bytes_tx"] for tree in self.job.first.stats["trees"])
        # A sum may begin before the first look, and a packet be sent again: a part of a packet is no header.
        own = min(max(sent / summed, 1.0), 1.1) if summed and sent else 1.0
        return own + (HEADERS / fragment if fragment else 0.0)

    @cached_property
    def loads(self) -> dict[Edge, float]:
        """Bytes in each direction of each link per byte summed by switches."""
        loads = tree_loads(self.trees, self.shares) if self.trees else {}
        return {edge: load * self.wire for edge, load in loads.items()}

    @property
    def link_s(self) -> float:
        """Seconds per byte of the fullest link of the trees; 0 if rates are unknown."""
        return self.net.fullest(self.loads) if self.net is not None and self.net.rates_known else 0.0

    @cached_property
    def pace_is_of_links(self) -> bool:
        """Whether links, not hosts, limited the messages by which the ranks measured their pace at the start."""
        rate = self.job.first.stats["link"]["bytes_per_s"]
        net, placed = self.net, self.placement
        if net is None or not net.rates_known or not rate or not 1 < len(placed) <= PAIRS_MAX:
            return False
        return exchange_seconds(net, placed) >= 0.6 / rate

    def bursts(self) -> list[tuple[Burst, float, float]]:
        """Each burst of sums by switches alone: it, its bytes, and its seconds."""
        found = []
        for burst in self.rhythm.bursts:
            if all(self.by_switches[burst.begin : burst.end]):
                nbytes = sum(call.nbytes for call in self.calls[burst.begin : burst.end])
                found.append((burst, float(nbytes), self.rhythm.burst_seconds(burst)))
        return found

    @cached_property
    def curve(self) -> Curve | None:
        """Costs of sums by switches; None if there were none, or nothing tells what bytes cost."""
        times: dict[float, list[float]] = {}
        for _, nbytes, seconds in self.bursts():
            if nbytes:
                times.setdefault(nbytes, []).append(seconds)
        points: list[tuple[float, float]] = []
        for size in sorted(times):
            # More bytes take no less time.
            points.append((size, max(median(times[size]), points[-1][1] if points else 0.0)))
        if not points:
            return None
        (small, least), (large, most) = points[0], points[-1]
        measured = large >= APART * small
        if measured:
            per_byte_s = (most - least) / (large - small)
        else:
            rate = self.job.first.stats["link"]["bytes_per_s"]
            floor = 0.0 if self.pace_is_of_links or not rate else 1 / rate
            per_byte_s = min(max(self.link_s, floor), most / large)
            points = [(large, most)]
        if not per_byte_s:
            return None
        fixed_s = max(points[0][1] - per_byte_s * points[0][0], 0.0)
        return Curve(fixed_s, tuple(points), per_byte_s, min(self.link_s, most / large), measured)

    @cached_property
    def is_link_bound(self) -> bool:
        """Whether the fullest link of the trees limits the largest bursts."""
        bursts = self.bursts()
        if not bursts or not self.link_s:
            return False
        _, nbytes, seconds = max(bursts, key=lambda each: each[1])
        return self.link_s * nbytes >= FILLED * seconds

    @cached_property
    def pace_holds(self) -> bool:
        """Whether what the ranks measured at the start tells what hosts would take: links are the limit, or the largest
        burst takes the same time in all steps. Hosts that compute while they sum, on too few cores, are slower."""
        bursts = [burst for burst in self.rhythm.bursts if any(c.nbytes for c in self.calls[burst.begin : burst.end])]
        if self.is_link_bound or not bursts:
            return True
        largest = max(bursts, key=self.rhythm.burst_seconds)
        return self.rhythm.varies(largest) <= STEADY

    @cached_property
    def factors(self) -> dict[int, float]:
        """By operation of a step by hosts: its measured time, as a multiple of the model's."""
        found: dict[int, float] = {}
        for burst in self.rhythm.bursts:
            places = [at for at in range(burst.begin, burst.end) if not self.by_switches[at]]
            costs = [cost for at in places if (cost := self.hosts.cost(self.calls[at], self.calls[at].nbytes))]
            if not costs or len(places) != burst.end - burst.begin or len(costs) != len(places):
                continue
            modelled = costs[0].alone_s + sum(cost.following_s for cost in costs[1:])
            factor = self.rhythm.burst_seconds(burst) / modelled if modelled else 1.0
            found |= dict.fromkeys(places, factor)
        return found

    def cost(self, at: int, nbytes: float | None = None, curve: Curve | None = None) -> Cost | None:
        """Of the operation at a place of the step, with its own bytes or others, on its own way. None: unknown."""
        call = self.calls[at]
        size = call.nbytes if nbytes is None else nbytes
        if self.by_switches[at]:
            used = curve or self.curve
            return used.cost(size) if used else None
        return self.hosts.cost(call, size, self.factors.get(at, 1.0))

    @cached_property
    def is_known(self) -> bool:
        """Whether the cost of every operation of a step that moves bytes is known."""
        return all(self.cost(at) is not None for at, call in enumerate(self.calls) if call.nbytes)

    def now(self) -> Costs:
        """The costs as they are."""
        return self.costs(lambda at: self.cost(at))

    def costs(self, of: Callable[[int], Cost | None]) -> Costs:
        """Costs by a function; operations without bytes, as barriers, keep an unknown cost, which replays ignore."""
        return lambda at: of(at) if self.calls[at].nbytes else None

    def step_with(self, of: Callable[[int], Cost | None]) -> float:
        """Seconds of the step if its operations cost this."""
        return self.rhythm.replayed(self.now(), self.costs(of))

    def ring(self, nbytes: float) -> Cost | None:
        """An allreduce in a ring over the ranks in their order: 2(N-1) messages, 2(N-1)/N of the bytes.

        The rate is that of the fullest link, or of the hosts if these limited the messages at the start. None if the
        ranks have measured no pace, or it does not hold.
        """
        link, size = self.job.first.stats["link"], self.job.size
        if link["shared_memory"] or not link["bytes_per_s"] or size < 2 or not self.pace_holds:
            return None
        per_byte_s = 2 * (size - 1) / size / link["bytes_per_s"]
        if self.pace_is_of_links and self.net is not None:
            per_byte_s = ring_seconds(self.net, self.placement) * self.wire
        fixed_s = 2 * (size - 1) * link["latency_s"]
        return Cost(fixed_s + per_byte_s * nbytes, per_byte_s * nbytes)


def switched(job: Job) -> list[Call]:
    """The calls that go through switches: the largest of those that can, as many as the group's counter says."""
    stats = job.first.stats
    wanted = stats["network_operations"]
    if not wanted:
        return []
    kinds: tuple[str, ...] = ("allreduce",)
    if job.first.settings.get("NETSUM_COLLECTIVES") == "all":
        kinds = ("allreduce", "reduce_scatter", "allgather", "broadcast", "reduce")
    able = [call for call in job.first.calls if call.kind in kinds and _adds(call)]
    able.sort(key=lambda call: -call.nbytes)
    best: list[Call] = []
    count, nearest = 0, math.inf
    for at, call in enumerate(able):
        count += call.count
        if abs(count - wanted) < nearest:
            best, nearest = able[: at + 1], abs(count - wanted)
    return best


def _adds(call: Call) -> bool:
    if call.kind in ("allgather", "broadcast"):
        return True
    return call.dtype in IN_NETWORK_DTYPES and call.op in IN_NETWORK_OPS
