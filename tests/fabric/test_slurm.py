"""Jobs under a real Slurm: four nodes in namespaces, real switches. NETSUM_CLUSTER=1: every way in which a job ends."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import slurm
from fabric import Fabric
from namespaces import GUARD_S, namespace
from netsum.fabric.description import Description
from netsum.fabric.hostlists import expand
from network import Network
from slurm import Slurm

CLUSTER = bool(os.environ.get("NETSUM_CLUSTER"))
TRAINING = pathlib.Path(__file__).with_name("training.py")
FREE_S = 1.0
"""How long a job may hold memory of switches after its end: what the documents promise, measured by test-cluster."""
VANISHED_S = 5.0
"""The same if nobody is left who could tell the controller: it waits a second first (--vanish-after)."""
WAYS = ("scancel", "kill-step", "kill-task", "kill-slurmstepd", "kill-all", "fail", "lose-node")
LOST_NODE_S = slurm.NODE_SILENCE_S + 5.0
"""The same after the loss of a node, which slurmctld notices by its silence."""

pytestmark = pytest.mark.skipif(slurm.why_not() is not None, reason=str(slurm.why_not()))


@pytest.fixture(scope="module")
def cluster():
    with Network(2, 2, 1, 1_000_000_000) as network, Fabric(network) as fabric, Slurm(network, fabric) as cluster:
        yield cluster


def task(folder: pathlib.Path, steps: int) -> list[str]:
    """A rank of a training run, whose result is a file in `folder`."""
    arguments = json.dumps({"steps": steps})
    script = f"exec {sys.executable} {TRAINING} '{arguments}' >{folder}/$RANK.log 2>&1"
    return ["env", "OMP_NUM_THREADS=1", "sh", "-c", f"export RESULT={folder}/$RANK.json; {script}"]


def test_ranks_of_a_step_train_through_switches_and_leave_nothing(cluster):
    folder = cluster.fabric.folder("slurm")
    step = cluster.start("srun", "--netsum", "-N3", "-J", "train", *task(folder, 60))
    job = wait_for_trees(cluster, step, folder, cluster.job_id("train"))
    assert job["size"] == 3 and job["protocol"] == "panama"
    assert [rank["host"] for rank in job["ranks"]] == ["h0", "h1", "h2"]
    said, _ = step.communicate(timeout=GUARD_S)
    assert step.returncode == 0, said + logs(folder)
    results = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(3)]
    assert len({result["digest"] for result in results}) == 1
    wait_for_no_lease(cluster)


def test_a_protocol_is_chosen_and_a_wrong_one_refused(cluster):
    shown = cluster.run("srun", "--netsum=atp", "-N1", "sh", "-c", "echo $NETSUM_PROTOCOL $NETSUM_JOB $WORLD_SIZE")
    protocol, name, size = shown.stdout.split()
    assert (protocol, size) == ("atp", "1") and name.startswith("slurm-") and name.endswith(".0")
    without = cluster.run("srun", "-N1", "sh", "-c", "echo ${NETSUM_JOB-none} ${MASTER_ADDR-none}")
    assert without.stdout == "none none\n"
    refused = cluster.run("srun", "--netsum=ring", "-N1", "true")
    assert refused.returncode != 0 and "use panama, atp, switchml or auto" in refused.stderr


def test_memory_is_free_after_scancel(cluster):
    ends(cluster, "scancel", lambda job: cluster.run("scancel", job))


@pytest.mark.skipif(not CLUSTER, reason="a long test: make test-cluster")
@pytest.mark.parametrize("run", range(3))
@pytest.mark.parametrize(
    "way", ["scancel", "kill-step", "kill-task", "kill-slurmstepd", "kill-all", "fail", "lose-node"]
)
def test_memory_is_free_within_a_second(cluster, way, run):
    lost = {"lose-node": "h2"}.get(way)

    def end(job: str) -> None:
        if way == "scancel":
            cluster.run("scancel", job)
        elif way == "kill-step":
            cluster.run("scancel", "--signal=KILL", f"{job}.0")
        elif way == "kill-task":
            os.kill(pids(cluster, "h1", str(TRAINING))[0], signal.SIGKILL)
        elif way == "kill-slurmstepd":
            for pid in pids(cluster, "h1", f"slurmstepd: [{job}.0]"):
                os.kill(pid, signal.SIGKILL)
            cluster.run("scancel", job)
        elif way == "kill-all":
            for words in (f"slurmstepd: [{job}.0]", str(TRAINING)):
                for host in ("h0", "h1", "h2"):
                    for pid in pids(cluster, host, words):
                        os.kill(pid, signal.SIGKILL)
        elif way == "fail":
            os.kill(pids(cluster, "h1", str(TRAINING))[0], signal.SIGABRT)
        else:
            cluster.lose(lost)

    try:
        taken = ends(cluster, way, end)
        print(f"{way}: {taken:.2f} s")
        assert taken <= (LOST_NODE_S if lost else {"kill-all": VANISHED_S}.get(way, FREE_S))
    finally:
        if lost:
            cluster.restart(lost)


@pytest.mark.skipif(not CLUSTER, reason="a long test: make test-cluster")
def test_memory_is_free_after_a_time_out(cluster):
    folder = cluster.fabric.folder("slurm")
    step = cluster.start("srun", "--netsum", "-N3", "-t", "1", "-J", "late", *task(folder, 1_000_000))
    wait_for_trees(cluster, step, folder, cluster.job_id("late"))
    said, _ = step.communicate(timeout=GUARD_S)
    assert "TIME LIMIT" in said
    wait_for_no_lease(cluster)


def test_slurms_files_become_the_fabric_file(cluster, tmp_path):
    network = cluster.network
    addresses = [f"--address={name}={network.address[name]}" for name in network.racks + network.spines]
    files = [
        "--configuration",
        cluster.configuration,
        "--topology",
        cluster.topology,
        "--out",
        tmp_path / "fabric.toml",
    ]
    command = [sys.executable, "-c", "from netsum.cli import main; main()", "fabric", "import-slurm", *files]
    more = ["--controller", cluster.fabric.controller, "--rate", "1Gbit/s", "--name", "test", *addresses]
    subprocess.run([*command, *more], check=True, timeout=GUARD_S)
    made, own = Description.read(tmp_path / "fabric.toml"), Description.read(cluster.fabric.file)
    assert {(host.name, host.address) for host in made.hosts} == {(host.name, host.address) for host in own.hosts}
    assert {(each.name, each.address) for each in made.switches} == {(each.name, each.address) for each in own.switches}
    assert {frozenset(link.ends) for link in made.links} == {frozenset(link.ends) for link in own.links}


@pytest.mark.parametrize("text", ["n[0-3,7]", "a,b[1-2],d[08-11]", "r[0-1]n[0-2]", "x[3]", "solo", "g[000-002],h[5,1]"])
def test_lists_of_names_are_as_slurm_reads_them(cluster, text):
    shown = cluster.run("scontrol", "show", "hostnames", text)
    assert shown.returncode == 0 and expand(text) == shown.stdout.split()


# ----


def ends(cluster: Slurm, name: str, end) -> float:
    """Start an endless job, end it by a call with its id; returns how long its leases outlived the call's beginning."""
    folder = cluster.fabric.folder("slurm")
    step = cluster.start("srun", "--netsum", "-N3", "-J", name, *task(folder, 1_000_000))
    try:
        job = cluster.job_id(name)
        wait_for_trees(cluster, step, folder, job)
        wait_for_steps(step, folder)
        began = time.monotonic()
        end(job)
        taken = wait_for_no_lease(cluster, began)
    finally:
        cluster.run("scancel", "-n", name)
        # srun waits for ever for a task whose slurmstepd is gone.
        step.kill()
        step.communicate()
    cluster.wait_free()
    return taken


def wait_for_trees(cluster: Slurm, step: subprocess.Popen, folder: pathlib.Path, job: str) -> dict:
    """The netsum job of Slurm's job once it has trees; its name is what `netsum top` shows."""
    return until(
        lambda: (
            alive(step, folder)
            and next(
                (
                    each
                    for each in cluster.fabric.status()["jobs"]
                    if each["name"].startswith(f"slurm-{job}.0/") and each["trees"] and each["state"] == "running"
                ),
                None,
            )
        )
    )


def wait_for_steps(step: subprocess.Popen, folder: pathlib.Path) -> None:
    """Until rank 0 has trained a little."""
    until(lambda: alive(step, folder) and "step 2\n" in (folder / "0.log").read_text())


def alive(step: subprocess.Popen, folder: pathlib.Path) -> bool:
    """True; if the step has ended, an error with what it said."""
    assert step.poll() is None, step.communicate()[0] + logs(folder)
    return True


def wait_for_no_lease(cluster: Slurm, began: float = 0.0) -> float:
    until(lambda: not any(switch["memory_leased_bytes"] for switch in cluster.fabric.status()["switches"]))
    return time.monotonic() - began


def until(ready):
    deadline = time.monotonic() + GUARD_S
    while not (found := ready()):
        if time.monotonic() > deadline:
            raise AssertionError("it did not come about")
        time.sleep(0.02)
    return found


def pids(cluster: Slurm, host: str, words: str) -> list[int]:
    """Processes in a node whose command line has `words`, but for shells."""
    listed = subprocess.run(["ip", "netns", "pids", namespace(host)], capture_output=True, text=True, check=True)
    found = []
    for pid in map(int, listed.stdout.split()):
        line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        if words in line and not line.startswith("sh "):
            found.append(pid)
    return found


def logs(folder: pathlib.Path) -> str:
    return "\n".join(
        f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in sorted(folder.glob("*.log"))
    )
