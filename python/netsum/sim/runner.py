"""Starts the simulator and follows its progress."""

import json
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netsum.fabric import binaries
from netsum.sim import files, toml
from netsum.sim.errors import SimError
from netsum.sim.result import FORMATS, Result

SIMULATOR = "netsum-sim"
GIVEN = "given.toml"
REPORT = "report.html"
THREADS_MAX = 65_535
# A run checks about a hundred times whether it should end.
PATIENCE_S = 20


@dataclass(frozen=True)
class Progress:
    """Progress of a run: share, simulated milliseconds, seconds elapsed and remaining, packet-hops and their rate."""

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
    pcapng: Path | str | None = None,
    progress: Callable[[Progress], None] | None = None,
    notes: Callable[[str], None] | None = None,
) -> Result:
    """Simulate a configuration (a TOML file or its content as a dictionary) into the folder `out`.

    Files named in a dictionary are relative to the working directory. format: of the tables, "csv" or "parquet",
    overriding the configuration. threads: upper limit for the run, overriding the configuration; the results do not
    depend on it. pcapng: a file for the packets of aggregation, for Wireshark; the run then has one thread. progress
    and notes are called from this thread. An interrupted run leaves complete tables up to the interruption; the
    KeyboardInterrupt carries a note with its time. Raises SimError if the configuration is rejected, with file, line
    and reason and without touching `out`, or if the run fails.
    """
    _check_options(format, threads)
    return start(config, Path(out), format=format, threads=threads, pcapng=pcapng, progress=progress, notes=notes)


def start(
    config: Path | str | dict[str, Any],
    out: Path,
    *,
    format: str | None = None,
    threads: int | None = None,
    pcapng: Path | str | None = None,
    progress: Callable[[Progress], None] | None = None,
    notes: Callable[[str], None] | None = None,
    started: Callable[[subprocess.Popen[str]], None] | None = None,
) -> Result:
    """As `run`; `started` receives the simulator's process, so that another thread can end it."""
    with _as_file(config) as (path, given):

        def accepted() -> None:
            try:
                out.mkdir(parents=True, exist_ok=True)
                # An old report would not describe the new tables.
                (out / REPORT).unlink(missing_ok=True)
                if given is not None:
                    (out / GIVEN).write_text(given)
            except OSError as error:
                raise SimError(f"cannot write the results into {out}: {error.strerror}") from None

        command = [str(binaries.find(SIMULATOR)), "run", str(path), "--out", str(out), "--progress-json"]
        command += ["--format", format] if format else []
        command += ["--threads", str(threads)] if threads is not None else []
        command += ["--pcapng", str(pcapng)] if pcapng is not None else []
        # In a group of its own: a terminal's Ctrl-C reaches this process alone, which ends the simulator and reads its
        # last message.
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, process_group=0)
        try:
            if started:
                started(process)
            trouble = _follow(process, accepted, progress, notes)
            code = process.wait()
        except BaseException as error:
            said = _end(process)
            if isinstance(error, KeyboardInterrupt) and said:
                error.add_note(said)
            raise
        if code != 0:
            raise SimError(_without_place(trouble, path, given) or f"{SIMULATOR} ended with code {code}")
    return Result(out)


def check(config: dict[str, Any]) -> None:
    """Raises SimError if the simulator rejects a configuration; nothing is run or written."""
    with _as_file(config) as (path, given):
        command = [str(binaries.find(SIMULATOR)), "check", str(path)]
        ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if ended.returncode != 0:
            raise SimError(_without_place(ended.stderr.removeprefix("error: ").strip(), path, given))


def _check_options(format: str | None, threads: int | None) -> None:
    if format is not None and format not in FORMATS:
        raise SimError(f"format: no tables are written as {format!r}; use {' or '.join(FORMATS)}")
    if threads is not None and (type(threads) is not int or not 1 <= threads <= THREADS_MAX):
        raise SimError(f"threads: a run has 1 to {THREADS_MAX} threads, not {threads!r}")


@contextmanager
def _as_file(config: Path | str | dict[str, Any]) -> Iterator[tuple[Path, str | None]]:
    """The file of a configuration, and its text if it was not a file."""
    if not isinstance(config, dict):
        yield Path(config), None
        return
    text = toml.dumps(config)
    with tempfile.TemporaryDirectory(prefix="netsum-sim-") as folder:
        path = Path(folder) / GIVEN
        path.write_text(toml.dumps(files.absolute(config, Path.cwd())))
        yield path, text


def _without_place(trouble: str, path: Path, given: str | None) -> str:
    """Remove line numbers of a temporary file, which mean nothing to the caller."""
    return trouble if given is None else re.sub(rf"{re.escape(str(path))}:\d+: ", "", trouble)


def _end(process: subprocess.Popen[str]) -> str:
    """End a running simulator, if possible with complete tables; returns its last message. A second interruption kills
    it.
    """
    if process.poll() is None:
        process.terminate()
    timer = threading.Timer(PATIENCE_S, process.kill)
    timer.start()
    try:
        return _follow(process)
    except KeyboardInterrupt:
        process.kill()
        raise
    finally:
        process.wait()
        timer.cancel()


def _follow(process: subprocess.Popen[str], accepted: Any = None, progress: Any = None, notes: Any = None) -> str:
    """Forward the simulator's progress; returns other output. Notes are delivered first, once the configuration is
    accepted."""
    trouble: list[str] = []
    for line in process.stderr or ():
        try:
            message = json.loads(line)
        except ValueError:
            trouble.append(line.removeprefix("error: ").rstrip())
            continue
        if "notes" in message:
            if accepted:
                accepted()
            for note in message["notes"] if notes else ():
                notes(note)
        elif progress:
            progress(Progress(**message))
    return "\n".join(trouble)
