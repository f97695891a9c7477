"""The simulator compared with ns-3, in one run. Skipped if ns-3 is not installed.

ns-3's Python package may be in a separate environment: NETSUM_NS3_PYTHON names its interpreter.
"""

import importlib.util
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from random import Random
from statistics import median_low
from typing import Any

import pytest

from netsum import sim

PEERS = Path(__file__).parents[2] / "tests" / "peers"
# The permutation of docs/simulator.md: host i sends to RECEIVERS[i].
RECEIVERS = [5, 13, 3, 10, 8, 9, 1, 2, 6, 4, 12, 14, 0, 15, 7, 11]
K, BYTES, MARK = 4, 1_000_000, 85


def _interpreter() -> str:
    given = os.environ.get("NETSUM_NS3_PYTHON")
    if given:
        return given
    if importlib.util.find_spec("ns") is None:
        pytest.skip("ns-3 is not installed: pip install ns3, or NETSUM_NS3_PYTHON=PYTHON of an environment that has it")
    return sys.executable


def test_a_permutation_takes_as_long_as_in_ns3(tmp_path: Path) -> None:
    command = [_interpreter(), str(PEERS / "ns3_permutation.py"), str(K), str(BYTES), str(MARK), *map(str, RECEIVERS)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    theirs = sorted(json.loads(finished.stdout.splitlines()[-1])["fct_us"])
    result = sim.run(_config(), tmp_path)
    ours = sorted(row["fct_us"] for row in result.rows("flows"))
    assert len(ours) == len(theirs) == 16 and theirs[0] > 0
    for place, name in ((8, "median"), (15, "last")):
        ratio = ours[place] / theirs[place]
        print(f"{name}: {ours[place]:.1f} µs, ns-3 {theirs[place]:.1f} µs, ratio {ratio:.3f}")
        assert abs(ratio - 1) <= 0.05, name


# Scenarios with loss, all through one switch: what differs from one flow of 100 segments over links of 10 µs that loses
# nothing. `data`, `acks`: numbers of the packets that are lost between the first sender and the switch. ns-3's senders
# recover as ns3_recovery.cc says. The last number is how far the distributions of completion times may be apart
# (`_distance`).
PLAIN = {"ecn": True, "senders": 1, "bytes": 144_800, "mark": 85, "queue": 1000, "latency_ns": 10_000}
RENO = {"ecn": False, "mark": 99_999}
LONG = {"bytes": 1_013_600}


def _incast(senders: int, kilobytes: int, **more: Any) -> dict[str, Any]:
    return {"senders": senders, "bytes": kilobytes * 1000, "latency_ns": 1_000} | more


LOSSES: dict[str, tuple[dict[str, Any], float]] = {
    "nothing": ({}, 0.0),
    "first of 10": ({"bytes": 14_480, "data": [0]}, 0.0),
    "last of 10": ({"bytes": 14_480, "data": [9]}, 0.0),
    "first window of 10": ({"bytes": 28_960, "data": [*range(10)]}, 0.0),
    "first window, twice": ({"bytes": 28_960, "data": [*range(11)]}, 0.0),
    "last 50": ({"data": [*range(50, 100)]}, 0.0),
    "one in slow start": ({"data": [30]}, 0.0),
    "three in slow start": ({"data": [30, 31, 32]}, 0.0),
    "first of 100": ({"data": [0]}, 0.0),
    "one of 700": (LONG | {"data": [300]}, 0.0),
    "two of 700": (LONG | {"data": [300, 330]}, 0.0),
    "30 of 700": (LONG | {"data": [*range(300, 330)]}, 0.0),
    "first acknowledgements": ({"acks": [*range(8)]}, 0.0),
    "every other acknowledgement": ({"acks": [*range(0, 100, 2)]}, 0.0),
    "Reno, one in slow start": (RENO | {"data": [30]}, 0.0),
    "Reno, three in slow start": (RENO | {"data": [30, 31, 32]}, 0.0),
    "Reno, last 50": (RENO | {"data": [*range(50, 100)]}, 0.0),
    "Reno, five of 700": (RENO | LONG | {"data": [300, 310, 320, 330, 340]}, 0.0),
    # Marks without loss.
    "4 × 1 MB, marks from 20": (_incast(4, 1000, mark=20), 0.2),
    "8 × 100 kB, marks from 20": (_incast(8, 100, mark=20), 0.2),
    "8 × 1 MB, marks from 20": (_incast(8, 1000, mark=20), 0.2),
    "16 × 300 kB, marks from 20": (_incast(16, 300, mark=20), 0.45),
    # Loss at a queue. Bounds that only guard against a change: which flows lose decides the times.
    "Reno, 8 × 100 kB, queue of 50": (RENO | _incast(8, 100, queue=50), 0.5),
    "Reno, 16 × 100 kB, queue of 100": (RENO | _incast(16, 100, queue=100), 0.5),
    "Reno, 32 × 100 kB, queue of 100": (RENO | _incast(32, 100, queue=100), 0.4),
    "Reno, 64 × 100 kB, queue of 100": (RENO | _incast(64, 100, queue=100), 0.3),
    "Reno, 4 × 1 MB, queue of 100": (RENO | _incast(4, 1000, queue=100), 0.4),
    "Reno, 8 × 1 MB, queue of 100": (RENO | _incast(8, 1000, queue=100), 0.5),
}
# Senders of an incast begin within this time, at random; so many flows in all are compared.
STARTS_NS = 20_000
FLOWS = 48


def _runs(name: str) -> list[dict[str, Any]]:
    """The runs of a scenario; those of an incast differ in when senders begin."""
    scenario = PLAIN | {"data": [], "acks": [], "released": False} | LOSSES[name][0]
    if scenario["senders"] == 1:
        return [scenario | {"starts_ns": [0]}]
    random = Random(name)
    count = max(FLOWS // scenario["senders"], 3)
    return [
        scenario | {"starts_ns": [random.randrange(STARTS_NS) for _ in range(scenario["senders"])]}
        for _ in range(count)
    ]


@cache
def _ns3() -> dict[str, list[list[dict[str, int]]]]:
    """Flows of ns-3 by scenario and run."""
    runs = {name: _runs(name) for name in LOSSES}
    scenarios = [run for all_runs in runs.values() for run in all_runs]
    command = [_interpreter(), str(PEERS / "ns3_loss.py")]
    finished = subprocess.run(command, input=json.dumps(scenarios), capture_output=True, text=True, check=False)
    lines = [line for line in finished.stdout.splitlines() if line.startswith('{"flows"')]
    assert lines, finished.stderr[-2000:]
    flows = iter(json.loads(lines[-1])["flows"])
    return {name: [next(flows) for _ in all_runs] for name, all_runs in runs.items()}


def _ours(scenario: dict[str, Any], starts_ps: list[int], folder: Path) -> list[float]:
    """Completion times in µs of flows that start when those of ns-3 do."""
    senders = scenario["senders"]
    first = min(starts_ps)
    folder.mkdir(parents=True)
    rows = [f"{(at - first) / 1e6},{sender},{senders},{scenario['bytes']}" for sender, at in enumerate(starts_ps)]
    (folder / "flows.csv").write_text("\n".join(rows) + "\n")
    lost = {"h0>rack0": scenario["data"], "rack0>h0": scenario["acks"]}
    faults = [f'{{ kind = "drop", link = "{link}", packets = {packets} }}' for link, packets in lost.items() if packets]
    (folder / "loss.toml").write_text(f'name = "loss"\nfaults = [{", ".join(faults)}]\n')
    config = {
        "duration": "10s",
        "drain": "10s",
        "scenario": str(folder / "loss.toml"),
        "fabric": {"kind": "single-switch", "hosts": senders + 1, "latency": f"{scenario['latency_ns']}ns"},
        "switch": {"mark_packets": scenario["mark"] + 1, "queue_packets": scenario["queue"]},
        "host": {"queue": "fifo"},
        "tcp": {"ecn": scenario["ecn"]},
        "flows": [{"kind": "trace", "path": str(folder / "flows.csv")}],
    }
    return [row["fct_us"] for row in sim.run(config, folder / "out").rows("flows")]


def _distance(ours: list[float], theirs: list[float], alike: float = 0.01) -> float:
    """The Kolmogorov-Smirnov statistic of two samples in which times within `alike` of each other count as equal."""

    def share(of: list[float], until: float) -> float:
        return sum(each <= until for each in of) / len(of)

    pairs = [(ours, theirs), (theirs, ours)]
    return max(share(a, x) - share(b, x * (1 + alike)) for a, b in pairs for x in a)


def test_the_distance_of_two_samples() -> None:
    assert _distance([1.0, 2.0, 3.0, 4.0], [1.005, 2.01, 2.99, 3.99]) == 0.0
    assert _distance([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 30.0, 40.0]) == 0.5
    assert _distance([5.0] * 3, [1.0] * 9) == 1.0


@pytest.mark.parametrize("name", LOSSES)
def test_lost_packets_cost_as_much_as_in_ns3(name: str, tmp_path: Path) -> None:
    ours: list[float] = []
    theirs: list[float] = []
    for number, (run, flows) in enumerate(zip(_runs(name), _ns3()[name], strict=True)):
        assert all(flow["end_ps"] > flow["start_ps"] > 0 for flow in flows), "a flow of ns-3 did not end"
        theirs += [(flow["end_ps"] - flow["start_ps"]) / 1e6 for flow in flows]
        ours += _ours(run, [flow["start_ps"] for flow in flows], tmp_path / str(number))
    assert len(ours) == len(theirs)
    medians = [median_low(ours), median_low(theirs)]
    distance = _distance(ours, theirs)
    print(f"{name}: {medians[0]:.1f} µs, ns-3 {medians[1]:.1f} µs, {len(ours)} flows, distance {distance:.2f}")
    assert distance <= LOSSES[name][1]


def _config() -> dict:
    flows = [{"kind": "one", "src": src, "dst": dst, "bytes": BYTES} for src, dst in enumerate(RECEIVERS)]
    return {
        "duration": "1ms",
        "drain": "1s",
        "fabric": {"kind": "fat-tree", "k": K, "latency": "1us"},
        # One more than ns-3, which does not count the packet in the device's own queue.
        "switch": {"mark_packets": MARK + 1, "queue_packets": 1000, "paths": "destination"},
        "host": {"queue": "fifo"},
        "flows": flows,
    }
