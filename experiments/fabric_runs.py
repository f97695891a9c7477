"""Shared code of the experiments on the real fabric: jobs of real workers in network namespaces, and their rates.

The fabric is that of `tests/fabric`: every host, rack and spine is a namespace, every link a shaped veth pair, with the
released daemons. Needs root.
"""

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "fabric"))

from fabric import Fabric, Slots  # noqa: E402
from network import Network, why_no_loss, why_no_marks, why_not  # noqa: E402

__all__ = [
    "Fabric",
    "Job",
    "Network",
    "Slots",
    "delay_line",
    "needs_root",
    "rates",
    "run",
    "why_no_loss",
    "why_no_marks",
]

WORKER = Path(__file__).with_name("fabric_worker.py")
START_S = 1.0
SETTLE_S = 2.0
"""Excluded at the beginning, while windows grow."""
PATIENCE_S = 90.0


def needs_root(name: str) -> None:
    """End the program with a message if such a network cannot be made."""
    reason = why_not()
    if reason:
        print(f"skipped {name}: {reason}")
        sys.exit(0)


def delay_line() -> None:
    """Build the delay program if a `Network` has delays."""
    words = ["cargo", "build", "--release", "--quiet", "-p", "netsum-net", "--example", "delay_line"]
    subprocess.run(words, cwd=ROOT, check=True)


@dataclass
class Job:
    """A job. bytes: of its buffer; busy_s: other work after each sum; options: as of `netsum.Group`."""

    hosts: list[str]
    protocol: str
    bytes: int = 4 << 20
    busy_s: float = 0.0
    options: dict[str, str] = field(default_factory=dict)


@dataclass
class Outcome:
    """The results of the jobs: rank 0's time line of each and the duration of its sums, all ranks' figures, and the
    last counters of leases."""

    lines: list[list[tuple[float, int]]]
    summing: list[list[float]]
    stats: list[list[dict]]
    leases: list[dict]
    link_bytes: dict[str, int]


def run(fabric: Fabric, jobs: list[Job], seconds: float) -> Outcome:
    """Run jobs concurrently for `seconds`, all starting at the same time. Raises if a sum is wrong or a worker
    fails."""
    folders = [fabric.folder("job") for _ in jobs]
    processes = []
    try:
        for job, folder in zip(jobs, folders, strict=True):
            processes += _start(fabric, job, folder, seconds)
        ranks = [(f, r) for job, f in zip(jobs, folders, strict=True) for r in range(len(job.hosts))]
        _await(processes, folders, [f / f"ready.{r}" for f, r in ranks])
        before = fabric.network.link_bytes()
        begin = time.time() + START_S
        for folder in folders:
            (folder / "go.part").write_text(str(begin))
            (folder / "go.part").rename(folder / "go")
        # Read near the end, because a lease's counters are removed with it.
        time.sleep(max(0.0, begin + seconds * 0.8 - time.time()))
        leases = [lease for name in ("atp", "switchml") for lease in fabric.leases(name)]
        _await(processes, folders, [f / f"{r}.json" for f, r in ranks])
        after = fabric.network.link_bytes()
        for process in processes:
            process.wait(20)
    finally:
        for process in processes:
            process.kill()
    told: dict[Path, list[dict]] = {folder: [] for folder in folders}
    for folder, rank in ranks:
        told[folder].append(json.loads((folder / f"{rank}.json").read_text()))
    wrong = sum(rank["wrong"] for job in told.values() for rank in job)
    if wrong:
        raise RuntimeError(f"{wrong} elements are wrong")
    moved = {link: count - before[link] for link, count in after.items()}
    stats = [[rank["stats"] for rank in job] for job in told.values()]
    lines, summing = [[job[0][what] for job in told.values()] for what in ("line", "summing")]
    return Outcome(lines, summing, stats, leases, moved)


def rates(outcome: Outcome) -> list[float]:
    """Bit/s of the buffer that each job summed, over the period in which all were running."""
    begin = max(line[0][0] for line in outcome.lines) + SETTLE_S
    end = min(line[-1][0] for line in outcome.lines)
    return [_rate(line, begin, end) for line in outcome.lines]


def repeated(measure: list, times: int) -> list[float]:
    """Medians of `times` runs of each measurement, interleaved so that a disturbance affects all of them."""
    rounds = [[one() for one in measure] for _ in range(times)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def _rate(line: list[tuple[float, int]], begin: float, end: float) -> float:
    inside = [(at, count) for at, count in line if begin <= at <= end]
    if len(inside) < 2:
        # Fewer than two sums: use the whole period.
        return (line[-1][1] - line[0][1]) * 8 / (line[-1][0] - line[0][0])
    (first, low), (last, high) = inside[0], inside[-1]
    return (high - low) * 8 / (last - first)


def _start(fabric: Fabric, job: Job, folder: Path, seconds: float) -> list[subprocess.Popen]:
    processes = []
    for rank, host in enumerate(job.hosts):
        given = {"bytes": job.bytes, "seconds": seconds, "busy_s": job.busy_s, "controller": fabric.controller}
        given |= {"host": host, "options": {"protocol": job.protocol, **job.options}}
        words = [sys.executable, str(WORKER), str(rank), str(len(job.hosts)), str(folder), json.dumps(given)]
        log = (folder / f"{rank}.log").open("wb")
        processes.append(subprocess.Popen([*fabric.network.inside(host), *words], stdout=log, stderr=log))
    return processes


def _await(processes: list[subprocess.Popen], folders: list[Path], files: list[Path]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not all(file.exists() for file in files):
        failed = [process for process in processes if process.poll() not in (None, 0)]
        if failed or time.monotonic() > deadline:
            logs = [
                log.read_text(errors="replace")[-1500:] for folder in folders for log in sorted(folder.glob("*.log"))
            ]
            what = "a worker failed" if failed else f"not done after {PATIENCE_S:.0f} s"
            raise RuntimeError(what + ":\n" + "\n".join(text for text in logs if text))
        time.sleep(0.05)
