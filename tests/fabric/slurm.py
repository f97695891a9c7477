"""A Slurm of this machine: slurmctld at the first spine, a slurmd per host, each in its namespace, with munge."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from fabric import REPOSITORY, Fabric
from namespaces import GUARD_S, namespace
from network import Network

PROGRAMS = ("slurmctld", "slurmd", "srun", "scancel", "munged", "gcc")
SLURMCTLD_PORT, FIRST_SLURMD_PORT = 17_000, 17_001
NODE_SILENCE_S = 5
"""When slurmctld gives up a node; a real cluster has 300."""


def why_not() -> str | None:
    """Why Slurm cannot run here, or None."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if not pathlib.Path("/usr/include/slurm/spank.h").exists():
        missing.append("spank.h")
    return f"needs {', '.join(missing)} (make setup-slurm)" if missing else None


class Slurm:
    """The daemons of Slurm over a network, with netsum's plug-in for a fabric; a context manager."""

    def __init__(self, network: Network, fabric: Fabric) -> None:
        self.network, self.fabric = network, fabric
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="netsum-slurm-"))
        self.folder.chmod(0o755)
        self.processes: dict[str, subprocess.Popen] = {}
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self) -> Slurm:
        try:
            self._configure()
            self._munge()
            # In the foreground (-D), so that the daemons are ours.
            self._start("slurmctld", self.network.spines[0], "slurmctld", "-D", "-i")
            for host in self.network.hosts:
                self._start(f"slurmd-{host}", host, "slurmd", "-D", "-N", host)
            self.wait_idle()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()
        if kind is None or not issubclass(kind, Exception):
            shutil.rmtree(self.folder)

    @property
    def configuration(self) -> pathlib.Path:
        return self.folder / "slurm.conf"

    @property
    def topology(self) -> pathlib.Path:
        return self.folder / "topology.conf"

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A command of Slurm, from the controller's machine."""
        words = [*self.network.inside(self.network.spines[0]), *command]
        environment = {**self.environment, **more}
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=GUARD_S)

    def start(self, *command: str, **more: str) -> subprocess.Popen[str]:
        """As `run`, without waiting."""
        words = [*self.network.inside(self.network.spines[0]), *command]
        environment = {**self.environment, **more}
        return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def job_id(self, name: str) -> str:
        """The id of the running job of that name, once there is one."""
        return self._until(lambda: self.run("squeue", "-h", "-n", name, "-t", "R", "-o", "%i").stdout.strip())

    def wait_idle(self) -> None:
        """Until all nodes can take jobs."""
        count = len(self.network.hosts)
        self._until(lambda: self.run("sinfo", "-h", "-o", "%t %D").stdout.split() == ["idle", str(count)])

    def wait_free(self) -> None:
        """Until no job is left in any state."""
        self._until(lambda: not self.run("squeue", "-h").stdout.strip())

    def lose(self, host: str) -> None:
        """SIGKILL of all of a node: slurmd, slurmstepd and tasks, as a loss of power."""
        for pid in self._processes_of(host):
            os.kill(pid, signal.SIGKILL)

    def _processes_of(self, host: str) -> list[int]:
        """All processes in the node's namespace but the switch's and the controller's, which run elsewhere."""
        pids = subprocess.run(["ip", "netns", "pids", namespace(host)], capture_output=True, text=True, check=True)
        return [int(pid) for pid in pids.stdout.split()]

    def restart(self, host: str) -> None:
        self._start(f"slurmd-{host}", host, "slurmd", "-D", "-N", host)
        self.run("scontrol", "update", f"nodename={host}", "state=resume")
        self.wait_idle()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-4000:]

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _until(self, ready: object) -> str:
        deadline = time.monotonic() + GUARD_S
        while not (found := ready()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"Slurm is not ready: {self.run('sinfo').stdout}\n{self.log('slurmctld')}")
            time.sleep(0.1)
        return found

    def _configure(self) -> None:
        network = self.network
        (self.folder / "state").mkdir()
        (self.folder / "spool").mkdir()
        subprocess.run(
            ["make", "-s", "-C", str(REPOSITORY / "slurm"), f"OUT={self.folder / 'netsum_spank.so'}"], check=True
        )
        machine = socket.gethostname()
        nodes = [
            f"NodeName={host} NodeHostname={machine} NodeAddr={network.address[host]} "
            f"Port={FIRST_SLURMD_PORT + number} CPUs=2 State=UNKNOWN"
            for number, host in enumerate(network.hosts)
        ]
        settings = f"""
            ClusterName=netsum
            SlurmctldHost={machine}({network.address[network.spines[0]]})
            SlurmctldPort={SLURMCTLD_PORT}
            SlurmUser=root
            SlurmdUser=root
            AuthType=auth/munge
            AuthInfo=socket={self.folder}/munge.sock
            StateSaveLocation={self.folder}/state
            SlurmdSpoolDir={self.folder}/spool/%n
            SlurmctldPidFile={self.folder}/slurmctld.pid
            SlurmdPidFile={self.folder}/slurmd-%n.pid
            ProctrackType=proctrack/linuxproc
            TaskPlugin=task/none
            SelectType=select/linear
            JobAcctGatherType=jobacct_gather/none
            AccountingStorageType=accounting_storage/none
            SlurmdParameters=config_overrides
            SlurmdTimeout={NODE_SILENCE_S}
            KillWait=1
            ReturnToService=2
            TopologyPlugin=topology/tree
            PlugStackConfig={self.folder}/plugstack.conf
            PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP"""
        lines = [line.strip() for line in settings.splitlines()] + nodes
        self.configuration.write_text("\n".join(lines) + "\n")
        racks = [
            f"SwitchName={rack} Nodes={','.join(host for host in network.hosts if network.rack_of[host] == rack)}"
            for rack in network.racks
        ]
        spines = [f"SwitchName={spine} Switches={','.join(network.racks)}" for spine in network.spines]
        self.topology.write_text("\n".join([*racks, *spines]) + "\n")
        (self.folder / "plugstack.conf").write_text(
            f"required {self.folder}/netsum_spank.so controller={self.fabric.controller} fabric-hosts "
            f"stop={REPOSITORY / 'target/release/netsum-job'}\n"
        )

    def _munge(self) -> None:
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        files = {"socket": "munge.sock", "key-file": "munge.key", "pid-file": "munge.pid", "seed-file": "munge.seed"}
        options = [f"--{option}={self.folder / file}" for option, file in files.items()]
        log = open(self.folder / "munged.log", "ab")
        command = ["munged", "--foreground", "--force", f"--log-file={self.folder / 'munge.log'}", *options]
        self.processes["munged"] = subprocess.Popen(command, stdout=log, stderr=log)
        self._until_socket()

    def _until_socket(self) -> None:
        deadline = time.monotonic() + GUARD_S
        while not (self.folder / "munge.sock").is_socket():
            if time.monotonic() > deadline or self.processes["munged"].poll() is not None:
                raise RuntimeError(f"munged does not start: {self.log('munged')}")
            time.sleep(0.05)

    def _start(self, name: str, node: str, *command: str) -> None:
        log = open(self.folder / f"{name}.log", "ab")
        # slurmd needs the control groups in /sys, which `ip netns exec` replaces.
        words = ["nsenter", f"--net=/run/netns/{namespace(node)}", *command]
        self.processes[name] = subprocess.Popen(words, env=self.environment, stdout=log, stderr=log)
