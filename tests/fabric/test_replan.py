"""Running jobs on emulated links that are lost or become slower: sums stay exact, and the next plan is adopted."""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from fragment import Fragment
from namespaces import GUARD_S, namespace
from netsum.plan import pack
from ranks import Rank
from test_plans import LINK_MBIT, fragment
from test_throughput import write

GPUS = "0,1,2,3"


class Job:
    """Ranks of a torch job, each in its GPU's namespace, with the plan of `folder`."""

    def __init__(self, links: Fragment, graph: dict, folder, arguments: dict):
        self.links, self.folder = links, folder
        self.plan, self.topology = folder / "plan.json", folder / "topology.json"
        self.plan.write_text(json.dumps(pack(graph)["plan"]))
        self.topology.write_text(json.dumps(graph))
        self.processes = []
        for rank, name in enumerate(links.gpus):
            environment = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(links.gpus)),
                "MASTER_ADDR": links.host(0),
                "MASTER_PORT": "29500",
                "NETSUM_TOKEN": "none",
                "NETSUM_HOST": links.host(rank),
                "OMP_NUM_THREADS": "1",
                "RESULT": str(folder / f"{rank}.result"),
            }
            environment |= self.settings(links, name)
            environment.pop("NETSUM_CONTROLLER", None)
            script, log = pathlib.Path(__file__).with_name("plan_worker.py"), folder / f"{rank}.log"
            self.processes.append(Rank(namespace(name), script, (json.dumps(arguments),), environment, log))

    def settings(self, links: Fragment, name: str) -> dict[str, str]:
        """The settings that define the links of a rank's sums."""
        ways = ",".join(f"{peer}={address}" for peer, address in links.ways(name).items())
        plan = {"NETSUM_PLAN": str(self.plan), "NETSUM_PLAN_TOPOLOGY": str(self.topology)}
        return plan | {"NETSUM_PLAN_ADDRESSES": ways}

    def log(self, rank: int) -> str:
        return (self.folder / f"{rank}.log").read_text(errors="replace")[-3000:]

    def wait_for_step(self, step: int, timeout_s: float = GUARD_S) -> None:
        deadline = time.monotonic() + timeout_s
        while f"step {step}\n" not in (self.folder / "0.log").read_text(errors="replace"):
            ended = [rank for rank, process in enumerate(self.processes) if process.poll() is not None]
            if time.monotonic() > deadline or ended:
                raise RuntimeError(f"rank 0 has not come to step {step}:\n{self.log(ended[0] if ended else 0)}")
            time.sleep(0.02)

    def results(self, timeout_s: float = GUARD_S) -> list[dict]:
        deadline = time.monotonic() + timeout_s
        try:
            for rank, process in enumerate(self.processes):
                code = process.wait(max(0.1, deadline - time.monotonic()))
                assert code == 0, f"rank {rank}:\n{self.log(rank)}"
        finally:
            for process in self.processes:
                process.kill()
        return [json.loads((self.folder / f"{rank}.result").read_text()) for rank in range(len(self.processes))]

    def replan(self, *options: str) -> str:
        netsum = str(pathlib.Path(sys.executable).with_name("netsum"))
        command = [netsum, "plan", "replan", str(self.plan), str(self.topology), *options]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_link_is_lost_and_the_job_goes_on(tmp_path):
    graph = fragment(GPUS)
    arguments = {"elements": 40_000, "steps": 40, "pause_s": 0.02}
    with Fragment(graph) as links:
        job = Job(links, graph, tmp_path, arguments)
        job.wait_for_step(8)
        links.cut("gpu0", "gpu3")
        ranks = job.results()
    before = pack(graph)["rate"]
    found = [rank["stats"] for rank in ranks]
    assert {stats["plan"]["epoch"] for stats in found} == {2}, found
    assert all(0 < stats["plan"]["rate_gbytes"] < before for stats in found), found
    assert "gpu0–gpu3" in found[0]["reason"] or "gpu3–gpu0" in found[0]["reason"], found[0]
    lengths = [max(rank["seconds"]) for rank in ranks]
    write("plan_link_lost", {"longest_step_s": lengths, "pauses": found[0]["pauses"], "reason": found[0]["reason"]})


def test_a_link_becomes_slow_and_the_operator_plans_anew(tmp_path):
    graph = fragment(GPUS)
    # About 0.1 s per step at the plan's rate.
    elements = int(pack(graph)["rate"] * 1e9 * 0.1) // 8
    slow = LINK_MBIT // 4
    with Fragment(graph) as links:
        job = Job(links, graph, tmp_path, {"elements": elements, "steps": 45, "pause_s": 0.01})
        job.wait_for_step(15)
        links.shape("gpu0", "gpu3", slow)
        job.wait_for_step(30)
        said = job.replan("--degraded", f"gpu0-gpu3={slow}Mbit/s")
        ranks = job.results()
    assert f"gpu0–gpu3 at {slow}Mbit/s in place of" in said, said
    found = [rank["stats"] for rank in ranks]
    assert {stats["plan"]["epoch"] for stats in found} == {2}, found
    assert "the plan's file has changed" in found[0]["reason"]
    steps = [max(step) for step in zip(*(rank["seconds"] for rank in ranks), strict=True)]
    phases = {"whole": steps[5:15], "slow link, old plan": steps[17:30], "slow link, new plan": steps[33:]}
    medians = {name: statistics.median(part) for name, part in phases.items()}
    write("plan_link_slow", {"unit": "seconds per step", "median": medians, "pauses": found[0]["pauses"]})
