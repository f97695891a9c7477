"""Plants faults into running jobs, asks `netsum why`, and compares: `make why-faults SEEDS=a..b`.

A seed draws the kind of fault and the rank. Each case starts a job of four ranks on a fabric of namespaces (two racks,
one spine), waits until it runs, plants the fault, waits `SETTLE_S`, and asks once. A verdict is right if it names the
class, and the rank, switch or link at fault. At last a healthy job makes `--healthy` steps beside a second one, which
loads the same links and hosts, and is asked again and again; anything but "well" is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable

from fabric import REPOSITORY, Fabric, Workers
from namespaces import run
from network import Network, why_no_loss, why_not

RATE_BPS = 400_000_000
SIZE = 4
SETTLE_S = 2.5
"""From the fault until the question."""


@dataclasses.dataclass
class Scene:
    """A running job and the fault to come. undo: what takes the fault back."""

    fabric: Fabric
    job: Workers
    folder: pathlib.Path
    rank: int
    other: int
    undo: list[Callable[[], object]] = dataclasses.field(default_factory=list)

    @property
    def host(self) -> str:
        return self.job.hosts[self.rank]

    @property
    def rack(self) -> str:
        return self.fabric.network.rack_of[self.host]

    def in_program(self, kind: str, **more: object) -> None:
        path = self.folder / "fault"
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"kind": kind, "rank": self.rank, "other": self.other, **more}))
        part.rename(path)

    def rule(self, node: str, *words: str, table: str = "filter", chain: str = "INPUT") -> None:
        inside = self.fabric.network.inside(node)
        run(*inside, "iptables", "-t", table, "-A", chain, *words)
        self.undo.append(lambda: run(*inside, "iptables", "-t", table, "-F"))


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of fault: how to plant it, and the verdicts that are right. who: "rank" at fault, "both" of a pair, or
    what `place` must contain."""

    plant: Callable[[Scene], object]
    faults: tuple[str, ...]
    who: str = "rank"
    daemons: bool = False
    """Whether it harms the fabric, which is started anew then."""


def _in_program(kind: str) -> Callable[[Scene], None]:
    return lambda scene: scene.in_program(kind)


def _disk_stall(scene: Scene) -> None:
    fifo = scene.folder / "fifo"
    os.mkfifo(fifo)
    keeper = os.open(fifo, os.O_RDWR)
    scene.undo.append(lambda: os.close(keeper))
    scene.in_program("disk stall", fifo=str(fifo))


def _signal_rank(number: int) -> Callable[[Scene], None]:
    return lambda scene: os.kill(scene.job.processes[scene.rank].pid, number)


def _signal_switch(number: int) -> Callable[[Scene], None]:
    def plant(scene: Scene) -> None:
        process = _daemon(scene.fabric, scene.rack)
        os.kill(process, number)
        if number == signal.SIGSTOP:
            scene.undo.append(lambda: os.kill(process, signal.SIGCONT))

    return plant


def _daemon(fabric: Fabric, name: str) -> int:
    """The daemon's own process: `ip netns exec` has become it."""
    return fabric.processes[name].pid


def _slow_link(scene: Scene) -> None:
    network = scene.fabric.network
    words = ("tc", "qdisc", "change", "dev", scene.rack, "root", "tbf", "rate")
    rest = ("burst", "20000", "limit", "3000000")
    run(*network.inside(scene.host), *words, "8mbit", *rest)
    scene.undo.append(lambda: run(*network.inside(scene.host), *words, f"{RATE_BPS}bit", *rest))


def _lossy_up(scene: Scene) -> None:
    address = scene.fabric.network.address[scene.host]
    scene.rule(scene.rack, "-s", address, "-p", "udp", *_share(0.2))


def _lossy_down(scene: Scene) -> None:
    scene.rule(scene.host, "-p", "udp", *_share(0.2))


def _share(share: float) -> tuple[str, ...]:
    return ("-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP")


def _large_packets(scene: Scene) -> None:
    address = scene.fabric.network.address[scene.host]
    scene.rule(scene.rack, "-s", address, "-p", "udp", "-m", "length", "--length", "600:65535", "-j", "DROP")


def _marks(scene: Scene) -> None:
    for host in scene.job.hosts:
        scene.rule(host, "-p", "udp", "-j", "TOS", "--or-tos", "0x03", table="mangle")
    scene.rule(scene.rack, "-p", "udp", "-j", "TOS", "--or-tos", "0x03", table="mangle")


def _oversubscribed(scene: Scene) -> None:
    """The rank and a crowd of busy loops on one processor; the other ranks and the daemons keep the others."""
    cpus = os.sched_getaffinity(0)
    crowded = {min(cpus)}
    for rank, process in enumerate(scene.job.processes):
        _keep_on(process.pid, crowded if rank == scene.rank else cpus - crowded or cpus)
    for daemon in scene.fabric.processes.values():
        _keep_on(daemon.pid, cpus - crowded or cpus)
        scene.undo.append(functools.partial(_keep_on, daemon.pid, cpus))
    loop = ["taskset", "-c", str(min(cpus)), sys.executable, "-c", "while True: pass"]
    # Each in a session of its own, as the rank is: Linux shares processors between sessions first.
    crowd = [subprocess.Popen(loop, start_new_session=True) for _ in range(12)]

    def end() -> None:
        for process in crowd:
            process.kill()
            process.wait(30)

    scene.undo.append(end)


def _keep_on(process: int, cpus: set[int]) -> None:
    for tid in os.listdir(f"/proc/{process}/task"):
        os.sched_setaffinity(int(tid), cpus)


def _kill_controller(scene: Scene) -> None:
    os.kill(_daemon(scene.fabric, "controller"), signal.SIGKILL)


KINDS: dict[str, Kind] = {
    "stopped rank": Kind(_signal_rank(signal.SIGSTOP), ("stopped",)),
    "killed rank": Kind(_signal_rank(signal.SIGKILL), ("dead",)),
    "sleep in the loader": Kind(_in_program("sleep in the loader"), ("slow input",)),
    "disk stall": Kind(_disk_stall, ("slow input",)),
    "skipped call": Kind(_in_program("skipped call"), ("different call",)),
    "reordered calls": Kind(_in_program("reordered calls"), ("different call",)),
    "mismatched call": Kind(_in_program("mismatched call"), ("different call",)),
    "exception": Kind(_in_program("exception"), ("exception",)),
    "loop in C": Kind(_in_program("loop in C"), ("native code",)),
    "endless computation": Kind(_in_program("endless computation"), ("computing",)),
    "other operation": Kind(_in_program("other operation"), ("other operation",)),
    "deadlock of two groups": Kind(_in_program("deadlock of two groups"), ("deadlock",), "both"),
    "slow link": Kind(_slow_link, ("slow link",), "host"),
    "link that loses up": Kind(_lossy_up, ("lossy link",), "host"),
    "link that loses down": Kind(_lossy_down, ("lossy link",), "host"),
    "link that drops large packets": Kind(_large_packets, ("large packets",), "host"),
    "marks everywhere": Kind(_marks, ("marks",), ""),
    "dead switch": Kind(_signal_switch(signal.SIGKILL), ("switch",), "rack", daemons=True),
    "stopped switch": Kind(_signal_switch(signal.SIGSTOP), ("switch",), "rack", daemons=True),
    "oversubscribed host": Kind(_oversubscribed, ("host",)),
    "dead controller": Kind(_kill_controller, ("controller",), "", daemons=True),
}
HEALTHY = "healthy"


@dataclasses.dataclass
class Outcome:
    """What was planted, what was said."""

    seed: int
    kind: str
    rank: int
    said: dict

    @property
    def verdict(self) -> str:
        """right, wrong, or not named."""
        if self.kind == HEALTHY:
            return "right" if self.said["fault"] == "well" else "wrong"
        kind = KINDS[self.kind]
        if self.said["fault"] in ("well", "unknown", "silent"):
            return "not named"
        if self.said["fault"] not in kind.faults:
            return "wrong"
        ranks, place = self.said["ranks"], self.said["place"]
        right = {
            "rank": ranks == [self.rank],
            "both": set(ranks) == {self.rank, self.said["other"]} or self.rank in ranks,
            "host": ranks == [self.rank] or self.said["host"] in place,
            "rack": self.said["rack"] in place,
            "": True,
        }[kind.who]
        return "right" if right else "wrong"


KEEPING = """
import pickle, sys
from netsum.cli import main, why
judge, path = why.judge, sys.argv.pop()
def keep(case):
    with open(path, "wb") as file:
        pickle.dump(case, file)
    return judge(case)
why.judge = keep
main()
"""


def question(fabric: Fabric, job: int, kept: pathlib.Path | None) -> dict:
    """`netsum why JOB --json` on the controller's node; the evidence goes to a file, if one is named."""
    code = KEEPING if kept else "from netsum.cli import main; main()"
    command = [sys.executable, "-c", code, "why", str(job), "--json", *([str(kept)] if kept else [])]
    environment = {**os.environ, "NETSUM_CONTROLLER": fabric.controller}
    inside = fabric.network.inside(fabric.network.spines[0])
    began = time.monotonic()
    done = subprocess.run([*inside, *command], capture_output=True, text=True, env=environment, timeout=60)
    try:
        said = json.loads(done.stdout)
    except ValueError:
        said = {"fault": "unknown", "ranks": [], "place": "", "words": done.stderr[-500:], "seconds": 0.0}
    return {**said, "command_s": time.monotonic() - began}


def case(fabric: Fabric, seed: int, name: str, draw: random.Random, cases: pathlib.Path | None) -> Outcome:
    rank = draw.randrange(SIZE)
    other = draw.choice([each for each in range(SIZE) if each != rank])
    job, number, folder = start(fabric)
    scene = Scene(fabric, job, folder, rank, other)
    try:
        KINDS[name].plant(scene)
        time.sleep(SETTLE_S)
        kept = cases / f"{seed}-{name.replace(' ', '-')}.pickle" if cases else None
        said = question(fabric, number, kept)
    finally:
        for undo in reversed(scene.undo):
            try:
                undo()
            except (OSError, RuntimeError) as error:
                print(f"seed {seed}: {error}", file=sys.stderr)
        end(job)
    return Outcome(seed, name, rank, {**said, "other": other, "host": scene.host, "rack": scene.rack})


def healthy(fabric: Fabric, steps: int, cases: pathlib.Path | None) -> list[Outcome]:
    """The answers while a job makes so many steps beside another one."""
    job, number, _ = start(fabric)
    beside = None
    outcomes: list[Outcome] = []
    try:
        beside, _, _ = start(fabric, MASTER_PORT="29501")
        last = job.step() + steps
        while job.step() < last:
            kept = cases / f"{len(outcomes)}-{HEALTHY}.pickle" if cases else None
            outcomes.append(Outcome(len(outcomes), HEALTHY, 0, question(fabric, number, kept)))
            report(outcomes[-1])
    finally:
        end(job)
        if beside:
            end(beside)
    return outcomes


def start(fabric: Fabric, **environment: str) -> tuple[Workers, int, pathlib.Path]:
    """A job that has made some steps, its number at the controller, and the folder for its fault."""
    folder = fabric.folder("fault")
    before = {each["job"] for each in fabric.status()["jobs"]}
    job = Workers(fabric, fabric.network.hosts, "why_worker.py", str(folder / "fault"), **environment)
    try:
        job.wait_for_step(3)
    except BaseException:
        end(job)
        raise
    # The groups of the job are jobs, too; the first is that of all operations.
    return job, min({each["job"] for each in fabric.status()["jobs"]} - before), folder


def end(job: Workers) -> None:
    for process in job.processes:
        process.kill()
        process.wait(30)


def seeds(text: str) -> list[int]:
    first, _, last = text.partition("..")
    return list(range(int(first), int(last or first) + 1))


def draw_kind(seed: int, kinds: list[str]) -> tuple[str, random.Random]:
    draw = random.Random(seed)
    return draw.choice(kinds), draw


def table(outcomes: list[Outcome]) -> str:
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_kind[outcome.kind].append(outcome)
    rows = [f"{'kind':32} right wrong not named  seconds (median, worst)"]
    for kind, each in sorted(by_kind.items()):
        counts = [sum(o.verdict == word for o in each) for word in ("right", "wrong", "not named")]
        took = sorted(o.said["seconds"] for o in each)
        rows.append(f"{kind:32} {counts[0]:5} {counts[1]:5} {counts[2]:9}  {took[len(took) // 2]:.2f} {took[-1]:.2f}")
    faults = [o for o in outcomes if o.kind != HEALTHY]
    right = sum(o.verdict == "right" for o in faults)
    rows.append(f"{right} of {len(faults)} planted faults named right")
    return "\n".join(rows)


def report(outcome: Outcome) -> None:
    said = outcome.said
    what = f"{outcome.kind}, rank {outcome.rank}" if outcome.kind != HEALTHY else HEALTHY
    found = f"{said['fault']} {said['ranks']} {said['place']} in {said['seconds']:.2f} s"
    print(f"seed {outcome.seed}: {what}: {outcome.verdict}: {found}", flush=True)
    if outcome.verdict != "right":
        print(f"    {said['words']}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1..20")
    parser.add_argument("--kinds", default="", help="comma-separated; all if empty")
    parser.add_argument("--healthy", type=int, default=100, help="steps of a healthy job")
    parser.add_argument("--out", type=pathlib.Path, default=REPOSITORY / "out/why/faults.json")
    parser.add_argument("--cases", type=pathlib.Path, help="folder for the evidence of each case, to judge it again")
    given = parser.parse_args()
    if given.cases:
        given.cases.mkdir(parents=True, exist_ok=True)
    reason = why_not() or why_no_loss()
    if reason:
        print(f"skipped: {reason}")
        return 0
    kinds = [kind.strip() for kind in given.kinds.split(",") if kind.strip()] or list(KINDS)
    plan = [(seed, *draw_kind(seed, kinds)) for seed in seeds(given.seeds)]
    outcomes: list[Outcome] = []
    fabric: Fabric | None = None
    with Network(racks=2, hosts_per_rack=2, spines=1, rate_bps=RATE_BPS) as network:
        try:
            for seed, name, draw in plan:
                if fabric is None:
                    fabric = Fabric(network, store=False)
                    fabric.__enter__()
                try:
                    outcomes.append(case(fabric, seed, name, draw, given.cases))
                except RuntimeError as error:
                    print(f"seed {seed}: {name}: not tried, the job did not start: {error}"[:300], flush=True)
                    fabric.stop()
                    fabric = None
                    continue
                report(outcomes[-1])
                if KINDS[name].daemons:
                    fabric.stop()
                    fabric = None
        finally:
            if fabric is not None:
                fabric.stop()
        if given.healthy:
            with Fabric(network, store=False) as fabric:
                outcomes += healthy(fabric, given.healthy, given.cases)
    print(table(outcomes))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps([dataclasses.asdict(o) | {"verdict": o.verdict} for o in outcomes], indent=1))
    return 0 if all(o.verdict == "right" for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
