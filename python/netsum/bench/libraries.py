"""The libraries that are compared, each as processes that wait for commands."""

import contextlib
import importlib.util
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from netsum.bench.cases import BenchError
from netsum.bench.ranks import Command
from netsum.fabric.processes import die_with_parent
from netsum.fabric.reservations import free_port

PEERS = ("gloo", "openmpi", "mpich", "ucx", "netsum-torch")
"""netsum-torch: netsum through torch.distributed, as Gloo is called."""
_ANSWER_S = 300.0
_END_S = 5.0
"""Time until ranks whose input has ended are sent SIGTERM, and again until SIGKILL."""
_MPI = {
    "openmpi": (
        "mpicc.openmpi",
        "mpirun.openmpi",
        ["--allow-run-as-root", "--oversubscribe"],
        "openmpi-bin libopenmpi-dev",
    ),
    "mpich": ("mpicc.mpich", "mpirun.mpich", [], "mpich libmpich-dev"),
}


_RETRY_S = 0.05
_PERFTEST = {"latency": "tag_lat", "bandwidth": "tag_bw"}


class Unsupported(Exception):
    """The library has no such operation; the message names what is missing."""


@dataclass(frozen=True)
class Missing:
    """A library that is not installed on this machine."""

    name: str
    why: str


class Library(Protocol):
    """A library under measurement; it waits between commands."""

    name: str

    def wait_ready(self) -> None: ...

    def measure(self, command: Command) -> tuple[int | None, list[float]]: ...

    def stop(self) -> None: ...


class World:
    """The ranks of one library, waiting for commands. The caller must call `stop`.

    command: of a rank, or of all of them where an MPI starts them. environment: by rank, of processes started here.
    """

    def __init__(self, name: str, command: list[str], environments: Sequence[Mapping[str, str]]) -> None:
        self.name = name
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = tempfile.TemporaryFile()
        for environment in environments:
            self._processes.append(
                subprocess.Popen(
                    command,
                    env={"OMP_NUM_THREADS": "1", **os.environ, **environment},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            )
        self._answers = _open(self._processes[0].stdout)
        self._seen = b""

    def wait_ready(self) -> None:
        """Block until the ranks have connected. Raises BenchError with their last output if they do not."""
        while self._line() != "ready":
            pass

    def measure(self, command: Command) -> tuple[int, list[float]]:
        """Wrong elements, and seconds of each iteration. Raises Unsupported, or BenchError if a rank has died."""
        line = f"{command.line()}\n".encode()
        try:
            for process in self._processes:
                stdin = _open(process.stdin)
                stdin.write(line)
                stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        words = self._line().split()
        if words[0] == "unsupported":
            raise Unsupported(" ".join(words[1:]))
        return int(words[0]), [float(word) for word in words[1:]]

    def stop(self) -> None:
        """End the ranks: first by closing their input, then by signals."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                _open(process.stdin).close()
        for wait in (_END_S, _END_S, None):
            until = time.monotonic() + (wait or 0.0)
            for process in self._processes:
                if wait is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                else:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(max(until - time.monotonic(), 0.0))
            for process in self._processes:
                if process.poll() is None:
                    process.terminate()
        self._answers.close()
        self._log.close()

    def _line(self) -> str:
        until = time.monotonic() + _ANSWER_S
        with selectors.DefaultSelector() as ready:
            ready.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._seen:
                if any(process.poll() not in (None, 0) for process in self._processes):
                    raise self._ended()
                if time.monotonic() > until:
                    raise BenchError(f"{self.name} has not answered for {_ANSWER_S:.0f} s")
                if ready.select(0.5):
                    more = os.read(self._answers.fileno(), 1 << 16)
                    if not more:
                        raise self._ended()
                    self._seen += more
        line, _, self._seen = self._seen.partition(b"\n")
        return line.decode()

    def _ended(self) -> BenchError:
        self._log.seek(0)
        last = self._log.read().decode(errors="replace").strip().splitlines()[-6:]
        return BenchError("\n".join([f"{self.name}: a rank has ended; the last it wrote:", *last]))


class Perftest:
    """ucx_perftest: tagged messages between two processes that it starts for each command, over what `UCX_TLS` allows.

    It reports one time for all messages of a command, and does not check their bytes.
    """

    name = "ucx"

    def __init__(self, program: str) -> None:
        self._program = program
        self._processes: list[subprocess.Popen[bytes]] = []

    def wait_ready(self) -> None:
        """Nothing to prepare."""

    def measure(self, command: Command) -> tuple[None, list[float]]:
        """Seconds per message, one number. Raises Unsupported for other operations, BenchError if the program fails."""
        case = command.case
        if case.operation not in _PERFTEST:
            raise Unsupported(f"ucx_perftest has {' and '.join(_PERFTEST)} only")
        port = str(free_port())
        count, warmup = (str(times * case.messages) for times in (command.iterations, max(command.warmup, 1)))
        test = ["-t", _PERFTEST[case.operation], "-s", str(case.nbytes), "-n", count, "-w", warmup]
        try:
            server = self._start(["-p", port])
            until = time.monotonic() + _END_S
            # The server does not report when it listens.
            while True:
                client = self._start(["127.0.0.1", "-p", port, *test, "-f", "-v"])
                said, _ = client.communicate(timeout=_ANSWER_S)
                if client.returncode == 0 or server.poll() is not None or time.monotonic() > until:
                    break
                time.sleep(_RETRY_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BenchError(f"ucx_perftest: {error}") from error
        finally:
            self.stop()
        last = said.decode(errors="replace").strip().splitlines()[-1:]
        try:
            # The number of messages, then microseconds: median, average, overall.
            return None, [float(last[0].split(",")[3]) * 1e-6]
        except (IndexError, ValueError):
            raise BenchError(f"ucx_perftest has ended with {client.returncode}: {' '.join(last)}") from None

    def stop(self) -> None:
        """End the processes that still run."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self._processes.clear()

    def _start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [self._program, *arguments],
            env={"UCX_LOG_LEVEL": "error", "UCX_WARN_UNUSED_ENV_VARS": "n", **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._processes.append(process)
        return process


def _open(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None, "the process was started with this pipe"
    return pipe


def starter(name: str, size: int, folder: Path, environment: Mapping[str, str]) -> Callable[[], Library] | Missing:
    """A function that starts `size` ranks of a library, or the reason why this machine cannot run it.

    folder: for its files. environment: of netsum's ranks, besides this process's.
    """
    if name in _MPI:
        return _mpi(name, size, folder)
    if name == "ucx":
        program = shutil.which("ucx_perftest")
        absent = Missing(name, "ucx_perftest is not installed (Debian: ucx-utils)")
        return absent if program is None else lambda: Perftest(program)
    if name != "netsum" and importlib.util.find_spec("torch") is None:
        return Missing(name, "torch is not installed: pip install 'netsum[torch]'")
    library = {"gloo": "torch:gloo", "netsum-torch": "torch:netsum"}.get(name, name)

    def start() -> World:
        common = {
            **(environment if name != "gloo" else {}),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "NETSUM_MEETING": f"127.0.0.1:{free_port()}",
            "NETSUM_TOKEN": secrets.token_hex(16),
            "NETSUM_BENCH_STORE": str(folder / f"{name}-{time.monotonic_ns()}"),
            "PYTHONWARNINGS": "ignore",
        }
        ranks = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
        return World(name, [sys.executable, "-m", "netsum.bench.ranks", library], ranks)

    return start


def _mpi(name: str, size: int, folder: Path) -> Callable[[], World] | Missing:
    compiler, run, flags, packages = _MPI[name]
    if shutil.which(compiler) is None or shutil.which(run) is None:
        return Missing(name, f"{compiler} or {run} is not installed (Debian: {packages})")
    program = folder / name
    source = Path(__file__).with_name("mpi.c")
    built = subprocess.run([compiler, "-O2", "-o", program, source], capture_output=True, text=True)
    if built.returncode:
        return Missing(name, f"{compiler} fails: {built.stderr.strip().splitlines()[-1:]}")
    return lambda: World(name, [run, *flags, "-n", str(size), str(program)], [{}])
