"""Everything dies at random: training jobs, pods, ranks, operators, controllers, switches, Kubernetes itself.

NETSUM_CLUSTER=1: 500 deletions and restarts on 1,000 nodes. NETSUM_CHURN_SEED and NETSUM_CHURN_STEPS choose a run.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from typing import Any

import pytest

import netsum
from api import ApiError
from chart import Netsum, training_job
from control_plane import REPOSITORY, ControlPlane, until

pytestmark = pytest.mark.needs_cluster

CLUSTER = bool(os.environ.get("NETSUM_CLUSTER"))
STEPS = int(os.environ.get("NETSUM_CHURN_STEPS", "500" if CLUSTER else "20"))
RACKS, HOSTS, SPINES = (5, 198, 5) if CLUSTER else (2, 2, 1)
"""Hosts of each rack; with the switches 1,000 nodes, or 7."""
SEED = int(os.environ.get("NETSUM_CHURN_SEED", "1"))
RANK = REPOSITORY / "tests/kubernetes/rank.py"
JOBS = ("red", "green", "blue")
PATIENCE_S = 30.0
"""How long a step waits for a new job."""


def nodes():
    for number in range(RACKS * HOSTS):
        yield f"h{number}", {"netsum.dev/rack": f"r{number % RACKS}"}, False
    for number in range(RACKS):
        yield f"t{number}", {"netsum.dev/rack": f"r{number}", "netsum.dev/role": "switch"}, True
    for number in range(SPINES):
        yield f"s{number}", {"netsum.dev/role": "switch"}, True


class Churn:
    """Random faults in a cluster, from a seed."""

    def __init__(self, cluster: Netsum, seed: int) -> None:
        self.cluster, self.api, self.plane = cluster, cluster.api, cluster.plane
        self.random = random.Random(seed)
        self.done: dict[str, int] = {}
        self.faults = {
            "create a Job": (8, self.create),
            "delete a Job": (5, self.delete_job),
            "replace a Job": (3, self.replace_job),
            "delete a pod": (4, self.delete_pod),
            "kill a rank": (4, self.kill_rank),
            "delete an AggregationJob": (2, self.delete_aggregation_job),
            "kill an operator": (3, lambda: self.kill("operator")),
            "delete an operator": (1, lambda: self.delete("operator")),
            "kill a controller": (3, lambda: self.kill("controller")),
            "delete a controller": (1, lambda: self.delete("controller")),
            "kill a switch": (2, lambda: self.kill("switch")),
            "restart the garbage collector": (1, lambda: self.plane.restart("kube-controller-manager")),
            "restart the API server": (1, self.restart_api_server),
        }

    def step(self) -> None:
        """One fault; what cannot be done now is left out."""
        names = list(self.faults)
        name = self.random.choices(names, [self.faults[name][0] for name in names])[0]
        try:
            self.faults[name][1]()
            self.done[name] = self.done.get(name, 0) + 1
        except (ApiError, OSError, IndexError) as error:
            print(f"{name}: {error}")
        time.sleep(self.random.uniform(0.0, 1.5))

    def create(self) -> None:
        name = self.random.choice(JOBS)
        job = training_job(name, 2, [str(RANK), "1000000"])
        job["spec"]["backoffLimit"] = 1000
        job["spec"]["template"]["spec"]["restartPolicy"] = self.random.choice(["Never", "OnFailure"])
        try:
            self.api.create(job)
        except ApiError as error:
            if error.code != 409:
                raise
            return
        if self.random.random() < 0.5:
            # Faults find jobs that run, too.
            with contextlib.suppress(TimeoutError):
                until(lambda: any("." + name + "/" in one["name"] for one in self.live_jobs()), "a job", PATIENCE_S)

    def delete_job(self) -> None:
        policy = self.random.choice(["Background", "Background", "Foreground", "Orphan"])
        self.api.delete(f"/apis/batch/v1/namespaces/ml/jobs/{self.random.choice(JOBS)}", policy)

    def replace_job(self) -> None:
        self.delete_job()
        self.create()

    def delete_pod(self) -> None:
        pod = self.random.choice(self.api.list("/api/v1/namespaces/ml/pods"))
        self.api.delete(f"/api/v1/namespaces/ml/pods/{pod['metadata']['name']}", grace=self.random.choice([0, 5]))

    def delete_aggregation_job(self) -> None:
        found = self.random.choice(self.cluster.aggregation_jobs())["metadata"]
        self.api.delete(f"/apis/netsum.dev/v1alpha1/namespaces/ml/aggregationjobs/{found['name']}")

    def kill_rank(self) -> None:
        ranks = [one for one in self.cluster.kubelet.processes().values() if one.pod["metadata"]["namespace"] == "ml"]
        self.cluster.kubelet.kill(self.random.choice(ranks))

    def kill(self, component: str) -> None:
        one = self.random.choice(list(self.cluster.kubelet.of(component).values()))
        self.cluster.kubelet.kill(one, self.random.choice([signal.SIGKILL, signal.SIGTERM]))

    def delete(self, component: str) -> None:
        name = self.random.choice(list(self.cluster.kubelet.of(component)))
        self.api.delete(f"/api/v1/namespaces/netsum/pods/{name}", grace=0)

    def restart_api_server(self) -> None:
        self.plane.restart("kube-apiserver")
        until(lambda: self.api.get("/api/v1/namespaces/ml"), "the API server")

    def live_jobs(self) -> list[dict[str, Any]]:
        """The controller's jobs; none while no controller answers."""
        try:
            return self.cluster.live_jobs()
        except netsum.NetsumError:
            return []

    def orphans(self) -> set[str]:
        """Names of the controller's jobs of which no pod is there; a look at both, which differ for a moment."""
        pods = self.api.list("/api/v1/namespaces/ml/pods")
        live = {pod["metadata"].get("annotations", {}).get("netsum.dev/job-name", "") for pod in pods}
        return {job["name"] for job in self.live_jobs() if job["name"].partition("/")[0] not in live}


def test_no_lease_is_left_after_random_deletions_and_restarts():
    with ControlPlane() as plane:
        plane.add_nodes(nodes())
        cluster = Netsum(plane, [name for name, _, is_switch in nodes() if is_switch])
        with cluster.kubelet:
            cluster.install()
            cluster.namespace("ml")
            cluster.wait_ready()
            churn = Churn(cluster, SEED)
            seen, longest, since = set(), 0.0, {}
            for step in range(STEPS):
                churn.step()
                try:
                    jobs, orphans = churn.live_jobs(), churn.orphans()
                except (ApiError, OSError):
                    continue
                seen |= {job["job"] for job in jobs}
                since = {name: since.get(name, time.monotonic()) for name in orphans}
                longest = max([longest, *(time.monotonic() - start for start in since.values())])
                if step % 25 == 24:
                    print(f"step {step + 1}: {len(seen)} jobs so far, {len(jobs)} live", flush=True)
            print(f"{churn.done}; {len(seen)} jobs; an orphan was seen for {longest:.1f} s at most")
            for job in JOBS:
                plane.api.delete(f"/apis/batch/v1/namespaces/ml/jobs/{job}")
            # Those that were orphaned on purpose.
            for pod in plane.api.list("/api/v1/namespaces/ml/pods"):
                plane.api.delete(f"/api/v1/namespaces/ml/pods/{pod['metadata']['name']}", grace=0)
            start = time.monotonic()
            until(lambda: not cluster.live_jobs(), "the end of all jobs", 300)
            until(lambda: cluster.leased_bytes() == 0, "free memory", 300)
            until(lambda: not cluster.aggregation_jobs(), "the end of all AggregationJobs")
            print(f"all is free {time.monotonic() - start:.1f} s after the last deletion")
            assert seen, "no job has run"
            # And the cluster still works.
            plane.api.create(training_job("last", 2, [str(RANK), "40"]))

            def succeeded() -> bool:
                pods = plane.api.list("/api/v1/namespaces/ml/pods?labelSelector=training%3Dlast")
                return [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * 2

            until(succeeded, "the last job", 300)
