"""What being ready for `netsum why` costs the ranks of `netsum demo`: time of the threads that wait for questions.

    python bench/why.py [--epochs 12]

The system accounts for each thread's time on a processor (/proc/PID/task/TID/schedstat), so nothing that happens beside
the demo counts. Writes out/bench/why.json; exit code 1 if the share is above `LIMIT`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

LIMIT = 0.005
WAITING = ("netsum-why", "netsum-stacks")
LOOK_S = 0.2
# The system does not know the names of Python's threads before 3.14.
NAMES = """
import ctypes, threading
system, run = ctypes.CDLL(None), threading.Thread.run
def named(self):
    system.prctl(15, self.name[:15].encode(), 0, 0, 0)
    run(self)
threading.Thread.run = named
"""
DEMO = "from netsum.cli import main; main()"


def look(seen: dict[tuple[int, int], tuple[str, int]], root: int) -> None:
    """Notes the name and the nanoseconds of every thread of the descendants of a process."""
    parents: dict[int, int] = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            stat = pathlib.Path(f"/proc/{process}/stat").read_text()
            parents[int(process)] = int(stat[stat.rindex(")") + 2 :].split()[1])
    for process in parents:
        above = process
        while above in parents and above != root:
            above = parents[above]
        # A process may end meanwhile.
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task") if above == root else ():
                folder = pathlib.Path(f"/proc/{process}/task/{thread}")
                ran_ns = int((folder / "schedstat").read_text().split()[0])
                seen[process, int(thread)] = ((folder / "comm").read_text().strip(), ran_ns)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    given = parser.parse_args()
    seen: dict[tuple[int, int], tuple[str, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "sitecustomize.py").write_text(NAMES)
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-c", DEMO, "demo", "--json", "--epochs", str(given.epochs), "--out", folder]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        demo = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        while demo.poll() is None:
            look(seen, demo.pid)
            time.sleep(LOOK_S)
        step_s = json.loads(demo.stdout.read())["step_time_s"]["netsum"]
    ranks: dict[int, dict[str, float]] = {}
    for (process, _), (name, ran_ns) in seen.items():
        times = ranks.setdefault(process, {"all_s": 0.0, "waiting_s": 0.0})
        times["all_s"] += ran_ns / 1e9
        times["waiting_s"] += ran_ns / 1e9 * (name in WAITING)
    waiting = [times for times in ranks.values() if times["waiting_s"]]
    share = max((times["waiting_s"] / times["all_s"] for times in waiting), default=1.0)
    result = {"name": "why", "step_s": step_s, "ranks": waiting, "share": share, "limit": LIMIT}
    path = pathlib.Path("out/bench/why.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0 if len(waiting) > 1 and share < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
