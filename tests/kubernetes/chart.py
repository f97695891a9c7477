"""netsum in a cluster, by the Helm chart, with certificates of an authority of its own."""

from __future__ import annotations

import base64
import json
import pathlib
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import netsum
from api import Object
from control_plane import REPOSITORY, TOOLS, ControlPlane, until
from kubelet import Kubelet

CHART = REPOSITORY / "kubernetes" / "netsum"
NAMESPACE = "netsum"
USER = 65532
VERSION = "1.36.3"
"""What the chart is told that the cluster is; that of tests/kubernetes/cluster/go.mod."""

# Switches do not take the machine's other ports, and members of etcd keep nothing.
VALUES = {"etcd": {"storage": ""}, "switches": {"metricsPort": 0}, "fabric": {"hostRate": "10Gbit/s"}}


def render(values: Object, namespace: str = NAMESPACE) -> list[Object]:
    """The chart's objects, without the custom resource definitions."""
    import yaml

    command = [str(TOOLS / "helm"), "template", "netsum", str(CHART), "--namespace", namespace]
    command += ["--kube-version", VERSION, "--values", "-"]
    rendered = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=True)
    return [thing for thing in yaml.safe_load_all(rendered.stdout) if thing]


def definitions() -> list[Object]:
    """The custom resource definitions of the chart."""
    import yaml

    return [yaml.safe_load(file.read_text()) for file in sorted((CHART / "crds").glob("*.yaml"))]


def issue(folder: pathlib.Path, roles: Iterable[str]) -> pathlib.Path:
    """A folder with a folder of credentials for each role, of a new authority."""
    fabric = folder / "authority.toml"
    fabric.write_text(
        'name = "netsum"\ncontroller = "127.0.0.1:7700"\n[[host]]\nname = "a"\naddress = "127.0.0.2"\n'
        '[[switch]]\nname = "s"\naddress = "127.0.0.3:1"\nmemory = "1MiB"\n'
        '[[link]]\nends = ["a", "s"]\nrate = "1Gbit/s"\n'
    )
    command = [str(pathlib.Path(sys.executable).with_name("netsum")), "ca"]
    subprocess.run([*command, "init", str(fabric), "--ca", str(folder / "ca")], check=True, capture_output=True)
    more = ["--ca", str(folder / "ca"), "--out", str(folder / "credentials")]
    subprocess.run([*command, "issue", *more, *roles], check=True, capture_output=True)
    return folder / "credentials"


def secret(name: str, namespace: str, folder: pathlib.Path) -> Object:
    """A Secret with the files of a folder, as `kubectl create secret generic --from-file`."""
    files = [file for file in folder.iterdir() if file.is_file()]
    data = {file.name: base64.b64encode(file.read_bytes()).decode() for file in files}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


class Netsum:
    """The chart in a cluster, whose pods run."""

    def __init__(self, plane: ControlPlane, switches: list[str], values: Object | None = None) -> None:
        self.plane, self.api = plane, plane.api
        self.values = {**VALUES, **(values or {})}
        roles = ["controller", "operator", "tenant/default", *(f"switch/{name}" for name in switches)]
        self.credentials = issue(plane.folder, roles)
        self.host_files = plane.folder / "nodes"
        for name in switches:
            place = self.host_files / name / "etc/netsum/credentials"
            shutil.copytree(self.credentials / "switch" / name, place)
            for file in (place, *place.iterdir()):
                shutil.chown(file, USER, USER)
        self.kubelet = Kubelet(plane, self.host_files)

    def install(self) -> None:
        """What docs/kubernetes.md says, by the API."""
        for definition in definitions():
            self.api.apply(definition)
        self.namespace(NAMESPACE)
        for role in ("controller", "operator"):
            self.api.apply(secret(f"netsum-{role}-credentials", NAMESPACE, self.credentials / role))
        for thing in render(self.values):
            until(lambda thing=thing: self.api.apply(thing), f"{thing['kind']} {thing['metadata']['name']}")

    def namespace(self, name: str) -> None:
        """A namespace whose pods may be ranks."""
        self.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        if name != NAMESPACE:
            self.api.apply(secret("netsum-credentials", name, self.credentials / "tenant/default"))
        until(lambda: self.api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default"), f"namespace {name}")

    @property
    def fabric(self) -> Object:
        """The status of the Fabric."""
        found = self.api.get(f"/apis/netsum.dev/v1alpha1/namespaces/{NAMESPACE}/fabrics/netsum") or {}
        return dict(found.get("status") or {})

    def wait_ready(self, guard_s: float = 600.0) -> Object:
        """Until the fabric is ready. Raises TimeoutError with what it says of itself."""
        try:
            until(lambda: self.fabric.get("ready") == "True", "the fabric", guard_s)
        except TimeoutError as error:
            waiting = {one.pod["metadata"]["name"]: one.why_not for one in self.kubelet.running.values() if one.why_not}
            raise TimeoutError(f"{error}; the fabric: {self.fabric}; pods: {waiting}") from error
        return self.fabric

    def status(self) -> dict[str, Any]:
        """What the controller that leads says, to an operator."""
        controllers = ",".join(
            f"{service['spec']['clusterIP']}:7700"
            for service in self.api.list(f"/api/v1/namespaces/{NAMESPACE}/services")
            if service["metadata"]["name"].startswith("netsum-controller-")
        )
        return dict(json.loads(netsum.status(controllers, 30.0, self.credentials / "operator")))

    def live_jobs(self) -> list[dict[str, Any]]:
        """The controller's jobs that are not over."""
        return [job for job in self.status()["jobs"] if job["state"] not in ("ended", "abandoned")]

    def leased_bytes(self) -> int:
        """Memory of switches that leases hold, as granted and as the switches say."""
        switches = self.status()["switches"]
        return sum(switch["memory_leased_bytes"] + switch["memory_reserved_bytes"] for switch in switches)

    def describe(self, namespace: str = "ml") -> str:
        """Pods of a namespace, their processes and the ends of their logs, for messages."""
        lines = [
            f"AggregationJobs: {[(one['metadata']['name'], one.get('status')) for one in self.aggregation_jobs()]}"
        ]
        for pod in self.api.list(f"/api/v1/namespaces/{namespace}/pods"):
            name, one = pod["metadata"]["name"], self.kubelet.running.get(pod["metadata"]["uid"])
            state = (one.process is not None, one.why_not, one.codes) if one else "no process"
            log = self.kubelet.log(name, namespace)[-1000:]
            lines.append(f"{name}: {pod['status'].get('phase')}, {state}\n{log}")
        return "\n".join(lines)

    def aggregation_jobs(self) -> list[Object]:
        return self.api.list("/apis/netsum.dev/v1alpha1/aggregationjobs")


def training_job(name: str, ranks: int, command: list[str], more: dict[str, str] | None = None) -> Object:
    """An Indexed Job of ranks, one to a node, which asks for sums in the network."""
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    environment: list[Object] = [{"name": "RANK", "valueFrom": index}]
    variables = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": f"{name}-0.{name}",
        # An older rank 0 of that name may still be about to die.
        "MASTER_PORT": str(random.randrange(20_000, 30_000)),
        "OMP_NUM_THREADS": "1",
        # With it ranks without torch meet.
        "NETSUM_TOKEN": "known to the tests alone",
        "HOME": "/root",
    }
    environment += [{"name": key, "value": value} for key, value in {**variables, **(more or {})}.items()]
    apart = {"labelSelector": {"matchLabels": {"training": name}}, "topologyKey": "kubernetes.io/hostname"}
    hosts = {"matchExpressions": [{"key": "netsum.dev/rack", "operator": "Exists"}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {
            **{"completions": ranks, "parallelism": ranks, "completionMode": "Indexed", "backoffLimit": 0},
            "template": {
                "metadata": {"labels": {"training": name}, "annotations": {"netsum.dev/aggregate": "on"}},
                "spec": {
                    "restartPolicy": "Never",
                    "subdomain": name,
                    "affinity": {
                        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
                        "nodeAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [hosts]}
                        },
                    },
                    "containers": [
                        {"name": "rank", "image": "python", "command": ["python", *command], "env": environment}
                    ],
                },
            },
        },
    }
