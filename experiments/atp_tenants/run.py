"""Few slots for many jobs: a static partition against first come and preemption: `make fig FIG=atp_tenants`."""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fabric_runs import Fabric, Job, Network, Slots, needs_root, rates, repeated, run
from figure import Chart, Claim, output_folder, page, write

RATE_BPS = 40_000_000
QUEUE_BYTES = 100_000
JOBS, WORKERS = 4, 3
WINDOW = 64
SLOTS = (8, 16, 64)
"""Of the switch. The most is what one of the four jobs has in flight, the least two for each."""
BYTES = 1 << 20
BUSY_S = 0.2
"""Of other work after each sum, about what a sum takes with all slots."""
SECONDS = 9
TIMES = 2
POLICIES = ("partition", "first-come", "preempt")
POOLS = "switchml"
"""The paper's static partition: each job has a pool and no server."""


def throughput(network: Network, how: str, slots: int) -> float:
    """Bit/s that all jobs together sum. `how`: a policy of slots, each job with a server of its own, or pools."""
    pools = how == POOLS
    guaranteed = slots // JOBS if how == "partition" else 0
    tenants = f'[[tenant]]\nname = "default"\nguaranteed = {guaranteed}'
    servers = () if pools else tuple(network.hosts[JOBS * WORKERS :])
    given = Slots(servers=servers, slots=slots, policy="first-come" if pools else how, tenants=tenants)
    window = slots // JOBS if pools else WINDOW
    with Fabric(network, controller_options=("--window-max", str(window)), slots=given) as fabric:
        hosts = [network.hosts[WORKERS * job : WORKERS * (job + 1)] for job in range(JOBS)]
        protocol = "switchml" if pools else "atp"
        jobs = [Job(h, protocol, bytes=BYTES, busy_s=BUSY_S, options={"max_trees": "1"}) for h in hosts]
        return sum(rates(run(fabric, jobs, SECONDS)))


def main() -> None:
    folder = output_folder("atp_tenants")
    needs_root("atp_tenants")
    ways = [(how, slots) for slots in SLOTS for how in (*POLICIES, POOLS)]
    with Network(1, JOBS * (WORKERS + 1), 1, RATE_BPS, queue_bytes=QUEUE_BYTES) as network:
        measured = repeated([partial(throughput, network, *way) for way in ways], TIMES)
    total = dict(zip(ways, measured, strict=True))
    best = {how: max(total[how, slots] / total["partition", slots] - 1 for slots in SLOTS) for how in POLICIES[1:]}
    pools = max(total["first-come", slots] / total[POOLS, slots] - 1 for slots in SLOTS)
    why = "a round trip here holds two or three fragments: no partition is too small to fill a link"
    claims = [
        Claim(
            f"{how} over a static partition, best of {SLOTS} slots", 0.38, round(best[how], 2), best[how] >= 0.38, why
        )
        for how in POLICIES[1:]
    ]
    claims += [
        Claim(f"first-come over {POOLS}'s pools, best of {SLOTS} slots", 0.38, round(pools, 2), pools >= 0.38, why)
    ]
    lines = {how: [(float(slots), total[how, slots] / 1e6) for slots in SLOTS] for how in (*POLICIES, POOLS)}
    chart = Chart("4 jobs, half of the time at work", "slots of the switch", "Mbit/s summed", lines)
    rows = [{"how": how, "slots": slots, "bps": bps} for (how, slots), bps in total.items()]
    write(folder, claims, page([chart], 1), {"runs": rows, "jobs": JOBS})


if __name__ == "__main__":
    main()
