"""Temporary faults: the job continues with the right sums, and is back on all trees within two seconds of the end."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from fabric import Fabric, Slots, Workers
from namespaces import GUARD_S, run
from network import Network, why_no_loss
from test_throughput import write

SLOTS = Slots(servers=("h1", "h2"), trusted=False)
BUFFER = {"numel": 1 << 18, "timeout_s": 60}
BACK_WITHIN_S = 2.0
STEADY_S = 4.0
"""A recovered job must stay recovered for this long: trials of plans are over by then."""
MEASURED: dict[str, dict[str, float]] = {}

needs_iptables = pytest.mark.skipif(why_no_loss() is not None, reason=str(why_no_loss()))


@pytest.fixture(scope="module")
def network():
    with Network(2, 2, 2, 1_000_000_000) as network:
        yield network
    write("recovery", {"unit": "seconds", "faults": MEASURED})


@dataclasses.dataclass(frozen=True)
class Sum:
    """One sum at one rank: the clock at its end, and its path."""

    at: float
    by_switches: bool
    trees: int
    epoch: int
    reason: str


class Job:
    """A running job of four ranks."""

    def __init__(self, fabric: Fabric, protocol: str, **environment: str):
        environment = {"NETSUM_PROTOCOL": protocol, "NETSUM_MIN_BYTES": "0"} | environment
        hosts = fabric.network.hosts
        self.workers = Workers(fabric, hosts, "recovery_worker.py", json.dumps(BUFFER), **environment)
        self.workers.wait_for_step(10)
        self.trees = self.sums(0)[-1].trees
        assert self.trees > 0, self.sums(0)[-1]

    def sums(self, rank: int) -> list[Sum]:
        lines = (self.workers.directory / f"{rank}.line").read_text().splitlines(keepends=True)
        return [Sum(*json.loads(line)) for line in lines if line.endswith("\n")]

    def back_after(self, end: float) -> float:
        """Seconds from `end` until all sums of all ranks use all trees, and continue to."""
        deadline = time.monotonic() + GUARD_S
        while (back := self._back(end)) is None:
            assert time.monotonic() < deadline, [self.sums(rank)[-1] for rank in range(4)]
            for rank, process in enumerate(self.workers.processes):
                assert process.poll() is None, self.workers.log(rank)
            time.sleep(0.2)
        return back - end

    def _back(self, end: float) -> float | None:
        """The time of recovery, if it has lasted long enough."""
        back = end
        for rank in range(len(self.workers.hosts)):
            sums = self.sums(rank)
            on_all = [self.is_on_all_trees(each) for each in sums]
            since = len(on_all) - on_all[::-1].index(False) if False in on_all else 0
            held = [each.at for each in sums[since:] if each.at > end]
            if not held or held[-1] < held[0] + STEADY_S:
                return None
            back = max(back, held[0])
        return back

    def is_on_all_trees(self, each: Sum) -> bool:
        return each.by_switches and each.trees == self.trees

    def finish(self) -> list[dict]:
        self.workers.finish()
        return self.workers.wait()


@contextlib.contextmanager
def stopped(fabric: Fabric, name: str) -> Iterator[None]:
    process = fabric.processes[name]
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def dropped(network: Network, node: str, *packets: str) -> Iterator[None]:
    """Drop packets that arrive at a node, for itself or others."""
    rule = ("-t", "raw", "{}", "PREROUTING", *packets, "-j", "DROP")
    _iptables(network, node, rule, "-A")
    try:
        yield
    finally:
        _iptables(network, node, rule, "-D")


def _iptables(network: Network, node: str, rule: tuple[str, ...], verb: str) -> None:
    run(*network.inside(node), "iptables", "-w", *(word.replace("{}", verb) for word in rule))


@contextlib.contextmanager
def link_down(network: Network, a: str, b: str, *packets: str) -> Iterator[None]:
    """Drop packets of a kind on a link, in both directions."""
    with dropped(network, a, "-i", b, *packets), dropped(network, b, "-i", a, *packets):
        yield


@contextlib.contextmanager
def rack_cut_off(network: Network, *packets: str) -> Iterator[None]:
    with link_down(network, "rack0", "spine0", *packets), link_down(network, "rack0", "spine1", *packets):
        yield


UDP = ("-p", "udp")
LARGE = ("-p", "udp", "-m", "length", "--length", "600:65535")
Fault = Callable[[Fabric, str], contextlib.AbstractContextManager[None]]
FAULTS: dict[str, Fault] = {
    "root stopped": lambda fabric, root: stopped(fabric, root),
    "rack stopped": lambda fabric, _: stopped(fabric, "rack0"),
    "server stopped": lambda fabric, _: stopped(fabric, "server0"),
    "link of a spine": lambda fabric, spine: link_down(fabric.network, "rack0", spine, *UDP),
    "link of a spine upwards": lambda fabric, spine: dropped(fabric.network, spine, "-i", "rack0", *UDP),
    "link of a spine downwards": lambda fabric, spine: dropped(fabric.network, "rack0", "-i", spine, *UDP),
    "link of a spine, large packets": lambda fabric, spine: link_down(fabric.network, "rack0", spine, *LARGE),
    "links between racks": lambda fabric, _: rack_cut_off(fabric.network, *UDP),
    "links between racks, large packets": lambda fabric, _: rack_cut_off(fabric.network, *LARGE),
    "link of a worker": lambda fabric, _: link_down(fabric.network, "h0", "rack0", *UDP),
    "link of a worker, large packets": lambda fabric, _: link_down(fabric.network, "h0", "rack0", *LARGE),
    "link of a worker, all packets": lambda fabric, _: link_down(fabric.network, "h0", "rack0"),
}


def recover(network: Network, protocol: str, fault: str, seconds: float) -> None:
    """Run a job through a fault; it must recover in time with the right sums."""
    with Fabric(network, slots=SLOTS) as fabric:
        job = Job(fabric, protocol)
        root = fabric.status()["jobs"][-1]["trees"][-1]["root"]
        with FAULTS[fault](fabric, root):
            began = time.time()
            time.sleep(seconds)
            end = time.time()
        back = job.back_after(end)
        job.finish()
        sums = [each.at for each in job.sums(0)]
    pauses = {later: later - earlier for earlier, later in itertools.pairwise(sums)}
    longest = max(pause for later, pause in pauses.items() if later > began)
    MEASURED[f"{protocol}: {fault} for {seconds} s"] = {"back": round(back, 2), "longest pause": round(longest, 2)}
    assert back <= BACK_WITHIN_S, f"{back:.1f} s"
    assert longest >= min(seconds, 1.0) / 2, "the fault has stopped nothing"
    if seconds >= 8:
        assert longest < seconds, "the job has not gone on during the fault"


BRIEF = [
    ("panama", "root stopped", 3.0),
    ("panama", "link of a spine", 4.0),
    ("panama", "link of a worker, large packets", 2.0),
    ("atp", "rack stopped", 3.0),
    ("switchml", "root stopped", 3.0),
]
LINKS = [fault for fault in FAULTS if fault.startswith("link")]
THOROUGH = [
    *(("panama", f"{which} stopped", seconds) for which in ("root", "rack") for seconds in (0.3, 3.0, 8.0)),
    *(("panama", fault, 4.0) for fault in LINKS),
    ("panama", "link of a spine", 15.0),
    *(("atp", fault, 4.0) for fault in ("rack stopped", "server stopped", *LINKS) if "spine" not in fault),
    *(("switchml", fault, 4.0) for fault in ("root stopped", *LINKS) if "spine" not in fault),
    *((protocol, "links between racks", 10.0) for protocol in ("panama", "atp", "switchml")),
]


@needs_iptables
@pytest.mark.parametrize(("protocol", "fault", "seconds"), BRIEF)
def test_a_job_is_back_on_all_trees_soon_after_a_fault(network, protocol, fault, seconds):
    recover(network, protocol, fault, seconds)


@pytest.mark.figures
@needs_iptables
@pytest.mark.parametrize(("protocol", "fault", "seconds"), [each for each in THOROUGH if each not in BRIEF])
def test_a_job_is_back_on_all_trees_soon_after_any_fault(network, protocol, fault, seconds):
    recover(network, protocol, fault, seconds)
