"""The simulated accelerator under netsum-switch: packets of real workers through the RTL and back.

The same sums and the same training, once added by the Rust switch and once by the device, must have the same bits.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from runner import HERE, ROOT

STEPS = int(os.environ.get("NETSUM_HW_STEPS", 2))
"""Training steps through the device."""
RANKS = 4
PATIENCE_S = 500

sys.path.insert(0, str(ROOT / "hw" / "cosim"))
from build import build  # noqa: E402


def missing() -> str | None:
    """The missing requirements of the tests."""
    for module in ("torch", "sklearn", "netsum"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed: make build, make setup"
    if importlib.util.find_spec("netsum._core") is None:
        return "the compiled core is not built: make build"
    from netsum.fabric import binaries
    from netsum.fabric.errors import FabricError

    try:
        binaries.find(binaries.SWITCH), binaries.find(binaries.CONTROLLER)
    except FabricError as error:
        return str(error)
    return None


pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def description(folder: Path, racks: bool):
    """Four hosts at one switch, s; or two racks, s and t, under a spine. On a free loopback block."""
    from netsum.fabric.description import Description

    block = next(b for b in range(130, 200) if is_free(f"127.{b}.0.1"))
    lines = ['name = "cosim"', f'controller = "127.{block}.0.1:7700"']
    hosts = [f"h{i}" for i in range(RANKS)]
    switches = ["s", "t", "spine"] if racks else ["s"]
    links = [(host, "t" if racks and i >= RANKS // 2 else "s") for i, host in enumerate(hosts)]
    links += [("s", "spine"), ("t", "spine")] if racks else []
    for i, host in enumerate(hosts):
        lines += ["", "[[host]]", f'name = "{host}"', f'address = "127.{block}.1.{i + 1}"']
    for i, switch in enumerate(switches):
        lines += ["", "[[switch]]", f'name = "{switch}"', f'address = "127.{block}.2.{i + 1}:7701"', 'memory = "64MiB"']
    for ends in links:
        lines += ["", "[[link]]", f'ends = ["{ends[0]}", "{ends[1]}"]', 'rate = "10Gbit/s"']
    path = folder / "fabric.toml"
    path.write_text("\n".join(lines) + "\n")
    return Description.read(path)


def is_free(address: str) -> bool:
    """Whether no process listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((address, 7700))
            return True
    return False


@contextlib.contextmanager
def device(folder: Path) -> Iterator[Path]:
    """The device as a process; its socket."""
    path = folder / "device.sock"
    with subprocess.Popen([build(RANKS), path], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline().startswith("ready ")
            yield path
            assert process.poll() is None, "the device ended by itself"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def fabric(folder: Path, accelerator: Path | None, racks: bool):
    """Controller and switches; s on the accelerator if given."""
    from netsum.fabric.local import LocalFabric
    from netsum.fabric.processes import Daemon

    class Fabric(LocalFabric):
        def daemon(self, name: str) -> Daemon:
            daemon = super().daemon(name)
            if name == "s" and accelerator is not None:
                daemon.command += ["--accelerator", str(accelerator)]
            return daemon

    one = Fabric(description(folder, racks), folder)
    one.up(tied=True)
    try:
        yield one
    finally:
        one.down()


def train(folder: Path, one) -> list[dict]:
    """Train through a fabric; returns each rank's result, and the bits of its sums."""
    from netsum.launch import Workers

    environment = {**one.environment(), "NETSUM_MIN_BYTES": "4096", "PYTHONPATH": str(ROOT / "python")}
    log = folder / "workers.log"
    workers = Workers([str(HERE / "cosim" / "train.py"), str(folder), "--steps", str(STEPS)], RANKS, environment, log)
    try:
        code = workers.process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        code = "none: it took too long"
    finally:
        workers.stop()
    assert code == 0, f"exit code {code}\n{log.read_text()[-3000:]}\n{(folder / 's.log').read_text()[-3000:]}"
    ranks = [json.loads((folder / f"rank-{r}.json").read_text()) for r in range(RANKS)]
    return [rank | {"sums": (folder / f"sums-{r}").read_text()} for r, rank in enumerate(ranks)]


@pytest.mark.parametrize("racks", [False, True], ids=["root", "rack"])
def test_a_training_step_has_the_bits_of_the_switch(tmp_path, racks):
    """Four workers, the demo's model and data: equal parameters, equal sums, every control sum right.

    As the only switch the accelerator is a tree's root; as a rack's it sends partials up, to a Rust switch.
    """
    runs = {}
    for name in ("switch", "accelerator"):
        folder = tmp_path / name
        folder.mkdir()
        with contextlib.ExitStack() as stack:
            path = stack.enter_context(device(tmp_path)) if name == "accelerator" else None
            one = stack.enter_context(fabric(folder, path, racks))
            runs[name] = train(folder, one)
            print(name, {switch["name"]: switch["drops"] for switch in one.status()["switches"]})
    for rank in range(RANKS):
        ours, theirs = runs["accelerator"][rank], runs["switch"][rank]
        assert ours["sums"] == theirs["sums"], f"rank {rank}: sums differ"
        assert ours["digest"] == theirs["digest"], f"rank {rank}: parameters differ after {STEPS} steps"
        assert ours["wrong_elements"] == theirs["wrong_elements"] == 0
    assert len({run["digest"] for run in runs["accelerator"]}) == 1
    stats = runs["accelerator"][0]["stats"]
    results = sum(tree["results"] for tree in stats["trees"])
    assert stats["path"] == "trees" and results > 100, f"the sums did not go through the device: {stats}"
