"""A whole fabric as processes on this machine."""

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from netsum import NetsumError, stop_job
from netsum.fabric import binaries, credentials
from netsum.fabric.description import Description
from netsum.fabric.errors import FabricError
from netsum.fabric.processes import Daemon
from netsum.fabric.sockets import check_free
from netsum.fabric.state import state_home
from netsum.reports import JOB_OVER, ControllerStatus

CONTROLLER_NAME = "controller"
CHECK_S = 60.0
"""Time limit for the controller to check a fabric file, which takes milliseconds."""
JOIN_S = 60.0
"""Time limit for switches to register with the controller. They do so in well under a second on an idle machine."""
STATUS_S = 10.0
"""Time limit for a controller to answer. An absent one refuses at once; a busy machine delays one that runs."""


STOP_S = 2.0
"""Time limit for a controller that is about to be stopped."""


class LocalFabric:
    """The controller, the switches and the servers of one fabric file."""

    def __init__(self, description: Description, folder: Path | None = None) -> None:
        self.description = description
        self.folder = folder or state_home() / description.name

    @property
    def store(self) -> Path:
        """The controller's store."""
        return self.folder / "controller.sqlite"

    def up(self, tied: bool = False) -> None:
        """Start everything, wait until it is ready, and let the controller confirm it.

        Its processes get certificates of an authority in the fabric's folder, unless its file says that it is trusted.
        tied: all processes end with the caller. Raises FabricError, after stopping what had been started.
        """
        self._check_description()
        if self.running():
            raise FabricError(
                f"fabric '{self.description.name}' runs already ({', '.join(self.running())}); "
                f"stop it by `netsum fabric down {self.description.path}`"
            )
        self._check_addresses()
        if not self.description.trusted:
            parts = [f"switch/{part.name}" for part in self.description.aggregators]
            credentials.make(self.folder, self.description.name, [CONTROLLER_NAME, *parts, credentials.OPERATOR])
        try:
            for daemon in self._start_all(tied):
                daemon.wait_ready()
            self.wait_alive([part.name for part in self.description.aggregators])
        except BaseException:
            self.down()
            raise

    def down(self) -> list[str]:
        """Stop everything; returns the names of the processes that ran. Signals all before waiting for any."""
        ran = self.running()
        daemons = [self.process(name) for name in self.names()]
        for daemon in daemons:
            daemon.ask_to_stop()
        for daemon in daemons:
            daemon.stop()
        return ran

    def names(self) -> list[str]:
        """Names of the processes of this fabric: the controller last, so that it is stopped last."""
        return [*(part.name for part in self.description.aggregators), CONTROLLER_NAME]

    def running(self) -> list[str]:
        return [name for name in self.names() if self.process(name).pid() is not None]

    def process(self, name: str) -> Daemon:
        """A running part of this fabric, to be inspected or stopped; `daemon` returns one that can be started."""
        return Daemon(name, [], self.folder)

    def daemon(self, name: str) -> Daemon:
        """The daemon of a switch or server, or the controller's.

        Raises FabricError for a name that is not in the file, or a missing executable.
        """
        fabric = str(self.description.path)
        if name == CONTROLLER_NAME:
            command = [str(binaries.find(binaries.CONTROLLER)), "--fabric", fabric, "--store", str(self.store)]
            role = CONTROLLER_NAME
        elif any(switch.name == name for switch in self.description.switches):
            command = [str(binaries.find(binaries.SWITCH)), "--fabric", fabric, "--name", name]
            role = f"switch/{name}"
        elif any(server.name == name for server in self.description.servers):
            command = [str(binaries.find(binaries.SWITCH)), "--role", "server", "--fabric", fabric, "--name", name]
            role = f"switch/{name}"
        else:
            raise FabricError(f"fabric '{self.description.name}' has no process '{name}'; it has {self.names()}")
        # An empty name hides a variable that is meant for another fabric.
        own = "" if self.description.trusted else str(credentials.folder_of(self.folder, role))
        return Daemon(name, [*command, "--credentials", own], self.folder)

    def environment(self) -> dict[str, str]:
        """The variables by which programs use this fabric: its controller, and the operator's credentials.

        Without credentials, on a trusted fabric, their variable is empty.
        """
        operator = str(self._operator() or "")
        return {"NETSUM_CONTROLLER": self.description.controller, "NETSUM_CREDENTIALS": operator}

    def status(self, timeout_s: float = STATUS_S) -> ControllerStatus:
        """The controller's status. Raises FabricError if it does not answer."""
        return controller_status(self.description.controller, timeout_s, self._operator() or "")

    def stop_jobs(self) -> None:
        """End all jobs, as far as the controller can be reached."""
        with contextlib.suppress(FabricError, NetsumError):
            for job in self.status(STOP_S)["jobs"]:
                if job["state"] not in JOB_OVER:
                    operator = self._operator()
                    stop_job(self.description.controller, job["job"], "its fabric is stopped", STOP_S, operator)

    def _operator(self) -> Path | None:
        return None if self.description.trusted else credentials.folder_of(self.folder, credentials.OPERATOR)

    def wait_alive(self, switches: list[str]) -> None:
        """Block until the controller counts these as alive. Raises FabricError, which names the others."""
        deadline = time.monotonic() + JOIN_S
        while True:
            try:
                missing = sorted(set(switches) - alive_switches(self.status()))
            except FabricError:
                # A busy machine delays an answer: a running controller is asked again until the time limit.
                if self.process(CONTROLLER_NAME).pid() is None or time.monotonic() > deadline:
                    raise
                continue
            if not missing:
                return
            dead = [name for name in missing if self.process(name).pid() is None]
            if dead:
                raise FabricError(f"{dead[0]} has ended:\n{self.process(dead[0]).log_tail()}")
            if time.monotonic() > deadline:
                words = self.process(missing[0]).log_tail()
                raise FabricError(f"the controller does not see {', '.join(missing)}:\n{words}")
            time.sleep(0.05)

    def _start_all(self, tied: bool) -> list[Daemon]:
        controller = self.daemon(CONTROLLER_NAME)
        controller.start(tied)
        controller.wait_ready()
        parts = [self.daemon(part.name) for part in self.description.aggregators]
        for part in parts:
            part.start(tied)
        return parts

    def _check_description(self) -> None:
        """Let the controller check the file: it alone implements all rules."""
        command = [str(binaries.find(binaries.CONTROLLER)), "--fabric", str(self.description.path), "--check"]
        verdict = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_S)
        if verdict.returncode != 0:
            raise FabricError((verdict.stderr or verdict.stdout).strip())

    def _check_addresses(self) -> None:
        """Report an occupied or foreign address before any process is started."""
        if "," in self.description.controller:
            raise FabricError(
                f"{self.description.path}: a local fabric has one controller; name one, or start the daemons one by one"
            )
        check_free(self.description.controller, socket.SOCK_STREAM, "the controller")
        for switch in self.description.switches:
            check_free(switch.address, socket.SOCK_DGRAM, f"switch {switch.name}")
        for server in self.description.servers:
            check_free(server.address, socket.SOCK_DGRAM, f"server {server.name}")


@contextlib.contextmanager
def temporary(description: Description) -> Iterator[LocalFabric]:
    """A fabric for the duration of a `with` block; always stopped at its end, with its jobs: the next one does not wait
    for ranks that were killed."""
    fabric = LocalFabric(description)
    fabric.up(tied=True)
    try:
        yield fabric
    finally:
        fabric.stop_jobs()
        fabric.down()


def controller_status(
    address: str, timeout_s: float = STATUS_S, credentials: Path | str | None = None
) -> ControllerStatus:
    """The status of the controller at `address` (`host:port`). Raises FabricError if it does not answer.

    credentials: the folder of the caller's certificates, "" for none; without it, that of NETSUM_CREDENTIALS, if set.
    """
    from netsum import NetsumError, status

    folder = os.environ.get("NETSUM_CREDENTIALS") if credentials is None else credentials
    try:
        found: ControllerStatus = json.loads(status(address, timeout_s, Path(folder) if folder else None))
        return found
    except NetsumError as error:
        text = named(address, error)
        text += "" if text.endswith("?") else ";"
        raise FabricError(f"{text} `netsum fabric up FABRIC.toml` starts a local one") from error


def named(address: str, error: Exception) -> str:
    """The words of an error, which name the controller at `address`."""
    return str(error) if address in str(error) else f"controller {address}: {error}"


def alive_switches(status: ControllerStatus) -> set[str]:
    """Names of the switches and servers whose session with the controller is up."""
    return {switch["name"] for switch in status["switches"] if switch["state"] == "up"}
