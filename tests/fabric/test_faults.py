"""SIGKILL of a switch, of the controller, of a worker, at random times. NETSUM_FABRIC_FAULT_RUNS: number of
repetitions."""

from __future__ import annotations

import json
import os
import random
import time

import pytest

from fabric import Fabric, Workers
from namespaces import GUARD_S
from network import Network
from test_throughput import write

RUNS = int(os.environ.get("NETSUM_FABRIC_FAULT_RUNS", "5"))
ARGUMENTS = json.dumps({"steps": 60})


@pytest.fixture(scope="module")
def network():
    with Network(2, 2, 2, 1_000_000_000) as network:
        yield network


@pytest.fixture(scope="module")
def undisturbed(network):
    with Fabric(network) as fabric:
        return Workers(fabric, network.hosts, "training.py", ARGUMENTS).wait()[0]


def test_a_dead_switch_or_controller_changes_no_bit(network, undisturbed):
    chance = random.Random(20260101)
    rows = []
    for run in range(RUNS):
        victim = [*network.racks, *network.spines, "controller"][run % 5]
        with Fabric(network) as fabric:
            workers = Workers(fabric, network.hosts, "training.py", ARGUMENTS)
            workers.wait_for_step(1)
            time.sleep(chance.uniform(0, 1.5))
            fabric.kill(victim)
            ranks = workers.wait()
        rows.append({"killed": victim, "pauses": ranks[0]["pauses"], "seconds": ranks[0]["seconds"]})
        for rank in ranks:
            assert rank["digest"] == undisturbed["digest"], (victim, rank)
    write("faults", {"undisturbed_seconds": undisturbed["seconds"], "runs": rows})


@pytest.mark.parametrize("victim", [0, 3])
def test_a_dead_worker_is_named_and_its_memory_comes_back(network, victim):
    with Fabric(network) as fabric:
        workers = Workers(fabric, network.hosts, "training.py", json.dumps({"steps": 100_000}))
        workers.wait_for_step(1)
        workers.processes[victim].kill()
        workers.wait(expect_failure=True)
        for rank in range(4):
            if rank != victim:
                assert workers.processes[rank].returncode != 0
                assert f"rank {victim}" in workers.log(rank), workers.log(rank)
        deadline = time.monotonic() + GUARD_S
        while any(switch["memory_used_bytes"] for switch in fabric.status()["switches"]):
            assert time.monotonic() < deadline, fabric.status()
            time.sleep(0.5)
