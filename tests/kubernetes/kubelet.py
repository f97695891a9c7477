"""Runs the processes of pods from their specifications: environment, volumes, user and capabilities as by a kubelet.

kwok says that a pod runs; this module makes it true. Containers have the files of this machine, with mounts of their
own below /run and at /etc/hosts.
"""

from __future__ import annotations

import base64
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from api import Api, ApiError, Object
from control_plane import REPOSITORY, TOOLS, ControlPlane
from proxy import Proxy

DAEMONS = ("netsum-controller", "netsum-switch", "netsum-operator")
TICK_S = 0.05
GRACE_S = 2.0
"""From SIGTERM to SIGKILL."""
RESTART_S = 0.5


@dataclass(frozen=True)
class Image:
    """What runs for a container's image: a program, the first words of its command, and the folder to start in."""

    program: str
    words: tuple[str, ...] = ()
    folder: str = "/"


class NotYet(Exception):
    """A volume is not there."""


@dataclass
class Running:
    """A pod with its process, of its one container."""

    pod: Object
    folder: pathlib.Path
    process: subprocess.Popen[bytes] | None = None
    start_at: float = 0.0
    killed_at: float | None = None
    restarts: int = 0
    why_not: str = ""
    codes: list[int] = field(default_factory=list)


class Kubelet:
    """A thread that starts and ends processes as the API says; a context manager."""

    def __init__(
        self,
        plane: ControlPlane,
        host_files: pathlib.Path | None = None,
        pull: Callable[[str], Image | None] | None = None,
    ) -> None:
        """host_files: has a folder for each node, which stands for that node's root in volumes of type hostPath. pull:
        what runs for an image; this checkout's programs unless given."""
        self.plane, self.api, self.host_files = plane, plane.api, host_files
        self.pull = pull or built
        self.hosts = plane.folder / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n")
        self.events: queue.Queue[tuple[str, Object]] = queue.Queue()
        self.known: dict[str, Object] = {}
        self.running: dict[str, Running] = {}
        self.lock = threading.RLock()
        self.stopped = threading.Event()
        self.proxy = Proxy(self.api, self.pods)
        self.threads = [threading.Thread(target=run, daemon=True) for run in (self._watch, self._run)]

    def __enter__(self) -> Kubelet:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.threads[1].join(30)
        self.proxy.stop()
        with self.lock:
            for one in self.running.values():
                if one.process is not None:
                    one.process.kill()
                    one.process.wait()

    def pods(self) -> list[Object]:
        """All pods, as last seen."""
        with self.lock:
            return list(self.known.values())

    def processes(self, **labels: str) -> dict[str, Running]:
        """Pods with a live process, by name, of those with these labels (`_` stands for `-` and the group's `/`)."""
        wanted = {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()}
        with self.lock:
            return {
                one.pod["metadata"]["name"]: one
                for one in self.running.values()
                if one.process is not None
                and one.process.poll() is None
                and all(one.pod["metadata"].get("labels", {}).get(k) == v for k, v in wanted.items())
            }

    def of(self, component: str) -> dict[str, Running]:
        """Live processes of a component of the chart."""
        with self.lock:
            return {
                one.pod["metadata"]["name"]: one
                for one in self.running.values()
                if one.process is not None
                and one.process.poll() is None
                and one.pod["metadata"].get("labels", {}).get("netsum.dev/component") == component
            }

    def log(self, name: str, namespace: str = "netsum") -> str:
        """What the pods of that name have written."""
        file = self.plane.folder / "logs" / f"{namespace}-{name}"
        return file.read_text(errors="replace") if file.exists() else ""

    def kill(self, one: Running, number: int = signal.SIGKILL) -> None:
        """Send a pod's process a signal; the kubelet starts it anew if its policy says so."""
        if one.process is not None:
            one.process.send_signal(number)

    # ---- what the API says

    def _watch(self) -> None:
        while not self.stopped.is_set():
            try:
                listed = self.api.request("GET", "/api/v1/pods")
                present = {pod["metadata"]["uid"] for pod in listed["items"]}
                for pod in listed["items"]:
                    self.events.put(("MODIFIED", pod))
                with self.lock:
                    gone = [pod for uid, pod in self.known.items() if uid not in present]
                for pod in gone:
                    self.events.put(("DELETED", pod))
                for event in self.api.watch("/api/v1/pods", listed["metadata"]["resourceVersion"]):
                    self.events.put((event["type"], event["object"]))
            except (ApiError, OSError, ValueError):
                time.sleep(0.3)

    def _run(self) -> None:
        while not self.stopped.is_set():
            changed = False
            try:
                while True:
                    kind, pod = self.events.get(timeout=TICK_S)
                    self._note(kind, pod)
                    changed = True
            except queue.Empty:
                pass
            if changed or int(time.monotonic() / TICK_S) % 20 == 0:
                self._write_hosts()
            with self.lock:
                everyone = list(self.running.items())
            for uid, one in everyone:
                self._step(uid, one)

    def _note(self, kind: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        with self.lock:
            if kind == "DELETED":
                self.known.pop(uid, None)
            else:
                self.known[uid] = pod
            one = self.running.get(uid)
            if kind == "DELETED" or "deletionTimestamp" in pod["metadata"]:
                if one is not None and one.killed_at is None:
                    one.killed_at = time.monotonic()
                    if one.process is not None:
                        one.process.terminate()
            elif one is not None:
                one.pod = pod
            elif pod["status"].get("phase") == "Running" and self._image(pod) is not None:
                folder = self.plane.folder / "pods" / uid
                folder.mkdir(parents=True)
                folder.chmod(0o755)
                self.running[uid] = Running(pod, folder)

    # ---- processes

    def _step(self, uid: str, one: Running) -> None:
        now = time.monotonic()
        code = None if one.process is None else one.process.poll()
        if one.killed_at is not None:
            if one.process is not None and code is None:
                if now - one.killed_at > GRACE_S:
                    one.process.kill()
                return
            with self.lock:
                del self.running[uid]
            shutil.rmtree(one.folder, ignore_errors=True)
        elif one.process is None:
            if now >= one.start_at:
                self._start(one, now)
        elif code is not None:
            one.codes.append(code)
            one.process = None
            policy = one.pod["spec"].get("restartPolicy", "Always")
            if policy == "Always" or (policy == "OnFailure" and code != 0):
                one.restarts += 1
                one.start_at = now + RESTART_S
            else:
                one.start_at = float("inf")
                self._report(one, code)

    def _report(self, one: Running, code: int) -> None:
        """The pod's end, as a kubelet reports it."""
        container = one.pod["spec"]["containers"][0]
        terminated = {"exitCode": code if code >= 0 else 128 - code, "reason": "Error" if code else "Completed"}
        status = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [
                {
                    **{"name": container["name"], "image": container["image"], "imageID": ""},
                    **{"ready": False, "restartCount": one.restarts, "state": {"terminated": terminated}},
                }
            ],
        }
        metadata = one.pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        for _ in range(20):
            try:
                self.api.patch(path, {"metadata": {"uid": metadata["uid"]}, "status": status})
                return
            except ApiError:
                return
            except OSError:
                time.sleep(0.3)

    def _start(self, one: Running, now: float) -> None:
        try:
            command = self._command(one)
            environment = self._environment(one.pod)
        except (NotYet, ApiError, OSError) as error:
            one.why_not = str(error)
            one.start_at = now + 0.3
            return
        metadata = one.pod["metadata"]
        log = self.plane.folder / "logs" / f"{metadata['namespace']}-{metadata['name']}"
        with open(log, "ab") as out:
            one.process = subprocess.Popen(
                command,
                env={"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}", **environment},
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                cwd=(self._image(one.pod) or Image("")).folder,
            )

    def _image(self, pod: Object) -> Image | None:
        """What runs for a pod; None for those that are not run."""
        return self.pull(pod["spec"]["containers"][0]["image"])

    def _command(self, one: Running) -> list[str]:
        """The container's command in a mount namespace of its own, as its user."""
        pod = one.pod
        container = pod["spec"]["containers"][0]
        image = self._image(pod) or Image("")
        program = image.program
        words = image.words if container.get("command") is None else ()
        own = container.get("command") or []
        if own and own[0] in ("python", "etcd", "sh"):
            own = own[1:]
        environment = self._environment(pod)
        arguments = [_expand(word, environment) for word in [*words, *own, *container.get("args", [])]]
        script = [
            "set -e",
            "mount -t tmpfs -o mode=755 tmpfs /run",
            f"mount --bind {self.hosts} /etc/hosts",
            "mkdir -p /run/bin",
        ]
        if program != sys.executable:
            # Its folder may be closed to the pod's user.
            script += ["touch /run/bin/program", f"mount --bind {program} /run/bin/program"]
        for number, mount in enumerate(container.get("volumeMounts", [])):
            source = self._volume(one, mount["name"], number)
            path = mount["mountPath"]
            if path.startswith("/var/lib/"):
                script += ["mount -t tmpfs -o mode=755 tmpfs /var/lib"]
            script += [f"mkdir -p {path}", f"mount --bind {source} {path}"]
        target = program if program == sys.executable else "/run/bin/program"
        user = _user(pod, container)
        script += [" ".join(["exec", *user, target, '"$@"'])]
        return ["unshare", "-m", "sh", "-c", "\n".join(script), "sh", *arguments]

    def _environment(self, pod: Object) -> dict[str, str]:
        container = pod["spec"]["containers"][0]
        environment = {"KUBERNETES_SERVICE_HOST": self.plane.address, "KUBERNETES_SERVICE_PORT": "6443"}
        for variable in container.get("env", []):
            if "value" in variable:
                value = _expand(variable["value"], environment)
            elif "fieldRef" in variable.get("valueFrom", {}):
                value = _field(pod, variable["valueFrom"]["fieldRef"]["fieldPath"])
            else:
                raise NotYet(f"no value for {variable['name']}")
            environment[variable["name"]] = value
        return environment

    def _volume(self, one: Running, name: str, number: int) -> pathlib.Path:
        """A folder with a volume's files. Raises NotYet."""
        pod = one.pod
        namespace = pod["metadata"]["namespace"]
        volume = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == name)
        group = pod["spec"].get("securityContext", {}).get("fsGroup", 0)
        folder = one.folder / f"{number}-{name}"
        if "hostPath" in volume:
            if self.host_files is None:
                raise NotYet("no files of nodes")
            place = self.host_files / pod["spec"]["nodeName"] / volume["hostPath"]["path"].lstrip("/")
            if not place.is_dir():
                raise NotYet(f"{place} is not there")
            return place
        if "persistentVolumeClaim" in volume:
            folder = self._claimed(namespace, volume["persistentVolumeClaim"]["claimName"])
        folder.mkdir(exist_ok=True)
        os.chown(folder, 0, group)
        folder.chmod(0o2775 if {"emptyDir", "persistentVolumeClaim"} & volume.keys() else 0o755)
        files: dict[str, bytes] = {}
        mode = 0o644
        if "configMap" in volume:
            files = self._config_map(namespace, volume["configMap"]["name"])
        elif "secret" in volume:
            path = f"/api/v1/namespaces/{namespace}/secrets/{volume['secret']['secretName']}"
            files = {key: base64.b64decode(value) for key, value in self._object(path).get("data", {}).items()}
            mode = volume["secret"].get("defaultMode", 0o644)
        elif "projected" in volume:
            mode = 0o644
            for source in volume["projected"]["sources"]:
                files |= self._projected(pod, source)
        for key, content in files.items():
            file = folder / key
            file.write_bytes(content)
            os.chown(file, 0, group)
            # What a group of the pod owns, it may read.
            file.chmod(mode | 0o040 if group and mode & 0o400 else mode)
        return folder

    def _claimed(self, namespace: str, name: str) -> pathlib.Path:
        """The folder of the volume of type hostPath that is bound to a claim. Raises NotYet."""
        claim = self._object(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
        if claim.get("status", {}).get("phase") != "Bound":
            raise NotYet(f"the claim {name} is not bound")
        volume = self._object(f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
        return pathlib.Path(volume["spec"]["hostPath"]["path"])

    def _projected(self, pod: Object, source: Object) -> dict[str, bytes]:
        namespace = pod["metadata"]["namespace"]
        if "serviceAccountToken" in source:
            account = pod["spec"]["serviceAccountName"]
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
            request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
            token = self.api.request("POST", path, request)["status"]["token"]
            return {source["serviceAccountToken"]["path"]: token.encode()}
        if "configMap" in source:
            return self._config_map(namespace, source["configMap"]["name"])
        return {"namespace": namespace.encode()}

    def _config_map(self, namespace: str, name: str) -> dict[str, bytes]:
        data = self._object(f"/api/v1/namespaces/{namespace}/configmaps/{name}").get("data", {})
        return {key: value.encode() for key, value in data.items()}

    def _object(self, path: str) -> Object:
        found = self.api.get(path)
        if found is None:
            raise NotYet(f"{path} is not there")
        return found

    def _write_hosts(self) -> None:
        """What cluster DNS would say, for the C library of processes. Written in place: they have the file mounted."""
        names = {"localhost": "127.0.0.1", **self.proxy.names()}
        for pod in self.pods():
            spec, address = pod["spec"], pod["status"].get("podIP")
            if address and spec.get("hostname") and spec.get("subdomain"):
                domain = f"{spec['subdomain']}.{pod['metadata']['namespace']}.svc"
                names[f"{spec['hostname']}.{domain}"] = address
                names[f"{spec['hostname']}.{spec['subdomain']}"] = address
        text = "".join(f"{address} {name}\n" for name, address in names.items())
        if self.hosts.read_text() != text:
            self.hosts.write_text(text)


def built(image: str) -> Image | None:
    """This checkout's program for an image, and what else tests run."""
    name = image.rpartition("/")[2].partition(":")[0]
    if name in DAEMONS:
        return Image(str(REPOSITORY / "target/release" / name))
    if name == "etcd":
        return Image(str(TOOLS / "etcd"))
    if name == "python":
        return Image(sys.executable)
    return None


def _user(pod: Object, container: Object) -> list[str]:
    """A command that becomes the container's user with its capabilities."""
    security = pod["spec"].get("securityContext", {})
    user = security.get("runAsUser")
    if user is None:
        return []
    groups = security.get("fsGroup", user)
    words = ["setpriv", f"--reuid={user}", f"--regid={security.get('runAsGroup', user)}", f"--groups={groups}"]
    if "ALL" in container.get("securityContext", {}).get("capabilities", {}).get("drop", []):
        words += ["--bounding-set=-all", "--inh-caps=-all"]
    if container.get("securityContext", {}).get("allowPrivilegeEscalation") is False:
        words += ["--no-new-privs"]
    return words


def _field(pod: Object, path: str) -> str:
    """A value of the downward API. Raises NotYet."""
    if entry := re.fullmatch(r"metadata\.(annotations|labels)\['(.*)'\]", path):
        value = pod["metadata"].get(entry[1], {}).get(entry[2])
    else:
        value = pod
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, str):
        raise NotYet(f"{path} is not there")
    return value


def _expand(text: str, environment: dict[str, str]) -> str:
    return re.sub(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)", lambda found: environment.get(found[1], found[0]), text)


__all__ = ["Api", "Image", "Kubelet", "NotYet", "Running", "built"]
