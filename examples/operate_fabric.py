"""Operate a fabric: start it, run a job, stop a spine switch, run the job again, print the controller's status.

    python examples/operate_fabric.py

You see the parts of the fabric, the switches that the controller sees, and that both jobs have the same sum. On a
cluster the daemons run on their own machines; docs/operations.md says how.
"""

import tempfile
import time
from pathlib import Path

from netsum.fabric.builtin import demo_description
from netsum.fabric.description import parts
from netsum.fabric.local import LocalFabric, alive_switches, temporary
from netsum.launch import Workers

JOB = """
import numpy as np
from netsum.communicator import connect

with connect() as world:
    values = np.arange(1 << 18, dtype=np.float32) * (world.rank + 1)
    world.allreduce(values)
    if world.rank == 0:
        trees = world.stats().get("trees", [])
        print(f"  sum of the last elements: {values[-1]:.0f}, trees: {len(trees)}", flush=True)
"""


def run_job(fabric: LocalFabric) -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "job.py"
        script.write_text(JOB)
        workers = Workers([str(script)], 4, fabric.environment(), plain=True)
        if workers.wait():
            raise SystemExit("the job failed")


with temporary(demo_description()) as fabric:
    print(f"up: {parts(fabric.description)}")
    print("alive:", ", ".join(sorted(alive_switches(fabric.status()))), flush=True)
    run_job(fabric)
    fabric.process("spine0").stop()
    while "spine0" in alive_switches(fabric.status()):
        time.sleep(0.05)
    print("alive:", ", ".join(sorted(alive_switches(fabric.status()))), flush=True)
    run_job(fabric)
