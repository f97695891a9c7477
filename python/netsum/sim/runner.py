"""Starts the simulator and follows it."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netsum.fabric import binaries
from netsum.sim import toml
from netsum.sim.errors import SimError
from netsum.sim.result import Result

SIMULATOR = "netsum-sim"
GIVEN = "given.toml"
# A run hears that it shall end some hundred times while it lasts.
PATIENCE_S = 20


@dataclass(frozen=True)
class Progress:
    """How far a run is: its share, simulated milliseconds, seconds gone and left, packet-hops and their rate."""

    share: float
    simulated_ms: float
    elapsed_s: float
    left_s: float
    hops: int
    hops_per_s: float
    flows: int
    steps: int


def run(
    config: Path | str | dict[str, Any],
    out: Path | str,
    *,
    format: str | None = None,
    threads: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    notes: Callable[[str], None] | None = None,
) -> Result:
    """Simulate a configuration (a TOML file or its content as a dictionary) into the folder `out`.

    format: of the tables, "csv" or "parquet", whatever the configuration says. threads: of the run, at most, whatever
    the configuration says; the results are the same. progress and notes are called from this thread. An interrupted
    run leaves tables that end where it was. Raises SimError: the configuration was refused, with file, line and reason,
    or the run went wrong.
    """
    out = Path(out)
    if isinstance(config, dict):
        out.mkdir(parents=True, exist_ok=True)
        path = out / GIVEN
        path.write_text(toml.dumps(config))
    else:
        path = Path(config)
    command = [str(binaries.find(SIMULATOR)), "run", str(path), "--out", str(out), "--progress-json"]
    command += ["--format", format] if format else []
    command += ["--threads", str(threads)] if threads is not None else []
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        trouble = _follow(process, progress, notes)
        code = process.wait()
    finally:
        _end(process)
    if code != 0:
        raise SimError(trouble or f"{SIMULATOR} ended with code {code}")
    return Result(out)


def _end(process: subprocess.Popen) -> None:
    """Ends a simulator that is still at work, if it can with tables that are whole."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _follow(process: subprocess.Popen, progress, notes) -> str:
    """Passes on what the simulator tells; returns what is no progress."""
    trouble = []
    for line in process.stderr:
        try:
            told = json.loads(line)
        except ValueError:
            trouble.append(line.removeprefix("error: ").rstrip())
            continue
        if "notes" in told:
            for note in told["notes"] if notes else ():
                notes(note)
        elif progress:
            progress(Progress(**told))
    return "\n".join(trouble)
