"""netsum in a real Kubernetes control plane: a fabric of nodes, training through its switches, and the end of jobs.

kwok gives nodes and says that pods run; the processes of pods run here, from their specifications.
"""

from __future__ import annotations

import json
import time

import pytest

from api import Api, ApiError
from chart import NAMESPACE, Netsum, training_job
from control_plane import REPOSITORY, ControlPlane, until

pytestmark = pytest.mark.needs_cluster

TRAINING = REPOSITORY / "tests/fabric/training.py"
RANK = REPOSITORY / "tests/kubernetes/rank.py"
HOSTS = {f"h{number}": f"r{number % 2}" for number in range(4)}
SWITCHES = {"t0": "r0", "t1": "r1", "s0": None}


def nodes():
    for name, rack in HOSTS.items():
        yield name, {"netsum.dev/rack": rack}, False
    for name, rack in SWITCHES.items():
        yield name, {"netsum.dev/role": "switch", **({"netsum.dev/rack": rack} if rack else {})}, True


@pytest.fixture(scope="module")
def cluster():
    with ControlPlane() as plane:
        plane.add_nodes(nodes())
        made = Netsum(plane, list(SWITCHES))
        with made.kubelet:
            start = time.monotonic()
            made.install()
            made.namespace("ml")
            made.wait_ready()
            print(f"ready after {time.monotonic() - start:.1f} s")
            yield made


def pods(cluster, job):
    return cluster.api.list(f"/api/v1/namespaces/ml/pods?labelSelector=training%3D{job}")


def phases(cluster, job):
    return [pod["status"]["phase"] for pod in pods(cluster, job)]


def job_path(name):
    return f"/apis/batch/v1/namespaces/ml/jobs/{name}"


def wait_running(cluster, name):
    """The status of the AggregationJob once its job has trees."""

    def running():
        found = cluster.api.get(f"/apis/netsum.dev/v1alpha1/namespaces/ml/aggregationjobs/{name}")
        status = (found or {}).get("status") or {}
        return status if status.get("phase") == "Running" and status.get("trees") else None

    try:
        return until(running, f"trees of {name}")
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{cluster.describe()}") from None


def wait_free(cluster):
    """Until neither the controller nor switches hold anything for a job; returns the seconds."""
    start = time.monotonic()
    until(lambda: not cluster.live_jobs(), "the end of all jobs")
    until(lambda: cluster.leased_bytes() == 0, "free memory")
    return time.monotonic() - start


def test_the_fabric_is_that_of_the_nodes(cluster):
    fabric = cluster.fabric
    assert (fabric["hosts"], fabric["switches"], fabric["switchesUp"]) == (4, 3, 3)
    known = cluster.status()
    assert {host["name"]: host["address"] for host in known["hosts"]} == {
        f"h{number}": cluster.plane.node_address(number) for number in range(4)
    }
    assert {switch["name"] for switch in known["switches"]} == set(SWITCHES)
    assert known["store"]["place"].startswith("etcd://")


def test_ranks_of_a_job_train_through_switches_while_the_fabric_grows(cluster, tmp_path):
    arguments = [str(TRAINING), json.dumps({"steps": 60})]
    job = training_job("train", 3, arguments)
    result = {"name": "RESULT", "value": f"{tmp_path}/$(RANK).json"}
    job["spec"]["template"]["spec"]["containers"][0]["env"].append(result)
    cluster.api.create(job)
    status = wait_running(cluster, "train")
    assert status["pods"] == 3 and status["jobs"][-1]["ranks"] == 3
    assert {pod["spec"]["hostNetwork"] for pod in pods(cluster, "train")} == {True}
    # A host more means a new fabric file and new controllers, one after the other; the job goes on.
    cluster.plane.add_node(9, "h9", {"netsum.dev/rack": "r0"})
    until(lambda: phases(cluster, "train") == ["Succeeded"] * 3, "the end of the training", 300)
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert len({result["digest"] for result in results}) == 1
    wait_free(cluster)
    until(lambda: cluster.fabric.get("hosts") == 5 and cluster.fabric["ready"] == "True", "the fifth host")
    assert cluster.api.delete(job_path("train"))
    until(lambda: not cluster.aggregation_jobs(), "the end of the AggregationJob")


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
def test_a_deleted_job_leaves_nothing(cluster, policy):
    name = f"deleted-{policy.lower()}"
    cluster.api.create(training_job(name, 2, [str(RANK), "1000000"]))
    wait_running(cluster, name)
    assert cluster.leased_bytes() > 0
    cluster.api.delete(job_path(name), policy)
    print(f"free {wait_free(cluster):.2f} s after the deletion")
    until(lambda: not cluster.aggregation_jobs(), "the end of the AggregationJob")


def test_a_second_job_of_the_same_name_is_another(cluster):
    cluster.api.create(training_job("again", 2, [str(RANK), "1000000"]))
    first = wait_running(cluster, "again")["jobs"][-1]
    cluster.api.delete(job_path("again"), "Background")
    until(lambda: cluster.api.create(training_job("again", 2, [str(RANK), "1000000"])), "the second Job")

    def second():
        status = wait_running(cluster, "again")
        return status if status["jobs"][-1]["name"] != first["name"] else None

    until(second, "trees of the second job")
    names = {job["name"] for job in cluster.live_jobs()}
    assert len(names) == 1 and first["name"] not in names
    cluster.api.delete(job_path("again"), "Background")
    wait_free(cluster)


def test_settings_of_an_aggregation_job_and_wrong_words(cluster):
    metadata = {"name": "chosen", "namespace": "ml"}
    spec = {"protocol": "atp", "maxTrees": 1}
    cluster.api.apply(
        {"apiVersion": "netsum.dev/v1alpha1", "kind": "AggregationJob", "metadata": metadata, "spec": spec}
    )
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **{"name": "chosen", "namespace": "ml"},
            "annotations": {"netsum.dev/aggregate": "on", "netsum.dev/aggregation-job": "chosen"},
        },
        "spec": {"containers": [{"name": "a", "image": "nothing"}]},
    }

    def admitted():
        made = cluster.api.create(pod)
        cluster.api.delete("/api/v1/namespaces/ml/pods/chosen", grace=0)
        environment = {one["name"]: one.get("value") for one in made["spec"]["containers"][0]["env"]}
        return made if environment.get("NETSUM_PROTOCOL") == "atp" else None

    made = until(admitted, "a pod with the settings")
    volumes = [volume for volume in made["spec"]["volumes"] if volume["name"] == "netsum-credentials"]
    assert [volume["secret"]["secretName"] for volume in volumes] == ["netsum-credentials"]
    pod["metadata"]["annotations"]["netsum.dev/aggregate"] = "ring"
    with pytest.raises(ApiError, match="use on, off, auto, panama"):
        cluster.api.create(pod)
    del pod["metadata"]["annotations"]["netsum.dev/aggregate"]
    plain = cluster.api.create(pod)
    assert "env" not in plain["spec"]["containers"][0] and "hostNetwork" not in plain["spec"]
    cluster.api.delete("/api/v1/namespaces/ml/pods/chosen", grace=0)
    cluster.api.delete("/apis/netsum.dev/v1alpha1/namespaces/ml/aggregationjobs/chosen")
    until(lambda: not cluster.aggregation_jobs(), "the end of the AggregationJob")


def test_the_operators_token_opens_nothing_else(cluster):
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/netsum-operator/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = cluster.api.request("POST", path, request)["status"]["token"]
    plane = cluster.plane
    operator = Api(plane.address, 6443, plane.authority, token)
    assert operator.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/netsum-admission")["data"]
    for path in (
        "/api/v1/secrets",
        "/api/v1/namespaces/ml/secrets/netsum-credentials",
        f"/api/v1/namespaces/{NAMESPACE}/secrets/netsum-controller-credentials",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    ):
        with pytest.raises(ApiError) as refused:
            operator.request("GET", path)
        assert refused.value.code == 403
    for path in ("/api/v1/namespaces/ml/pods/x", "/api/v1/nodes/h0"):
        with pytest.raises(ApiError) as refused:
            operator.delete(path)
        assert refused.value.code == 403
