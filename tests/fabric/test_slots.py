"""Protocols atp and switchml on real daemons: exact sums with few slots, loss, overflow, churn, and deaths."""

from __future__ import annotations

import json
import re
import time
import warnings

import pytest

from attack import Attacker
from fabric import Fabric, Slots, Workers
from namespaces import GUARD_S
from network import Network, why_no_loss

RATE_BPS = 1_000_000_000
SERVERS = Slots(servers=("h0", "h3"), trusted=False)
CHECK = {"steps": 6, "numel": 60_000}


@pytest.fixture(scope="module")
def network():
    with Network(2, 2, 2, RATE_BPS) as network:
        yield network


def start(fabric: Fabric, protocol: str = "atp", hosts: list[str] | None = None, port: int = 29500, **more) -> Workers:
    arguments = CHECK | {key: value for key, value in more.items() if key.islower()}
    environment = {key: value for key, value in more.items() if not key.islower()}
    environment |= {"NETSUM_PROTOCOL": protocol, "NETSUM_MIN_BYTES": "0", "MASTER_PORT": str(port)}
    return Workers(fabric, hosts or fabric.network.hosts, "slots_worker.py", json.dumps(arguments), **environment)


def wait_for_free_slots(fabric: Fabric) -> None:
    """Wait until no live process holds a slot, a row or a lease after all jobs have left; for dead ones the last report
    counts."""
    deadline = time.monotonic() + GUARD_S
    while True:
        switches = [s for s in fabric.status()["switches"] if s["state"] == "up"]
        held = [s for s in switches if s["slots_held"] or s["rows_used"] or s["trees"] or s["memory_used_bytes"]]
        if not held:
            return
        assert time.monotonic() < deadline, held
        time.sleep(0.3)


def lose_or_say(network: Network, share: float) -> None:
    """Drop packets from now on, if this machine can do that; pytest's summary reports it if not."""
    if reason := why_no_loss():
        warnings.warn(f"left out: the loss of packets {reason}", stacklevel=2)
    else:
        network.lose(share)


def check_same(ranks: list[dict]) -> None:
    assert len({rank["digest"] for rank in ranks}) == 1
    assert all(rank["stats"]["network_operations"] > 0 for rank in ranks), ranks[0]["stats"]


def test_ten_times_too_few_slots_loss_and_overflow_change_no_sum(network):
    """Each server's tree has 512 fragments in flight and a switch has 51 slots."""
    few = Slots(servers=("h0", "h3"), slots=51, trusted=False)
    with Fabric(network, slots=few) as fabric:
        lose_or_say(network, 0.005)
        try:
            # Long enough for some of the counters that daemons send once a second.
            large = start(fabric, port=29501, large=True, steps=30, NETSUM_SCALE="1e8")
            jobs = [start(fabric, port=29500, steps=30), large]
            leases = fabric.watch("atp", jobs).values()
            for job in jobs:
                check_same(job.wait())
        finally:
            network.lose(0)
        wait_for_free_slots(fabric)
    total = {key: sum(lease[key] for lease in leases) for key in ("contributions", "collisions", "float_requests")}
    assert all(total.values()), total


def test_jobs_come_and_go_and_all_slots_are_free_at_the_end(network):
    with Fabric(network, slots=SERVERS) as fabric:
        long = start(fabric, until_told=True)
        for round in range(3):
            dies = round == 1
            short = start(fabric, hosts=["h1", "h2"], port=29510 + round, steps=2, until_told=dies)
            if dies:
                short.wait_for_step(1)
                short.processes[1].kill()
                short.wait(expect_failure=True)
                assert "rank 1" in short.log(0)
            else:
                check_same(short.wait())
        long.finish()
        check_same(long.wait())
        wait_for_free_slots(fabric)


@pytest.mark.parametrize("victim", ["server0", "rack0", "rack1"])
def test_a_dead_server_or_switch_costs_a_pause_and_no_sum(network, victim):
    with Fabric(network, slots=SERVERS) as fabric:
        workers = start(fabric, until_told=True)
        workers.wait_for_step(3)
        fabric.kill(victim)
        workers.wait_for_steps(2)
        workers.finish()
        ranks = workers.wait()
        check_same(ranks)
        assert ranks[0]["stats"]["pauses"], ranks[0]["stats"]
        job = fabric.status()["jobs"][-1]
        assert victim in job["reason"], job["reason"]


def test_without_any_server_the_hosts_go_on(network):
    with Fabric(network, slots=Slots(servers=("h1",), trusted=False)) as fabric:
        workers = start(fabric, until_told=True)
        workers.wait_for_step(2)
        fabric.kill("server0")
        workers.wait_for_steps(2)
        workers.finish()
        ranks = workers.wait()
        check_same(ranks)
        assert ranks[0]["stats"]["path"] == "host"
        assert "server0 is down" in ranks[0]["stats"]["reason"]


def test_pools_with_loss_and_a_dead_switch(network):
    with Fabric(network, slots=SERVERS) as fabric:
        lose_or_say(network, 0.002)
        try:
            workers = start(fabric, "switchml", until_told=True)
            workers.wait_for_step(3)
        finally:
            network.lose(0)
        at = fabric.status()["jobs"][-1]["trees"][0]["root"]
        fabric.kill(at)
        workers.wait_for_steps(2)
        assert at != fabric.status()["jobs"][-1]["trees"][0]["root"]
        workers.finish()
        check_same(workers.wait())
        wait_for_free_slots(fabric)


def test_a_pool_within_a_rack_is_in_the_kernel(network):
    hosts = [host for host in network.hosts if network.rack_of[host] == network.racks[0]]
    network.take_from_hooks()
    with Fabric(network, slots=SERVERS, in_kernel=True) as fabric:
        if "built without" in fabric.log("rack0"):
            pytest.skip("the daemons are built without the in-kernel switch (make setup-xdp)")
        workers = start(fabric, "switchml", hosts, until_told=True)
        workers.wait_for_step(2)
        at = fabric.status()["jobs"][-1]["trees"][0]["root"]
        assert re.findall(r"pool_in_kernel\{.*\} (\d)", fabric.metrics(at)) == ["1"], fabric.log(at)
        workers.finish()
        check_same(workers.wait())
        wait_for_free_slots(fabric)


@pytest.mark.parametrize("in_kernel", [False, True], ids=["user-space", "in-kernel"])
def test_a_host_that_speaks_in_others_names_changes_no_bit(network, in_kernel):
    """Sent from a third host of the rack to switches, servers and a worker; it knows everything but the key."""
    # Hooks of several processors reorder sums, which workers treat as losses: slow on a busy machine.
    training = json.dumps({"steps": 60})
    hosts = ["h0", "h2", "h3"]
    environment = {"NETSUM_PROTOCOL": "atp", "NETSUM_MIN_BYTES": "0"}
    if in_kernel:
        network.take_from_hooks()
    with Fabric(network, slots=SERVERS, in_kernel=in_kernel) as fabric:
        if in_kernel and "built without" in fabric.log("rack0"):
            pytest.skip("the daemons are built without the in-kernel switch (make setup-xdp)")
        undisturbed = Workers(fabric, hosts, "training.py", training, **environment).wait()[0]
        workers = Workers(fabric, hosts, "training.py", training, **environment)
        workers.wait_for_step(1)
        job = fabric.status()["jobs"][-1]
        assert job["tags"] and job["protocol"] == "atp"
        served = [re.findall(r"slot_in_kernel\{.*\} (\d)", fabric.metrics(rack)) for rack in network.racks]
        assert all("1" in each if in_kernel else set(each) <= {"0"} for each in served), served
        with Attacker(fabric, "h1", job) as attacker:
            ranks = workers.wait()
            assert attacker.packets() > 1000
        for rank in ranks:
            assert rank["digest"] == undisturbed["digest"]
        drops = {aggregator["name"]: aggregator["drops"] for aggregator in fabric.status()["switches"]}
    assert sum(drop.get("bad_tag", 0) for drop in drops.values()) > 100, drops
    assert drops["rack0"].get("bad_tag", 0) > 0, drops


def test_auto_says_what_it_took(network):
    with Fabric(network, slots=SERVERS) as fabric:
        ranks = start(fabric, "auto", steps=1).wait()
        assert ranks[0]["stats"]["protocol"] == "panama"
        assert "2 trees" in ranks[0]["stats"]["choice"]
