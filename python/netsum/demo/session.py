"""The whole demo: a fabric, the trainings, and their results."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netsum.demo.errors import DemoError
from netsum.demo.faults import FaultScript, Kill, demo_kills
from netsum.demo.meter import LinkMeter
from netsum.demo.runner import Record, Training
from netsum.demo.workloads import DIGITS, Workload
from netsum.fabric.builtin import demo_description
from netsum.fabric.description import Description, parts
from netsum.fabric.local import LocalFabric, temporary

SEED = 20
TICK_S = 0.05
STATUS_S = 0.5
"""Period of reading the fabric's counters."""
TRAINING_S = 240.0
"""A training that takes longer is considered hung: it takes half a minute on two cores."""


@dataclass
class Outcome:
    """The results of a demo.

    plain: the training on netsum without kills. killed: the one with kills, or None. link_bytes: of the training that
    is shown, `killed` if present.
    """

    fabric: Description
    workload: Workload
    epochs: int
    plain: Record
    gloo: Record
    killed: Record | None
    kills: list[Kill]
    link_bytes: dict[str, int]
    fault_events: list[tuple[float, str]] = field(default_factory=list)
    protocol: str = "panama"

    @property
    def shown(self) -> Record:
        return self.killed or self.plain


class Viewer:
    """Receives the progress of a demo. This one shows nothing; `show.Terminal` draws."""

    def phase(self, title: str) -> None:
        """A new part of the demo begins."""

    def event(self, event: dict[str, Any]) -> None:
        """The training has reported an event."""

    def links(self, link_bytes: dict[str, int]) -> None:
        """The counters of the fabric were read."""

    def on_fault(self, text: str) -> None:
        """A switch was killed or started."""


Shown = Callable[[LocalFabric], contextlib.AbstractContextManager[None]]
"""Shows a fabric as long as it runs."""


def unseen(_: LocalFabric) -> contextlib.AbstractContextManager[None]:
    """Shows nothing."""
    return contextlib.nullcontext()


def run(
    out: Path,
    epochs: int,
    kill_switch: bool,
    viewer: Viewer,
    protocol: str = "panama",
    workload: Workload = DIGITS,
    shown: Shown = unseen,
) -> Outcome:
    """Run the demo. Raises DemoError or FabricError; all processes are stopped in either case."""
    description = demo_description()
    kills = demo_kills() if kill_switch else []
    killed: Record | None = None
    fault_events: list[tuple[float, str]] = []
    with temporary(description) as fabric, shown(fabric):
        viewer.phase(f"netsum, protocol {protocol}: {workload.title} through {parts(description)}")
        plain, meter, _ = _train_on_fabric(fabric, out / "netsum", workload, epochs, [], viewer, protocol)
        if kill_switch:
            viewer.phase("netsum again, and switches are killed")
            killed, meter, fault_events = _train_on_fabric(
                fabric, out / "netsum-killed", workload, epochs, kills, viewer, protocol
            )
    viewer.phase("gloo: the same training, hosts add in a ring")
    gloo = _train("gloo", out / "gloo", workload, epochs, {}, viewer, lambda _: None)
    return Outcome(
        description, workload, epochs, plain, gloo, killed, kills, meter.link_bytes(), fault_events, protocol
    )


def _train_on_fabric(
    fabric: LocalFabric,
    out: Path,
    workload: Workload,
    epochs: int,
    kills: list[Kill],
    viewer: Viewer,
    protocol: str,
) -> tuple[Record, LinkMeter, list[tuple[float, str]]]:
    meter = LinkMeter(fabric.description)
    meter.read(fabric.status())
    script = FaultScript(fabric, kills)
    fault_events: list[tuple[float, str]] = []
    next_look = 0.0

    def look(progress: float) -> None:
        nonlocal next_look
        if time.monotonic() < next_look:
            return
        next_look = time.monotonic() + STATUS_S
        status = fabric.status()
        meter.read(status)
        viewer.links(meter.link_bytes())
        done = script.advance(progress, status)
        if done:
            fault_events.append(done)
            viewer.on_fault(done[1])

    # Ranks are placed by the rule of the core, whatever host the environment may name for another fabric.
    environment = {**fabric.environment(), "NETSUM_HOST": "", "NETSUM_PROTOCOL": protocol, "NETSUM_JOB": "demo"}
    if protocol != "switchml":
        environment["NETSUM_COLLECTIVES"] = workload.collectives
    record = _train("netsum", out, workload, epochs, environment, viewer, look)
    time.sleep(1.2)  # The last counters reach the controller with the next heartbeat, one second apart.
    meter.read(fabric.status())
    if script.unfinished():
        raise DemoError(f"the training was over before {script.unfinished()[0].switch} was killed; raise --epochs")
    return record, meter, fault_events


def _train(
    backend: str,
    out: Path,
    workload: Workload,
    epochs: int,
    environment: dict[str, str],
    viewer: Viewer,
    look: Callable[[float], None],
) -> Record:
    """Run one training to completion; `look` is called repeatedly with the share of the steps completed."""
    training = Training(backend, out, workload.name, epochs, SEED, environment)
    steps, done = 1, 0
    deadline = time.monotonic() + TRAINING_S
    try:
        while True:
            running = training.running()
            for event in training.read():
                viewer.event(event)
                steps = event.get("steps", steps)
                done = event.get("step", done)
            look(done / steps)
            if not running:
                return training.record()
            if time.monotonic() > deadline:
                raise DemoError(
                    f"the training on {backend} hangs: not done in {TRAINING_S:.0f} s (log: {training.log})"
                )
            time.sleep(TICK_S)
    finally:
        training.stop()
