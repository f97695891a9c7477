"""The control plane of a Kubernetes cluster on loopback addresses: etcd, API server, controllers, scheduler, kwok."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator

import netsum
from api import Api, ApiError, Object

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TOOLS = REPOSITORY / "out" / "kubernetes"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "helm")
STAGES = ("node-initialize", "pod-ready", "pod-delete")
"""What kwok does. Without `pod-complete`: pods end when their processes do."""
GUARD_S = 300.0
"""When something that must come is given up; generous, because other programs use this machine, too."""

# Of kube-controller-manager: what the tests need.
CONTROLLERS = ",".join(
    f"{name}-controller"
    for name in (
        "daemonset",
        "deployment",
        "disruption",
        "garbage-collector",
        "job",
        "namespace",
        "persistentvolume-binder",
        "replicaset",
        "root-ca-certificate-publisher",
        "serviceaccount",
        "statefulset",
    )
)


def why_not() -> str | None:
    """Why no cluster can run here, or None."""
    if os.geteuid() != 0:
        return "needs root, for mounts of its own"
    missing = [name for name in PROGRAMS if not (TOOLS / name).exists()]
    missing += [name for name in ("openssl", "setpriv", "unshare") if shutil.which(name) is None]
    if importlib.util.find_spec("yaml") is None:
        missing.append("PyYAML")
    if not (REPOSITORY / "target/release/netsum-operator").exists():
        missing.append("netsum-operator")
    return f"needs {', '.join(missing)} (make setup-kubernetes)" if missing else None


def until(ready: Callable[[], object], what: str, guard_s: float = GUARD_S, step_s: float = 0.1) -> object:
    """Wait for something true, and return it. Who does not answer is not ready. Raises TimeoutError."""
    deadline, last = time.monotonic() + guard_s, ""
    while time.monotonic() < deadline:
        try:
            if found := ready():
                return found
        except (ApiError, OSError, netsum.NetsumError) as error:
            last = f": {error}"
        time.sleep(step_s)
    raise TimeoutError(f"{what} did not come within {guard_s:.0f} s{last}")


class ControlPlane:
    """A context manager; `network` is the second byte of all addresses."""

    def __init__(self) -> None:
        self.network = 128 + os.getpid() % 100
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="netsum-kubernetes-"))
        self.folder.chmod(0o755)
        (self.folder / "logs").mkdir()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.commands: dict[str, list[str]] = {}
        self.authority = self.folder / "certificates" / "apiserver.crt"

    @property
    def address(self) -> str:
        return f"127.{self.network}.0.1"

    def node_address(self, number: int) -> str:
        """Of the node of that number, from 0 to 9,999."""
        return f"127.{self.network}.{16 + number // 250}.{1 + number % 250}"

    def __enter__(self) -> ControlPlane:
        try:
            self._start_all()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()
        if kind is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            print(f"logs are in {self.folder}")

    def _start_all(self) -> None:
        self.start(
            "etcd",
            *(str(TOOLS / "etcd"), "--name=cluster", f"--data-dir={self.folder}/etcd", "--unsafe-no-fsync"),
            *(f"--{who}-client-urls=http://{self.address}:2379" for who in ("listen", "advertise")),
            f"--listen-peer-urls=http://{self.address}:2380",
            f"--initial-advertise-peer-urls=http://{self.address}:2380",
            f"--initial-cluster=cluster=http://{self.address}:2380",
        )
        key, tokens = self.folder / "accounts.key", self.folder / "tokens.csv"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        tokens.write_text('admin-token,admin,1,"system:masters"\n')
        self.start(
            "kube-apiserver",
            str(TOOLS / "kube-apiserver"),
            f"--etcd-servers=http://{self.address}:2379",
            *(f"--{which}-address={self.address}" for which in ("bind", "advertise")),
            f"--cert-dir={self.authority.parent}",
            "--endpoint-reconciler-type=none",
            "--authorization-mode=RBAC",
            f"--token-auth-file={tokens}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--service-cluster-ip-range=127.{self.network}.240.0/20",
            "--allow-privileged=true",
            # It keeps pods from new nodes until a controller that is left out here finds them well.
            "--disable-admission-plugins=TaintNodesByCondition",
        )
        until(self.authority.exists, "the API server's certificate")
        self.api = Api(self.address, 6443, self.authority, "admin-token")
        until(lambda: self.api.get("/api/v1/namespaces/kube-system"), "the API server")
        self.kubeconfig = self.folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(self._kubeconfig()))
        shared = (f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", f"--bind-address={self.address}")
        self.start(
            "kube-controller-manager",
            str(TOOLS / "kube-controller-manager"),
            *shared,
            f"--controllers={CONTROLLERS}",
            f"--root-ca-file={self.authority}",
            f"--service-account-private-key-file={key}",
            # More than a default cluster grants, because a thousand nodes come at once.
            *("--kube-api-qps=200", "--kube-api-burst=400"),
        )
        self.start("kube-scheduler", str(TOOLS / "kube-scheduler"), *shared, "--kube-api-qps=200")
        stages = [f"--config={TOOLS / 'stages' / stage}.yaml" for stage in STAGES]
        self.start(
            "kwok",
            *(str(TOOLS / "kwok"), f"--kubeconfig={self.kubeconfig}", "--manage-all-nodes", *stages),
            *(f"--cidr=127.{self.network}.128.0/19", f"--node-ip={self.address}"),
        )
        # The first controller to look for is the one that serves every pod.
        until(lambda: self.api.get("/api/v1/namespaces/default/serviceaccounts/default"), "service accounts")

    def _kubeconfig(self) -> Object:
        server = {"server": f"https://{self.address}:6443", "certificate-authority": str(self.authority)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "all",
            "clusters": [{"name": "all", "cluster": server}],
            "users": [{"name": "all", "user": {"token": "admin-token"}}],
            "contexts": [{"name": "all", "context": {"cluster": "all", "user": "all"}}],
        }

    def start(self, name: str, *command: str) -> None:
        """Start a process of the control plane; its log goes to a file."""
        self.commands[name] = list(command)
        with open(self.folder / "logs" / name, "ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def restart(self, name: str) -> None:
        """SIGKILL, and a new start."""
        self.processes[name].kill()
        self.processes[name].wait()
        self.start(name, *self.commands[name])

    def log(self, name: str) -> str:
        return (self.folder / "logs" / name).read_text(errors="replace")

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.kill()
        for process in self.processes.values():
            process.wait()

    def add_nodes(self, nodes: Iterator[tuple[str, dict[str, str], bool]]) -> None:
        """Nodes by name, labels, and whether they are for switches only; addresses follow from the order."""
        for number, (name, labels, is_switch) in enumerate(nodes):
            self.add_node(number, name, labels, is_switch)

    def add_node(self, number: int, name: str, labels: dict[str, str], is_switch: bool = False) -> None:
        """A node with the address of that number."""
        taints = [{"key": "netsum.dev/role", "value": "switch", "effect": "NoSchedule"}] if is_switch else []
        addresses = [
            {"type": "InternalIP", "address": self.node_address(number)},
            {"type": "Hostname", "address": name},
        ]
        self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
                "spec": {"taints": taints},
                "status": {"addresses": addresses},
            }
        )
