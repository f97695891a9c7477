"""The commands of docs/quick-start.md and docs/kubernetes.md, typed as they stand into a cluster with kubectl and helm.

With a release (`make release`), its images go through a registry and run; without one, this checkout's programs.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import pytest

import netsum
import registry
from chart import CHART, USER
from control_plane import REPOSITORY, TOOLS, ControlPlane, until
from kubelet import Image, Kubelet, built
from registry import Registry

PATH = f"{TOOLS}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
pytestmark = [
    pytest.mark.needs_cluster,
    pytest.mark.skipif(shutil.which("kubectl", path=PATH) is None, reason="needs kubectl (make setup-kubernetes)"),
]

RELEASE = pathlib.Path(os.environ.get("NETSUM_RELEASE", REPOSITORY / "out" / "release"))
VERSION = netsum.__version__
GUARD_S = 600.0


def blocks(page: str, section: str) -> list[tuple[str, str]]:
    """The blocks of code in a section of a page of docs: (language, text)."""
    text = (REPOSITORY / "docs" / page).read_text()
    (found,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", text, flags=re.M | re.S)
    return [
        (language, re.sub(rf"^{indent}", "", code, flags=re.M))
        for indent, language, code in re.findall(r"^( *)```(\w+)\n(.*?)^ *```$", found, flags=re.M | re.S)
    ]


class Operator:
    """Somebody with a shell, kubectl, helm, and the files of a release in the folder; a context manager."""

    def __init__(self, folder: pathlib.Path, hosts: list[str], switches: list[str]) -> None:
        self.folder, self.machines = folder, hosts + switches
        self.registry: Registry | None = None

    def __enter__(self) -> Operator:
        with contextlib.ExitStack() as stack:
            self.plane = stack.enter_context(ControlPlane())
            self.nodes = self.plane.folder / "nodes"
            for number, name in enumerate(self.machines):
                self.plane.add_node(number, name, {})
            for number in range(3):
                self._add_volume(number)
            if not (RELEASE / "SHA256SUMS").is_file():
                print(f"no release in {RELEASE}: pods run this checkout's programs")
                package = [str(TOOLS / "helm"), "package", str(CHART), "--destination", str(self.folder)]
                subprocess.run(package, check=True, stdout=subprocess.DEVNULL)
                (self.folder / f"netsum-{VERSION}.tgz").rename(self.folder / f"netsum-chart-{VERSION}.tgz")
            else:
                for file in RELEASE.iterdir():
                    (self.folder / file.name).symlink_to(file)
                if why_not := registry.why_not():
                    print(f"images do not go through a registry: {why_not}")
                else:
                    address = f"127.{self.plane.network}.0.9:5000"
                    self.registry = stack.enter_context(Registry(address, self.plane.folder / "registry", self.folder))
            shutil.copy(REPOSITORY / "examples" / "pytorch_ddp.py", self.folder)
            self.kubelet = stack.enter_context(Kubelet(self.plane, self.nodes, self._pull))
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.__exit__(*error)

    def _pull(self, image: str) -> Image | None:
        if image == "registry.example/train:1":
            # torch and the wheel are this machine's.
            return Image("/bin/sh", folder=str(self.folder))
        if self.registry is not None and image.startswith(self.registry.address):
            return self.registry.pull(image)
        return built(image)

    def _add_volume(self, number: int) -> None:
        """What a StorageClass would make."""
        place = self.plane.folder / "volumes" / str(number)
        place.mkdir(parents=True)
        self.plane.api.request(
            "POST",
            "/api/v1/persistentvolumes",
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"volume{number}"},
                "spec": {
                    "capacity": {"storage": "2Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "hostPath": {"path": str(place)},
                },
            },
        )

    def type(self, text: str) -> str:
        """Run commands as they stand, but for the registry's name; returns what they print."""
        if self.registry is not None:
            text = text.replace("registry.example/netsum", f"{self.registry.address}/netsum")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("NETSUM_")},
            **{"PATH": PATH, "KUBECONFIG": str(self.plane.kubeconfig), "HOME": str(self.folder)},
        }
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", text],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=GUARD_S,
        )
        print(f"--- {time.monotonic() - began:.1f} s\n{text}{done.stdout}{done.stderr}", flush=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def wait_ready(self) -> None:
        """Look at the fabric until it says that it is ready, as the page tells the operator to."""
        kubectl = str(shutil.which("kubectl", path=PATH))
        show = [kubectl, f"--kubeconfig={self.plane.kubeconfig}", "-n", "netsum", "get", "fabric"]

        def ready() -> bool:
            shown = subprocess.run(show, capture_output=True, text=True, timeout=GUARD_S).stdout
            rows = [line.split() for line in shown.splitlines()]
            return len(rows) == 2 and rows[1][1:2] == ["True"]

        try:
            until(ready, "a fabric that is ready", step_s=1.0)
        except TimeoutError as error:
            waiting = {one.pod["metadata"]["name"]: one.why_not for one in self.kubelet.running.values() if one.why_not}
            pods = [
                (p["metadata"]["name"], p["status"].get("phase"), p["status"].get("conditions"))
                for p in self.kubelet.pods()
            ]
            raise TimeoutError(f"{error}; {waiting}; {pods}") from error

    def train(self, text: str, namespace: str = "default") -> str:
        """Apply the page's job; returns what ranks print once all have succeeded. It must have had trees of 3 ranks."""
        (self.folder / "job.yaml").write_text(text)

        def pods() -> list[dict]:
            return self.plane.api.list(f"/api/v1/namespaces/{namespace}/pods?labelSelector=job-name%3Dddp")

        seen = set()
        job = f"/apis/netsum.dev/v1alpha1/namespaces/{namespace}/aggregationjobs/ddp"

        def ended() -> bool:
            status = (self.plane.api.get(job) or {}).get("status", {})
            seen.update((each["ranks"], status.get("trees", 0)) for each in status.get("jobs", []))
            phases = [pod["status"].get("phase") for pod in pods()]
            assert "Failed" not in phases, self.logs(namespace)
            return phases == ["Succeeded"] * 3

        self.type("kubectl apply -f job.yaml\n")
        until(ended, "the end of the job", GUARD_S)
        assert any(ranks == 3 and trees > 0 for ranks, trees in seen), seen
        return self.logs(namespace)

    def logs(self, namespace: str) -> str:
        """What the ranks have written."""
        files = sorted((self.plane.folder / "logs").glob(f"{namespace}-ddp-*"))
        return "\n".join(file.read_text(errors="replace") for file in files)


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    """For the operator; readable by all users, because pods are."""
    with tempfile.TemporaryDirectory(prefix="netsum-operator-") as name:
        pathlib.Path(name).chmod(0o755)
        yield pathlib.Path(name)


def test_the_quick_start_as_it_stands(folder: pathlib.Path) -> None:
    typed = blocks("quick-start.md", "Kubernetes")
    assert [language for language, _ in typed] == ["sh", "sh", "sh", "yaml", "sh"]
    images, labels, install, job, apply = (text for _, text in typed)
    with Operator(folder, ["h0", "h1", "h2"], ["t0"]) as operator:
        began = time.monotonic()
        if operator.registry is not None:
            operator.type(images)
        operator.type(labels)
        operator.type(install)
        operator.wait_ready()
        print(f"ready {time.monotonic() - began:.0f} s after the first command")
        said = operator.train(job)
        print(f"trained {time.monotonic() - began:.0f} s after the first command\n{said}")
        assert "identical parameters: True" in said and "step 20: loss" in said
        # The last block, whose first line `train` has typed already.
        first, *rest = apply.splitlines(keepends=True)
        assert first == "kubectl apply -f job.yaml\n"
        assert "ddp" in operator.type("".join(rest))


def test_the_plain_manifests_with_certificates_as_the_page_says(folder: pathlib.Path) -> None:
    typed = blocks("kubernetes.md", "Install")
    assert [language for language, _ in typed] == ["sh", "sh", "sh", "sh"]
    labels, certificates, _, install = (text for _, text in typed)
    job = next(text for language, text in blocks("quick-start.md", "Kubernetes") if language == "yaml")
    (folder / "fabric.toml").write_text(
        'name = "netsum"\ncontroller = "127.0.0.1:7700"\n[[host]]\nname = "h0"\naddress = "127.0.0.2"\n'
        '[[switch]]\nname = "t0"\naddress = "127.0.0.3:1"\nmemory = "1MiB"\n'
        '[[link]]\nends = ["h0", "t0"]\nrate = "1Gbit/s"\n'
    )
    with Operator(folder, ["h0", "h1", "h2", "h3"], ["t0", "s0"]) as operator:
        operator.type(labels)
        operator.type("kubectl create namespace ml\n")
        operator.type(certificates)
        for name in ("t0", "s0"):
            place = operator.nodes / name / "etc/netsum/credentials"
            shutil.copytree(folder / "credentials" / "switch" / name, place)
            for file in (place, *place.iterdir()):
                shutil.chown(file, USER, USER)
        for name, file in (("netsum", "netsum"), ("netsum-definitions", "definitions")):
            text = (REPOSITORY / "kubernetes" / f"{file}.yaml").read_text()
            if operator.registry is not None:
                text = text.replace("registry.example/netsum", f"{operator.registry.address}/netsum")
            made = folder / f"{name}-{VERSION}.yaml"
            made.unlink(missing_ok=True)
            made.write_text(text)
        if operator.registry is not None:
            operator.type(blocks("quick-start.md", "Kubernetes")[0][1])
        operator.type(install)
        operator.wait_ready()
        said = operator.train(job.replace("metadata: {name: ddp}", "metadata: {name: ddp, namespace: ml}"), "ml")
        assert "identical parameters: True" in said, said
