"""From a controller's status to families of metrics.

Names, hosts and tenants come from the network, so their number per scrape is limited, and so is the length of a text.
What changes with every job (its name, its protocol) is in `netsum_job_info` alone: other metrics have its number.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from netsum.reports import ControllerStatus, JobStatus, RankStatus, SwitchStatus, WorkerStatistics

JOBS_MAX = 1024
"""As many live jobs as a controller has; of more, the first."""
RANKS_MAX = 4096
"""Ranks with metrics of their own, over all jobs: 14 series each."""
TENANTS_MAX = 256
"""Tenants with metrics of their own at each switch."""
REASONS_MAX = 64
"""Reasons for drops of each switch."""
TEXT_MAX = 64
"""Characters of a text from the network."""
LIVE = ("joining", "planning", "running")
RANK_STATES = ("awaited", "connected", "away", "left", "lost")

Row = tuple[tuple[str, ...], float]


def families(status: ControllerStatus) -> Iterator[Metric]:
    """All families of a status."""
    jobs = [job for job in status["jobs"] if job["state"] in LIVE][:JOBS_MAX]
    yield from _controller(status)
    yield from _switches(status["switches"])
    yield from _links(status)
    yield from _jobs(jobs)
    yield from _ranks(jobs)


def absent() -> Iterator[Metric]:
    """What is known if the controller does not answer."""
    yield _gauge("controller_up", "Whether the controller answers", (), [((), 0)])


def text(value: str) -> str:
    """A text from the network as a label: printable, and not too long."""
    return "".join(c if c.isprintable() else "?" for c in value[:TEXT_MAX])


def _gauge(name: str, about: str, labels: Iterable[str], rows: Iterable[Row]) -> Metric:
    family = GaugeMetricFamily(f"netsum_{name}", about, labels=tuple(labels))
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _counter(name: str, about: str, labels: Iterable[str], rows: Iterable[Row]) -> Metric:
    family = CounterMetricFamily(f"netsum_{name}", about, labels=tuple(labels))
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _controller(status: ControllerStatus) -> Iterator[Metric]:
    yield _gauge("controller_up", "Whether the controller answers", (), [((), 1)])
    labels = ("fabric", "version")
    about = "The controller's fabric and version"
    yield _gauge("controller_info", about, labels, [((text(status["fabric"]), text(status["version"])), 1)])
    yield _gauge("controller_uptime_seconds", "Time since the controller's start", (), [((), status["uptime_s"])])
    store = status["store"]
    failing, failures = (store["failing_for_s"], store["failures"]) if store else (0, 0)
    about = "For how long the controller's store cannot be written; 0: it can"
    yield _gauge("controller_store_failing_seconds", about, (), [((), failing)])
    about = "Writes to the controller's store that failed"
    yield _counter("controller_store_failures", about, (), [((), failures)])


def _switches(switches: list[SwitchStatus]) -> Iterator[Metric]:
    def each(value: Callable[[SwitchStatus], float]) -> list[Row]:
        return [((switch["name"],), value(switch)) for switch in switches]

    one = ("switch",)
    up = [((switch["name"], switch["role"]), float(switch["state"] == "up")) for switch in switches]
    yield _gauge("fabric_switch_up", "Whether a switch or server reports to the controller", ("switch", "role"), up)
    memory = each(lambda switch: switch["memory_bytes"])
    yield _gauge("fabric_switch_memory_bytes", "Memory of a switch for aggregation", one, memory)
    leased = each(lambda switch: switch["memory_leased_bytes"])
    yield _gauge("fabric_switch_memory_leased_bytes", "Of it, granted to jobs", one, leased)
    slots = each(lambda switch: switch["slots"])
    yield _gauge("fabric_switch_slots", "Slots of a switch", one, slots)
    held = each(lambda switch: switch["slots_held"])
    yield _gauge("fabric_switch_slots_held", "Of them, in use", one, held)
    drops = []
    for s in switches:
        for reason, count in list(s["drops"].items())[:REASONS_MAX]:
            drops.append(((s["name"], text(reason)), float(count)))
    about = "Packets that a switch received and did not take"
    yield _counter("fabric_switch_dropped_packets", about, ("switch", "reason"), drops)
    yield from _tenants(switches)


def _tenants(switches: list[SwitchStatus]) -> Iterator[Metric]:
    shown = [(switch["name"], tenant) for switch in switches for tenant in switch["tenants"][:TENANTS_MAX]]
    labels = ("switch", "tenant")
    figures: list[tuple[str, str, Callable[[Any], float]]] = [
        ("packets", "A tenant's packets that a switch took", lambda tenant: tenant["packets"]),
        ("marked_packets", "Of them, marked close to the rate or the share", lambda tenant: tenant["marked"]),
        ("dropped_packets", "Packets beyond the rate or the share", lambda tenant: tenant["dropped"]),
    ]
    for name, about, value in figures:
        rows = [((switch, text(tenant["tenant"])), value(tenant)) for switch, tenant in shown]
        yield _counter(f"fabric_tenant_{name}", about, labels, rows)


def _links(status: ControllerStatus) -> Iterator[Metric]:
    links, ends = status["links"], ("from", "to")
    sent = [((link["a"], link["b"]), float(link["bytes_ab"])) for link in links]
    sent += [((link["b"], link["a"]), float(link["bytes_ba"])) for link in links]
    yield _counter("fabric_link_sent_bytes", "Bytes of aggregation over a link", ends, sent)
    rates = [((link["a"], link["b"]), link["rate_bps"] / 8) for link in links]
    rates += [((b, a), rate) for (a, b), rate in list(rates)]
    yield _gauge(
        "fabric_link_capacity_bytes_per_second", "Bytes per second of a link, as in the fabric file", ends, rates
    )
    up = [((link["a"], link["b"]), float(link["up"])) for link in links]
    yield _gauge("fabric_link_up", "Whether both ends of a link are up", ends, up)


def _jobs(jobs: list[JobStatus]) -> Iterator[Metric]:
    states = [((state,), float(sum(job["state"] == state for job in jobs))) for state in LIVE]
    yield _gauge("jobs", "Live jobs by state", ("state",), states)
    info = [((str(job["job"]), text(job["name"]), text(job["tenant"]), text(job["protocol"])), 1.0) for job in jobs]
    about = "Name, tenant and protocol of a job"
    yield _gauge("job_info", about, ("job", "name", "tenant", "protocol"), info)
    state = [((str(job["job"]), state), float(job["state"] == state)) for job in jobs for state in LIVE]
    yield _gauge("job_state", "1 for the state of a job, else 0", ("job", "state"), state)
    one = ("job",)
    yield _gauge("job_epoch", "Version of a job's plan", one, [((str(job["job"]),), job["epoch"]) for job in jobs])
    trees = [((str(job["job"]),), float(len(job["trees"]))) for job in jobs]
    yield _gauge("job_trees", "Trees of a job; 0: its sums use the hosts", one, trees)
    rows = []
    for job in jobs:
        for name in RANK_STATES:
            rows.append(((str(job["job"]), name), float(sum(rank["state"] == name for rank in job["ranks"]))))
    yield _gauge("job_ranks", "Ranks of a job by state", ("job", "state"), rows)


Figure = tuple[str, str, Callable[[WorkerStatistics], float]]


def _over_trees(statistics: WorkerStatistics, name: str) -> float:
    # The keys of a typed dictionary are literals.
    trees: list[Any] = list(statistics["trees"])
    return float(sum(tree[name] for tree in trees))


COUNTERS: tuple[Figure, ...] = (
    ("operations", "Operations of a rank", lambda s: s["operations"]),
    ("network_operations", "Of them, summed by switches", lambda s: s["network_operations"]),
    ("host_sent_bytes", "Bytes that a rank sent to other ranks", lambda s: s["host_bytes_tx"]),
    ("host_received_bytes", "Bytes that a rank received from other ranks", lambda s: s["host_bytes_rx"]),
    ("tree_sent_bytes", "Bytes that a rank sent to switches", lambda s: _over_trees(s, "bytes_tx")),
    ("tree_received_bytes", "Bytes that a rank received from switches", lambda s: _over_trees(s, "bytes_rx")),
    ("results", "Results that a rank received", lambda s: _over_trees(s, "results")),
    ("retransmissions", "Packets that a rank sent again", lambda s: _over_trees(s, "retransmits")),
    (
        "spurious_retransmissions",
        "Of them, those that were not needed",
        lambda s: _over_trees(s, "spurious_retransmits"),
    ),
    ("marks", "Results with a mark of congestion", lambda s: _over_trees(s, "marks")),
)

GAUGES: tuple[Figure, ...] = (
    (
        "window_fragments",
        "The least window of a rank's trees",
        lambda s: min((tree["window"] for tree in s["trees"]), default=0),
    ),
    (
        "round_trip_seconds",
        "The longest round trip of a rank's trees",
        lambda s: max((tree["rtt_ns"] for tree in s["trees"]), default=0) / 1e9,
    ),
    ("silent_trees", "Trees from which a rank hears nothing", lambda s: len(s["silent_trees"])),
    ("unreachable_ranks", "Ranks that a rank cannot reach", lambda s: len(s["unreachable_ranks"])),
    ("pause_seconds", "The last pause of a rank's trees", lambda s: s["pauses"][-1]["seconds"] if s["pauses"] else 0),
)


def _ranks(jobs: list[JobStatus]) -> Iterator[Metric]:
    every = [(job["job"], rank) for job in jobs for rank in job["ranks"]]
    shown = every[:RANKS_MAX]
    about = "Ranks without metrics of their own, because there are too many"
    yield _gauge("ranks_not_shown", about, (), [((), len(every) - len(shown))])
    for kind, figures in ((_counter, COUNTERS), (_gauge, GAUGES)):
        for name, about, value in figures:
            yield kind(f"rank_{name}", about, ("job", "rank"), _of_ranks(shown, value))


def _of_ranks(shown: list[tuple[int, RankStatus]], value: Callable[[WorkerStatistics], float]) -> Iterator[Row]:
    for job, rank in shown:
        if rank["statistics"] is not None:
            yield (str(job), str(rank["rank"])), value(rank["statistics"])
