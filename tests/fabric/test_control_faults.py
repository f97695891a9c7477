"""Faults of the control plane: a running job continues, no rank is reported as lost, and jobs are not confused."""

from __future__ import annotations

import os
import signal
import time

import pytest

from fabric import CONTROLLER_PORT, Fabric
from namespaces import GUARD_S
from network import Network, why_no_loss
from test_recovery import SLOTS, Job, dropped

NAMED_WITHIN_S = 10.0
"""Time from the death of a worker until its peers have ended and named it."""

needs_iptables = pytest.mark.skipif(why_no_loss() is not None, reason=str(why_no_loss()))


@pytest.fixture(scope="module")
def network():
    with Network(2, 2, 2, 1_000_000_000) as network:
        yield network


def check_all_connected(fabric: Fabric) -> None:
    """Wait until all ranks of the newest job are connected."""
    deadline = time.monotonic() + GUARD_S
    while True:
        ranks = fabric.status()["jobs"][-1]["ranks"]
        if all(rank["state"] == "connected" for rank in ranks):
            return
        assert time.monotonic() < deadline, ranks
        assert not any(rank["state"] == "lost" for rank in ranks), ranks
        time.sleep(0.5)


@needs_iptables
def test_a_rank_that_the_controller_cannot_reach_is_not_lost(network):
    with Fabric(network, slots=SLOTS) as fabric:
        job = Job(fabric, "panama")
        address = network.address["h2"]
        up = ("-s", address, "-p", "tcp", "--dport", str(CONTROLLER_PORT))
        down = ("-p", "tcp", "--sport", str(CONTROLLER_PORT))
        with dropped(network, network.spines[0], *up), dropped(network, "h2", *down):
            end = time.monotonic() + 12
            while time.monotonic() < end:
                job.workers.wait_for_steps(2)
        check_all_connected(fabric)
        job.workers.wait_for_steps(2)
        job.finish()


def test_a_worker_that_is_stopped_for_a_while_is_not_lost(network):
    with Fabric(network, slots=SLOTS) as fabric:
        job = Job(fabric, "panama")
        pid = job.workers.processes[2].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(9)
        finally:
            os.kill(pid, signal.SIGCONT)
        job.back_after(time.time())
        check_all_connected(fabric)
        job.finish()


def test_a_worker_that_is_killed_is_named(network):
    with Fabric(network, slots=SLOTS) as fabric:
        job = Job(fabric, "panama")
        job.workers.processes[2].kill()
        killed = time.monotonic()
        job.workers.wait(expect_failure=True)
        assert time.monotonic() - killed < NAMED_WITHIN_S
        for rank in (0, 1, 3):
            assert job.workers.processes[rank].returncode != 0
            assert "rank 2" in job.workers.log(rank), job.workers.log(rank)


def test_a_controller_that_restarts_with_its_store_takes_running_jobs_up_again(network):
    with Fabric(network, slots=SLOTS) as fabric:
        job = Job(fabric, "panama")
        fabric.kill("controller")
        job.workers.wait_for_steps(20)
        fabric.start_controller()
        check_all_connected(fabric)
        job.back_after(time.time())
        job.finish()


@pytest.mark.parametrize("store", [True, False], ids=["store deleted", "no store"])
def test_ranks_of_a_job_of_another_store_join_no_new_job(network, store):
    with Fabric(network, slots=SLOTS, store=store) as fabric:
        old = Job(fabric, "panama")
        pids = {process.pid for process in old.workers.processes}
        number = fabric.status()["jobs"][-1]["job"]
        fabric.kill("controller")
        for file in fabric.directory.glob("controller.sqlite*"):
            file.unlink()
        fabric.start_controller()
        old.workers.wait_for_steps(20)
        new = Job(fabric, "panama", MASTER_PORT="29501")
        jobs = fabric.status()["jobs"]
        assert len(jobs) == 1 and jobs[0]["job"] != number, jobs
        ranks = jobs[0]["ranks"]
        assert {rank["pid"] for rank in ranks} == {process.pid for process in new.workers.processes}, ranks
        assert not pids & {rank["pid"] for rank in ranks}
        old.workers.wait_for_steps(20)
        new.workers.wait_for_steps(20)
        old.finish()
        new.back_after(time.time())
        new.finish()
