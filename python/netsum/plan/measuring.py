"""Measures a plan's links: `python -m netsum.plan.measuring TOPOLOGY OUT`, started by torchrun on every rank.

NETSUM_PLAN is set as for the job; rank 0 writes OUT.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from netsum.plan import Selection, calibrated, topology
from netsum.torch import stats


def main() -> None:
    source, out = sys.argv[1:]
    os.environ["NETSUM_PLAN_MEASURE"] = "1"
    dist.init_process_group("netsum")
    own = [(link["link"], link["latency_s"], link["rate_bps"]) for link in stats()["links"]]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, own)
    if dist.get_rank() == 0:
        direct = {tuple(link): (s, bps) for each in gathered for link, s, bps in each if len(link) == 2}
        plan = json.loads(Path(os.environ["NETSUM_PLAN"]).read_text())
        gpus = [plan["vertices"][vertex] for vertex in plan["gpus"]]
        graph, count = calibrated(topology(Selection(source, gpus)), direct)
        Path(out).write_text(json.dumps(graph, indent=1))
        print(f"{count} of {len(graph['link'])} links measured, written to {out}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
