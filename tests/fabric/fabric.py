"""The shipped daemons and workers on a network of namespaces."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request

import netsum
from namespaces import GUARD_S, namespace
from network import Network
from ranks import Rank, ask

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
CONTROLLER_PORT, SWITCH_PORT, SERVER_PORT, METRICS_PORT = 7700, 7701, 7801, 9100


@dataclasses.dataclass(frozen=True)
class Slots:
    """The fabric's configuration for protocols with slots: servers by host, slots and policy of each switch."""

    servers: tuple[str, ...] = ()
    slots: int = 4096
    policy: str = "preempt"
    tenants: str = ""
    """Entries of the fabric file."""
    trusted: bool = True
    """Packets carry no tags, as in the papers; used for measurements."""


def description(network: Network, memory: str, slots: Slots) -> str:
    """The fabric file of a network."""
    controller = f"{network.address[network.spines[0]]}:{CONTROLLER_PORT}"
    lines = ['name = "test"', f'controller = "{controller}"', f"trusted = {str(slots.trusted).lower()}"]
    for host in network.hosts:
        lines += ["[[host]]", f'name = "{host}"', f'address = "{network.address[host]}"']
    for switch in network.racks + network.spines:
        lines += ["[[switch]]", f'name = "{switch}"', f'memory = "{memory}"']
        lines += [f'address = "{network.address[switch]}:{SWITCH_PORT}"']
        lines += [f"slots = {slots.slots}", f'policy = "{slots.policy}"']
        lines += [f'metrics = "{network.address[switch]}:{METRICS_PORT}"']
    for number, host in enumerate(slots.servers):
        lines += ["[[server]]", f'name = "server{number}"', f'memory = "{memory}"']
        lines += [f'address = "{network.address[host]}:{SERVER_PORT + number}"']
    lines += [slots.tenants]
    for link in network.links:
        lines += ["[[link]]", f'ends = ["{link.a}", "{link.b}"]', f'rate = "{link.rate_bps // 1000000}Mbit/s"']
    return "\n".join(lines) + "\n"


class Fabric:
    """Controller at the first spine, one switch daemon per rack and spine; a context manager."""

    def __init__(
        self,
        network: Network,
        memory: str = "64MiB",
        controller_options: tuple[str, ...] = (),
        slots: Slots = Slots(),
        in_kernel: bool = False,
        store: bool = True,
    ):
        """in_kernel: switches aggregate in their drivers' hooks where possible. store: whether the controller has
        one."""
        self.network, self.slots, self.in_kernel = network, slots, in_kernel
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="netsum-fabric-"))
        self.file = self.directory / "fabric.toml"
        self.file.write_text(description(network, memory, slots))
        self.controller_options = controller_options
        self.store = self.directory / "controller.sqlite" if store else None
        self.processes: dict[str, subprocess.Popen] = {}

    def __enter__(self) -> Fabric:
        try:
            self.start_controller()
            for switch in self.network.racks + self.network.spines:
                self.start_switch(switch)
            for number in range(len(self.slots.servers)):
                self.start_server(number)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()
        # The logs of a failed run are kept.
        if kind is None or not issubclass(kind, Exception):
            shutil.rmtree(self.directory)

    @property
    def controller(self) -> str:
        return f"{self.network.address[self.network.spines[0]]}:{CONTROLLER_PORT}"

    def folder(self, what: str) -> pathlib.Path:
        """A new folder for one job's files, removed with the fabric's."""
        return pathlib.Path(tempfile.mkdtemp(dir=self.directory, prefix=f"{what}-"))

    def start_controller(self) -> None:
        options = ("--fabric", str(self.file), "--store", str(self.store or "none"), *self.controller_options)
        self._start("controller", self.network.spines[0], "netsum-controller", *options)

    def start_switch(self, name: str) -> None:
        options = ["--fabric", str(self.file), "--name", name]
        if self.in_kernel:
            options += ["--dataplane", "xdp", "--port", *self.network.neighbours(name)]
        self._start(name, name, "netsum-switch", *options)

    def start_server(self, number: int) -> None:
        name = f"server{number}"
        options = ("--role", "server", "--fabric", str(self.file), "--name", name)
        self._start(name, self.slots.servers[number], "netsum-switch", *options)

    def leases(self, protocol: str) -> list[dict]:
        """Counters of every lease of a protocol, each with `at`, the switch or server."""
        switches = self.status()["switches"]
        return [{"at": s["name"], **t} for s in switches for t in s["trees"] if t["protocol"] == protocol]

    def watch(self, protocol: str, jobs: list[Workers]) -> dict[tuple, dict]:
        """Poll until all workers have ended: the last counters of each lease seen, by (at, job, tree, epoch)."""
        last: dict[tuple, dict] = {}
        while any(process.poll() is None for job in jobs for process in job.processes):
            for lease in self.leases(protocol):
                last[lease["at"], lease["job"], lease["tree"], lease["epoch"]] = lease
            time.sleep(0.2)
        return last

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def status(self) -> dict:
        """The controller's status, read from its own namespace."""
        node = namespace(self.network.spines[0])
        return json.loads(ask(node, lambda: netsum.status(self.controller, 60.0)))

    def metrics(self, switch: str) -> str:
        """A switch's Prometheus metrics."""
        url = f"http://{self.network.address[switch]}:{METRICS_PORT}/metrics"
        return ask(namespace(switch), lambda: urllib.request.urlopen(url, timeout=60).read().decode())

    def _start(self, name: str, node: str, binary: str, *options: str) -> None:
        path = REPOSITORY / "target" / "release" / binary
        log = open(self.directory / f"{name}.log", "ab")
        command = [*self.network.inside(node), str(path), *options]
        # In a session of its own, as each rank is: Linux shares processors between sessions first.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        self.processes[name] = process
        line = process.stdout.readline().decode()
        if not line.startswith("ready"):
            process.wait(GUARD_S)
            raise RuntimeError(f"{binary} on {node} did not start:\n{self.log(name)}")


class Workers:
    """Ranks of one job, each in its host's namespace, running a script with arguments."""

    def __init__(self, fabric: Fabric, hosts: list[str], script: str, *arguments: str, **environment: str):
        self.fabric, self.hosts = fabric, hosts
        self.directory = fabric.folder("workers")
        self.processes = []
        network = fabric.network
        for rank, host in enumerate(hosts):
            env = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(hosts)),
                "MASTER_ADDR": network.address[hosts[0]],
                "MASTER_PORT": "29500",
                "NETSUM_TOKEN": "none",
                "NETSUM_CONTROLLER": fabric.controller,
                "NETSUM_HOST": host,
                "GLOO_SOCKET_IFNAME": network.rack_of[host],
                "OMP_NUM_THREADS": "1",
                "RESULT": str(self.directory / f"{rank}.json"),
                "FINISH": str(self.directory / "finish"),
                **environment,
            }
            path, log = pathlib.Path(__file__).with_name(script), self.directory / f"{rank}.log"
            self.processes.append(Rank(namespace(host), path, arguments, env, log))

    def wait(self, timeout_s: float = GUARD_S, expect_failure: bool = False) -> list[dict]:
        """Each rank's result, by rank; raises with the log of the first rank that failed."""
        deadline = time.monotonic() + timeout_s
        try:
            for rank, process in enumerate(self.processes):
                code = process.wait(max(0.1, deadline - time.monotonic()))
                if code != 0 and not expect_failure:
                    raise RuntimeError(f"rank {rank} ended with {code}:\n{self.log(rank)}")
        except subprocess.TimeoutExpired as late:
            logs = "\n".join(f"--- rank {r}\n{self.log(r)}" for r in range(len(self.hosts)))
            raise RuntimeError(f"workers are not done after {timeout_s} s:\n{logs}") from late
        finally:
            for process in self.processes:
                process.kill()
        results = [self.directory / f"{rank}.json" for rank in range(len(self.hosts))]
        return [json.loads(r.read_text()) if r.exists() else {} for r in results]

    def finish(self) -> None:
        """Let ranks that run until told otherwise finish."""
        (self.directory / "finish").touch()

    def wait_for_steps(self, more: int, timeout_s: float = GUARD_S) -> None:
        """Return once rank 0 has made this many further steps, not counting the current one."""
        lines = (self.directory / "0.log").read_text(errors="replace").splitlines()
        taken = sum(line.startswith("step ") for line in lines)
        self.wait_for_step(taken + 1 + more, timeout_s)

    def wait_for_step(self, step: int, timeout_s: float = GUARD_S) -> None:
        """Return once rank 0 has printed `step N`."""
        deadline = time.monotonic() + timeout_s
        while f"step {step}\n" not in self.log(0):
            if time.monotonic() > deadline or self.processes[0].poll() is not None:
                raise RuntimeError(f"rank 0 has not come to step {step}:\n{self.log(0)}")
            time.sleep(0.02)

    def step(self) -> int:
        """The last step that rank 0 has printed."""
        steps = [line for line in self.log(0).splitlines() if line.startswith("step ")]
        return int(steps[-1].split()[1]) if steps else 0

    def log(self, rank: int) -> str:
        return (self.directory / f"{rank}.log").read_text(errors="replace")[-3000:]
