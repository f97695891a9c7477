"""FSDP2 on a network whose switches die: SIGKILL of a spine and of a rack switch in the middle of one training.

NETSUM_FABRIC_FAULT_RUNS: number of disturbed trainings, 1 by default.
"""

from __future__ import annotations

import json
import os
import random
import statistics

import pytest

from fabric import Fabric, Workers
from network import Network
from test_throughput import write

RUNS = max(1, int(os.environ.get("NETSUM_FABRIC_FAULT_RUNS", "1")))
STEPS = 40
ARGUMENTS = json.dumps({"steps": STEPS, "pause_s": 0.02})


@pytest.fixture(scope="module")
def network():
    with Network(2, 2, 2, 1_000_000_000) as network:
        yield network


@pytest.fixture(scope="module")
def undisturbed(network):
    with Fabric(network) as fabric:
        ranks = Workers(fabric, network.hosts, "sharded.py", ARGUMENTS).wait()
    assert ranks[0]["network_operations"] >= STEPS and ranks[0]["epoch"] == 1
    return ranks[0]


@pytest.mark.parametrize("collectives", ["allreduce", "all"])
def test_dead_switches_change_no_bit_of_a_sharded_training(network, undisturbed, collectives):
    chance = random.Random(20261125)
    rows = []
    for _ in range(RUNS):
        spine, rack = chance.choice(network.spines), chance.choice(network.racks)
        with Fabric(network) as fabric:
            workers = Workers(fabric, network.hosts, "sharded.py", ARGUMENTS, NETSUM_COLLECTIVES=collectives)
            workers.wait_for_step(chance.randint(2, STEPS // 4))
            fabric.kill(spine)
            workers.wait_for_steps(chance.randint(2, STEPS // 4))
            # It comes back, and the training is on both trees again or not when the rack switch dies.
            fabric.start_switch(spine)
            workers.wait_for_steps(2)
            fabric.kill(rack)
            ranks = workers.wait()
        rows.append({"killed": [spine, rack], "pauses": ranks[0]["pauses"], "seconds": ranks[0]["seconds"]})
        for rank in ranks:
            assert rank["digest"] == undisturbed["digest"], (spine, rack, rank)
            assert rank["pauses"], "the kills were noticed"
            # Before the rack switch died, switches did more than the sums of the table.
            assert collectives == "allreduce" or rank["network_operations"] > STEPS, rank
    write(f"sharded_faults_{collectives}", {"undisturbed_seconds": undisturbed["seconds"], "runs": rows})


@pytest.mark.figures
def test_steps_that_are_communication_are_ahead_of_gloo():
    arguments = {"steps": 6, "pause_s": 0, "width": 512}
    times: dict[str, list[float]] = {"netsum": [], "gloo": []}
    digests = set()
    with Network(2, 4, 2, 100_000_000) as network:
        for _ in range(2):
            for backend, steps in times.items():
                with Fabric(network) as fabric:
                    text = json.dumps(arguments | {"backend": backend})
                    workers = Workers(fabric, network.hosts, "sharded.py", text, NETSUM_COLLECTIVES="all")
                    ranks = workers.wait()
                # The first step makes buffers and connections.
                steps += [max(rank["steps"][step] for rank in ranks) for step in range(1, arguments["steps"])]
                digests |= {rank["digest"] for rank in ranks if backend == "netsum"}
    median = {backend: statistics.median(steps) for backend, steps in times.items()}
    best = {backend: min(steps) for backend, steps in times.items()}
    ratio = median["gloo"] / median["netsum"]
    write("sharded_steps", {"seconds": median, "best": best, "ratio": ratio})
    assert len(digests) == 1, "the same bits at all ranks and in both runs"
    assert ratio >= 1.4, median
