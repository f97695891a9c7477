"""`netsum job`: jobs are stopped, and get new keys while they run."""

import os
import signal
import subprocess
import sys
import threading
from array import array
from pathlib import Path

import pytest
from processes import Latch, run_ranks, wait_until

import netsum
from netsum.communicator import connect
from netsum.fabric import local
from netsum.fabric.description import Description
from netsum.reports import JOB_OVER

RANKS = 3
SIZE = 65_536
TIMEOUT_S = 60.0


def job_command(fabric, *arguments: str) -> subprocess.CompletedProcess:
    """`netsum job` with these arguments, on a running fabric."""
    return netsum_command(fabric, "job", *arguments)


def test_a_temporary_fabric_ends_with_its_jobs(fabric_file, tmp_path, monkeypatch):
    """Its next start restores no job whose ranks were killed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def killed(rank: int) -> None:
        pids = array("q", [0, 0])
        pids[rank] = os.getpid()
        world = connect(timeout_s=TIMEOUT_S)
        world.allreduce(pids)
        if rank == 0:
            # At once: a rank that sees the other die leaves the job.
            for pid in reversed(pids):
                os.kill(pid, signal.SIGKILL)
        world.barrier()

    with local.temporary(Description.read(fabric_file)) as fabric:
        assert run_ranks(killed, 2, **fabric.environment()) == [None, None]
        assert the_job(fabric)["state"] not in JOB_OVER
    with local.temporary(Description.read(fabric_file)) as again:
        assert the_job(again)["state"] in JOB_OVER


def netsum_command(fabric, *arguments: str) -> subprocess.CompletedProcess:
    """`netsum` with these arguments, on a running fabric."""
    command = [Path(sys.executable).with_name("netsum"), *arguments]
    environment = {"PATH": "/usr/bin:/bin", **fabric.environment()}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def the_job(fabric) -> dict:
    """The status of the only job."""
    (job,) = fabric.status()["jobs"]
    return job


def summing(enough: Latch, rounds: Latch):
    """A rank that sums and checks every element until `enough` is set; returns the number of its sums."""

    def body(rank: int) -> int:
        world = connect(timeout_s=TIMEOUT_S)
        done, end = 0, array("q", [0])
        while not end[0]:
            values = array("q", range(rank + done, rank + done + SIZE))
            world.allreduce(values)
            first = sum(range(RANKS)) + RANKS * done
            assert values == array("q", range(first, first + RANKS * SIZE, RANKS))
            done += 1
            rounds.set()
            # All ranks end after the same round.
            end[0] = min(enough.count(), 1)
            world.allreduce(end, "max")
        world.close()
        return done

    return body


def beside(work) -> tuple[threading.Thread, list]:
    """`work()` in a thread, and the list of its errors."""
    errors: list = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


@pytest.mark.parametrize(
    ("protocol", "encrypt"), [("panama", "off"), ("atp", "off"), ("panama", "on"), ("switchml", "on")]
)
def test_keys_change_under_load_and_no_sum_is_lost(fabric, protocol, encrypt):
    enough, rounds = Latch(), Latch()

    def operate() -> None:
        try:
            for _ in range(3):
                before = rounds.count()
                wait_until(lambda before=before: rounds.count() >= before + 3 * RANKS)
                job = the_job(fabric)
                assert job["tags"] and job["trees"] and job["protocol"] == protocol
                assert job["encrypted"] == (encrypt == "on")
                answer = job_command(fabric, "rekey", str(job["job"]))
                assert answer.returncode == 0, answer.stderr
                wait_until(lambda job=job: the_job(fabric)["epoch"] > job["epoch"])
        finally:
            enough.set()

    operator, errors = beside(operate)
    settings = {"NETSUM_PROTOCOL": protocol, "NETSUM_MIN_BYTES": "0", "NETSUM_ENCRYPT": encrypt}
    environment = fabric.environment() | settings
    done = run_ranks(summing(enough, rounds), RANKS, **environment)
    operator.join()
    assert not errors, errors
    assert len(set(done)) == 1 and done[0] >= 9


def test_encryption_needs_credentials(fabric):
    def body(rank: int) -> str:
        with pytest.raises(netsum.NetsumError) as caught:
            connect(timeout_s=TIMEOUT_S)
        return str(caught.value)

    reasons = run_ranks(body, 2, **fabric.environment() | {"NETSUM_ENCRYPT": "on", "NETSUM_CREDENTIALS": ""})
    assert all("encrypt = on needs credentials" in reason for reason in reasons), reasons


def test_a_broken_switch_loses_its_keys_by_one_command(fabric):
    enough, rounds = Latch(), Latch()

    def used() -> set[str]:
        return {node["switch"] for tree in the_job(fabric)["trees"] for node in tree["nodes"]}

    def operate() -> None:
        try:
            wait_until(lambda: rounds.count() >= 3 * RANKS)
            before = the_job(fabric)
            assert before["tags"] and "spine0" in used()
            answer = netsum_command(
                fabric,
                *("ca", "revoke", "switch/spine0", "--ca", str(fabric.folder / "ca")),
                *("--to", str(fabric.folder / "credentials" / "controller")),
            )
            assert answer.returncode == 0, answer.stderr
            # Keys are of an epoch, and the switch gets none of those that follow.
            wait_until(lambda: the_job(fabric)["epoch"] > before["epoch"])
            wait_until(lambda: "spine0" not in used())
            count = rounds.count()
            wait_until(lambda: rounds.count() >= count + 3 * RANKS)
            assert "spine0" not in local.alive_switches(fabric.status()) and the_job(fabric)["tags"]
            assert "it is revoked" in fabric.process("spine0").log_tail()
        finally:
            enough.set()

    operator, errors = beside(operate)
    environment = fabric.environment() | {"NETSUM_MIN_BYTES": "0"}
    done = run_ranks(summing(enough, rounds), RANKS, **environment)
    operator.join()
    assert not errors, errors
    assert len(set(done)) == 1


def test_a_stopped_job_ends_with_the_reason(fabric):
    enough, rounds = Latch(), Latch()

    def operate() -> None:
        wait_until(lambda: rounds.count() >= RANKS)
        answer = job_command(fabric, "stop", str(the_job(fabric)["job"]), "--reason", "maintenance")
        assert answer.returncode == 0, answer.stderr

    def body(rank: int) -> str:
        with pytest.raises(netsum.NetsumError) as caught:
            summing(enough, rounds)(rank)
        return str(caught.value)

    operator, errors = beside(operate)
    reasons = run_ranks(body, RANKS, **fabric.environment())
    operator.join()
    assert not errors, errors
    # The others may hear of it from a rank that has already ended.
    assert any("maintenance" in reason for reason in reasons), reasons
    assert "is unknown" in job_command(fabric, "stop", "99").stderr
