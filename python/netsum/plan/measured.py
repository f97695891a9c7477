"""Topologies with what was measured of their links, and the measuring itself: run by torchrun with a plan.

`python -m netsum.plan.measured TOPOLOGY OUT` on every rank, with NETSUM_PLAN set as for the job; rank 0 writes OUT.
"""

import json
import os
import sys
from pathlib import Path

from netsum.plan.errors import PlanError
from netsum.plan.topology import Selection, topology

Links = dict[tuple[str, str], tuple[float, float]]
"""Latency in seconds and rate in bits per second, by the ends of a direct link."""


def calibrated(graph: dict, links: Links) -> tuple[dict, int]:
    """The graph with measured rates and latencies where there are any, and how many links those are.

    Several links between the same two vertices are measured as one: each gets its part of the rate.
    """
    found = {frozenset(ends): measured for ends, measured in links.items()}
    total: dict[frozenset, float] = {}
    for link in graph["link"]:
        total[frozenset(link["ends"])] = total.get(frozenset(link["ends"]), 0.0) + _bits(link["rate"])
    out, count = [], 0
    for link in graph["link"]:
        measured = found.get(frozenset(link["ends"]))
        if measured is not None:
            latency, rate = measured
            part = _bits(link["rate"]) / total[frozenset(link["ends"])]
            link = link | {"rate": f"{max(1, round(rate * part / 1e6))}Mbit/s", "latency": f"{round(latency * 1e9)}ns"}
            count += 1
        out.append(link)
    return graph | {"link": out}, count


def _bits(rate: str) -> float:
    for unit, factor in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0)):
        if rate.endswith(unit):
            return float(rate.removesuffix(unit)) * factor
    raise PlanError(f"{rate!r} is no rate")


def main() -> None:
    import torch.distributed as dist

    from netsum.torch import stats

    source, out = sys.argv[1:]
    os.environ["NETSUM_PLAN_MEASURE"] = "1"
    dist.init_process_group("netsum")
    own = [(link["link"], link["latency_s"], link["rate_bps"]) for link in stats()["links"]]
    everybody: list = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, own)
    if dist.get_rank() == 0:
        direct = {tuple(link): (s, bps) for each in everybody for link, s, bps in each if len(link) == 2}
        plan = json.loads(Path(os.environ["NETSUM_PLAN"]).read_text())
        gpus = [plan["vertices"][vertex] for vertex in plan["gpus"]]
        graph, count = calibrated(topology(Selection(source, gpus)), direct)
        Path(out).write_text(json.dumps(graph, indent=1))
        print(f"{count} of {len(graph['link'])} links measured, written to {out}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
