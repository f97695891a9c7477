"""From statuses to the figures that the page draws, several times a minute or a second."""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from statistics import median
from typing import Any

from netsum.dashboard.rates import Rates, Totals
from netsum.dashboard.topology import topology
from netsum.dashboard.words import LinkLoad, Reason, Straggler, reasons, straggler, worth_telling
from netsum.fabric import stragglers
from netsum.reports import JOB_OVER, ControllerStatus, JobStatus, LinkStatus, Pause, SwitchStatus, WorkerStatistics
from netsum.reports import Straggler as Metered

ENDED_SHOWN = 20
"""Jobs that are over, of which the page shows the last ones."""
METERED_MAX = 4
"""Sentences about what a job's switches wait for."""
HISTORY = 300
"""Points of a job's curves: five minutes."""
POINT_S = 1.0
METERED_S = 2.0
"""Switches report their meters once a second."""
_OF_JOBS = ("job operations", "job bytes", "job results", "job lost", "job marks")
_OF_SWITCHES = ("results", "switch marks")
Shape = tuple[Any, ...]
_STATES = {"up": 0, "expected": 1, "down": 2}


class View:
    """The current figures, from all statuses so far."""

    def __init__(self) -> None:
        self.status: ControllerStatus | None = None
        self.topology: dict[str, Any] = {"id": "", "nodes": [], "links": [], "switches": []}
        self._rates = Rates()
        self._jobs: dict[int, Totals] = {}
        self._switches: dict[str, Totals] = {}
        self._shape: Shape = ()
        self._places: dict[frozenset[str], int] = {}
        self._loads: list[tuple[float, float]] = []
        self._said: dict[int, list[Reason]] = {}
        self._history: dict[int, deque[list[float | None]]] = {}
        self._last_point = 0.0
        self._metered: dict[int, list[Metered]] = {}
        self._last_meters: tuple[float, ControllerStatus] | None = None

    def take(self, status: ControllerStatus, at: float) -> None:
        """Take a status. at: monotonic seconds."""
        self.status = status
        shape = _shape(status)
        if shape != self._shape:
            self._shape, self.topology = shape, topology(status)
            self._places = {frozenset((link["a"], link["b"])): index for index, link in enumerate(status["links"])}
        self._rates.add(at, self._counters(status))
        self._loads = [self._load(link) for link in status["links"]]
        self._read_meters(status, at)
        self._said = {job["job"]: self._reasons(job) for job in status["jobs"] if job["state"] not in JOB_OVER}
        if at - self._last_point >= POINT_S:
            self._last_point = at
            self._remember(status)

    def overview(self) -> dict[str, Any]:
        """All panels but a job's own page. Figures of links and switches are in the topology's order; those of a link
        are the loads of its two directions in thousandths, and whether it is up."""
        status = self.status
        if status is None:
            return {"fabric": None, "topology": "", "switches": [], "links": [], "jobs": [], "tenants": []}
        store = status["store"]
        return {
            "fabric": {
                "name": status["fabric"],
                "address": status["address"],
                "version": status["version"],
                "uptime_s": round(status["uptime_s"]),
                "problem": store["problem"] if store else "",
            },
            "topology": self.topology["id"],
            "switches": [self._switch(switch) for switch in status["switches"]],
            "links": [
                figure
                for link, (there, back) in zip(status["links"], self._loads, strict=True)
                for figure in (round(1000 * there), round(1000 * back), int(link["up"]))
            ],
            "jobs": [self._summary(job) for job in _shown(status["jobs"])],
            "tenants": self._tenants(status),
        }

    def job(self, number: int) -> dict[str, Any] | None:
        """The page of a job without its operations; None if there is none of that number."""
        found = [job for job in self.status["jobs"] if job["job"] == number] if self.status else []
        if not found:
            return None
        job = found[0]
        return {
            **self._summary(job),
            "choice": job["choice"],
            "order": job["order"],
            "window_max": job["window_max"],
            "created_unix_s": job["created_unix_s"],
            "reasons": [asdict(reason) for reason in self._said.get(number, ())],
            "ranks": [self._rank(job, rank) for rank in job["ranks"]],
            "trees_of": [self._tree(job, tree) for tree in job["trees"]],
            "pauses": pauses(job),
            "history": list(self._history.get(number, ())),
            "links_of": [asdict(link) for link in sorted(self._loads_of(job), key=lambda link: -link.load)[:12]],
        }

    def _reasons(self, job: JobStatus) -> list[Reason]:
        lost, marked = self._shares(job)
        metered = self._metered.get(job["job"], [])
        return reasons(job, time.time(), self._loads_of(job), lost, marked, metered)

    def _read_meters(self, status: ControllerStatus, at: float) -> None:
        """Compare the switches' meters with those of some time ago."""
        before, earlier = self._last_meters or (at, status)
        if self._last_meters is None or at - before >= METERED_S:
            self._last_meters = (at, status)
        if at - before >= METERED_S:
            self._metered = {}
            for each in stragglers.between(earlier, status, at - before):
                self._metered.setdefault(each["job"], []).append(each)

    def _counters(self, status: ControllerStatus) -> dict[Any, float]:
        """All counters of which the page shows rates."""
        found: dict[Any, float] = {}
        for link in status["links"]:
            found["link", link["a"], link["b"]] = link["bytes_ab"]
            found["link", link["b"], link["a"]] = link["bytes_ba"]
        switches = {switch["name"]: switch for switch in status["switches"]}
        self._switches = {name: self._switches.get(name) or Totals(len(_OF_SWITCHES)) for name in switches}
        for name, switch in switches.items():
            found["drops", name] = sum(switch["drops"].values())
            totals = self._switches[name]
            totals.add(((tree["job"], tree["tree"]), (tree["results"], tree["marks"])) for tree in switch["trees"])
            found.update(((what, name), count) for what, count in zip(_OF_SWITCHES, totals.sums, strict=True))
        jobs = {job["job"]: job for job in status["jobs"] if job["state"] not in JOB_OVER}
        self._jobs = {number: self._jobs.get(number) or Totals(len(_OF_JOBS)) for number in jobs}
        for number, job in jobs.items():
            totals = self._jobs[number]
            totals.add(_parts(job))
            found.update(((what, number), count) for what, count in zip(_OF_JOBS, totals.sums, strict=True))
        return found

    def _switch(self, switch: SwitchStatus) -> list[float]:
        name = switch["name"]
        results = self._rates.growth(("results", name))
        marks = self._rates.growth(("switch marks", name)) / results if results else 0.0
        return [
            _STATES[switch["state"]],
            round(switch["state_for_s"]),
            switch["memory_used_bytes"],
            switch["memory_leased_bytes"],
            switch["memory_bytes"],
            round(self._rates.per_s(("drops", name)), 1),
            round(min(marks, 1.0), 3),
            len(switch["trees"]),
        ]

    def _load(self, link: LinkStatus) -> tuple[float, float]:
        """The loads of a link from a to b and back, as shares of its rate."""
        a, b, rate = link["a"], link["b"], link["rate_bps"]
        if not rate:
            return 0.0, 0.0
        there, back = self._rates.per_s(("link", a, b)), self._rates.per_s(("link", b, a))
        return 8 * there / rate, 8 * back / rate

    def _loads_of(self, job: JobStatus) -> list[LinkLoad]:
        """Loads of both directions of the links on a job's trees."""
        links = self.status["links"] if self.status else []
        found = []
        for place in sorted(self._places[edge] for edge in edges(job) if edge in self._places):
            link, (there, back) = links[place], self._loads[place]
            found += [LinkLoad(link["a"], link["b"], there), LinkLoad(link["b"], link["a"], back)]
        return found

    def _shares(self, job: JobStatus) -> tuple[float, float]:
        number = job["job"]
        results = self._rates.growth(("job results", number))
        if not results:
            return 0.0, 0.0
        lost = self._rates.growth(("job lost", number)) / results
        return lost, min(self._rates.growth(("job marks", number)) / results, 1.0)

    def _summary(self, job: JobStatus) -> dict[str, Any]:
        number, size = job["job"], job["size"]
        statistics = _statistics(job)
        trees = [tree for each in statistics for tree in each["trees"]]
        lost, marked = self._shares(job)
        late = straggler(job)
        said = self._said.get(number, [])
        paused = pauses(job)
        sent = sum(tree["bytes_tx"] + tree["bytes_rx"] for tree in trees)
        return {
            "job": number,
            "name": job["name"],
            "tenant": job["tenant"] or "default",
            "state": job["state"],
            "protocol": job["protocol"],
            "size": size,
            "epoch": job["epoch"],
            "trees": len(job["trees"]),
            "reason": job["reason"],
            **_step(statistics),
            "operations_per_s": round(self._rates.per_s(("job operations", number)) / max(size, 1), 1),
            "sum_bps": round(8 * self._rates.per_s(("job bytes", number)) / max(size, 1)),
            "saved_bytes": round(sent * (2 * (size - 1) / size - 1)) if size else 0,
            "saved_share": 1 - size / (2 * (size - 1)) if size > 2 and sent else 0.0,
            "window": min((tree["window"] for tree in trees), default=0),
            "rtt_us": round(max((tree["rtt_ns"] for tree in trees), default=0) / 1e3),
            "lost": round(lost, 4),
            "marked": round(marked, 4),
            "recoveries": len(paused),
            "paused_s": round(sum(pause["seconds"] for pause in paused), 3),
            "connected": sum(rank["state"] == "connected" for rank in job["ranks"]),
            "straggler": _straggler(late),
            "metered": [
                stragglers.sentence(each) for each in worth_telling(self._metered.get(number, []))[:METERED_MAX]
            ],
            "level": said[0].level if said else "info",
            "says": said[0].text if said else "",
        }

    def _rank(self, job: JobStatus, rank: Any) -> dict[str, Any]:
        statistics: WorkerStatistics | None = rank["statistics"]
        trees = statistics["trees"] if statistics else []
        step = statistics["step"] if statistics else None
        return {
            "rank": rank["rank"],
            "host": rank["host"],
            "pid": rank["pid"],
            "state": rank["state"],
            "window": min((tree["window"] for tree in trees), default=None),
            "rtt_us": round(max((tree["rtt_ns"] for tree in trees), default=0) / 1e3),
            "resent": sum(tree["retransmits"] for tree in trees),
            "marks": sum(tree["marks"] for tree in trees),
            "step_s": step["seconds"] if step else None,
            "exposed_s": step["exposed_s"] if step else None,
            "host_bytes": statistics["host_bytes_tx"] if statistics else 0,
        }

    def _tree(self, job: JobStatus, tree: Any) -> dict[str, Any]:
        of_ranks = [each for s in _statistics(job) for each in s["trees"] if each["tree"] == tree["tree"]]
        return {
            "tree": tree["tree"],
            "root": tree["root"],
            "switches": [node["switch"] for node in tree["nodes"]],
            "window": min((each["window"] for each in of_ranks), default=None),
            "rtt_us": round(max((each["rtt_ns"] for each in of_ranks), default=0) / 1e3),
            "resent": sum(each["retransmits"] for each in of_ranks),
            "marks": sum(each["marks"] for each in of_ranks),
        }

    def _tenants(self, status: ControllerStatus) -> list[dict[str, Any]]:
        """What tenants send to switches, and whether a switch has cut them."""
        tenants: dict[str, dict[str, Any]] = {}

        def of(name: str) -> dict[str, Any]:
            new = {"tenant": name, "jobs": 0, "bps": 0.0, "marked": 0, "dropped": 0}
            return tenants.setdefault(name, new)

        for job in status["jobs"]:
            if job["state"] not in JOB_OVER:
                entry = of(job["tenant"] or "default")
                entry["jobs"] += 1
                entry["bps"] += 8 * self._rates.per_s(("job bytes", job["job"]))
        for switch in status["switches"]:
            for tenant in switch["tenants"]:
                if tenant["tenant"] in tenants:
                    entry = of(tenant["tenant"])
                    entry["marked"] += tenant["marked"]
                    entry["dropped"] += tenant["dropped"]
        total = sum(entry["bps"] for entry in tenants.values())
        for entry in tenants.values():
            entry["share"] = round(entry["bps"] / total, 4) if total else 0.0
            entry["bps"] = round(entry["bps"])
        return sorted(tenants.values(), key=lambda entry: (-entry["bps"], entry["tenant"]))

    def _remember(self, status: ControllerStatus) -> None:
        live = [job for job in status["jobs"] if job["state"] not in JOB_OVER]
        for number in set(self._history) - {job["job"] for job in live}:
            del self._history[number]
        now = round(time.time(), 1)
        for job in live:
            statistics = _statistics(job)
            step = _step(statistics)
            trees = [tree for each in statistics for tree in each["trees"]]
            window = min((tree["window"] for tree in trees), default=0)
            rate = 8 * self._rates.per_s(("job bytes", job["job"])) / max(job["size"], 1)
            point = [now, step["step_s"], step["exposed_s"], round(rate), window]
            self._history.setdefault(job["job"], deque(maxlen=HISTORY)).append(point)


def _parts(job: JobStatus) -> Iterator[tuple[Any, tuple[float, ...]]]:
    """The counters `_OF_JOBS` of each rank's host path and trees."""
    for rank in job["ranks"]:
        if each := rank["statistics"]:
            yield rank["rank"], (each["operations"], each["host_bytes_tx"], 0, 0, 0)
            for tree in each["trees"]:
                lost = tree["retransmits"] - tree["spurious_retransmits"]
                counted = (0, tree["bytes_tx"], tree["results"], lost, tree["marks"])
                yield (rank["rank"], tree["tree"]), counted


def _shape(status: ControllerStatus) -> Shape:
    """What the topology follows from."""
    hosts = tuple(host["name"] for host in status["hosts"])
    switches = tuple((switch["name"], switch["role"], switch["host"]) for switch in status["switches"])
    return hosts, switches, tuple((link["a"], link["b"], link["rate_bps"]) for link in status["links"])


def pauses(job: JobStatus) -> list[dict[str, Any]]:
    """The pauses of a job, oldest first: what several ranks report within a moment is one, the longest of them."""
    return merged_pauses([pause for each in _statistics(job) for pause in each["pauses"]])


def merged_pauses(every: list[Pause]) -> list[dict[str, Any]]:
    """The pauses that several ranks have reported, as of one job."""
    found: list[dict[str, Any]] = []
    for pause in sorted(every, key=lambda pause: pause["at_unix_s"]):
        if found and pause["at_unix_s"] - found[-1]["at_unix_s"] < 1.0:
            if pause["seconds"] > found[-1]["seconds"]:
                found[-1] = {**pause, "at_unix_s": found[-1]["at_unix_s"]}
        else:
            found.append(dict(pause))
    return found


def edges(job: JobStatus) -> set[frozenset[str]]:
    """The pairs of neighbours on a job's trees."""
    hosts = {rank["rank"]: rank["host"] for rank in job["ranks"]}
    found = set()
    for tree in job["trees"]:
        for node in tree["nodes"]:
            if node["parent"]:
                path = [node["switch"], *node["via"], node["parent"]]
                found |= {frozenset(pair) for pair in pairwise(path)}
            for child in node["children"]:
                rank = child["child"].get("Rank")
                if rank is not None and hosts.get(int(rank)):
                    found.add(frozenset((node["switch"], hosts[int(rank)])))
    return found


def _shown(jobs: list[JobStatus]) -> list[JobStatus]:
    over = [job["job"] for job in jobs if job["state"] in JOB_OVER][-ENDED_SHOWN:]
    return [job for job in jobs if job["state"] not in JOB_OVER or job["job"] in over]


def _statistics(job: JobStatus) -> list[WorkerStatistics]:
    return [rank["statistics"] for rank in job["ranks"] if rank["statistics"]]


def _step(statistics: list[WorkerStatistics]) -> dict[str, Any]:
    """The median step of the ranks, and how much of its communication computing hides."""
    steps = [each["step"] for each in statistics if each["step"]]
    if not steps:
        return {"step_s": None, "exposed_s": None, "overlap": None, "step_operations": 0, "step_bytes": 0}
    communicating = median(step["communicating_s"] for step in steps)
    exposed = median(step["exposed_s"] for step in steps)
    return {
        "step_s": median(step["seconds"] for step in steps),
        "exposed_s": exposed,
        "overlap": round(1 - exposed / communicating, 3) if communicating else None,
        "step_operations": steps[0]["operations"],
        "step_bytes": steps[0]["bytes"],
    }


def _straggler(found: Straggler | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"rank": found.rank["rank"], "host": found.rank["host"], "pid": found.rank["pid"], "late_s": found.late_s}
