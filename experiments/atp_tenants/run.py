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
SLOTS = WINDOW
"""What one of the jobs needs alone, by the measure of `atp_slots`; there are four."""
BYTES = 1 << 20
BUSY_S = 0.2
"""Of other work after each sum, about what a sum takes with all slots."""
SECONDS = 9
TIMES = 2
POLICIES = ("partition", "first-come", "preempt")


def throughput(network: Network, policy: str) -> float:
    """Bit/s that all jobs together sum, each with a server of its own."""
    guaranteed = SLOTS // JOBS if policy == "partition" else 0
    tenants = f'[[tenant]]\nname = "default"\nguaranteed = {guaranteed}'
    servers = tuple(network.hosts[JOBS * WORKERS :])
    given = Slots(servers=servers, slots=SLOTS, policy=policy, tenants=tenants)
    with Fabric(network, controller_options=("--window-max", str(WINDOW)), slots=given) as fabric:
        hosts = [network.hosts[WORKERS * job : WORKERS * (job + 1)] for job in range(JOBS)]
        jobs = [Job(h, "atp", bytes=BYTES, busy_s=BUSY_S, options={"max_trees": "1"}) for h in hosts]
        return sum(rates(run(fabric, jobs, SECONDS)))


def main() -> None:
    folder = output_folder("atp_tenants")
    needs_root("atp_tenants")
    with Network(1, JOBS * (WORKERS + 1), 1, RATE_BPS, queue_bytes=QUEUE_BYTES) as network:
        measured = repeated([partial(throughput, network, policy) for policy in POLICIES], TIMES)
    total = dict(zip(POLICIES, measured, strict=True))
    gain = {policy: total[policy] / total["partition"] - 1 for policy in POLICIES}
    why = "a round trip here holds some ten fragments, so a fourth of the slots still fills the link"
    claims = [
        Claim(
            "first come, first served over a static partition",
            0.38,
            round(gain["first-come"], 2),
            gain["first-come"] >= 0.38,
            why,
        ),
        Claim(
            "preemption over a static partition",
            "at least as much",
            round(gain["preempt"], 2),
            gain["preempt"] >= 0.38,
            why,
        ),
    ]
    points = {"all jobs": [(float(at), total[policy] / 1e6) for at, policy in enumerate(POLICIES)]}
    chart = Chart("4 jobs, slots for one", "0: partition, 1: first come, 2: preemption", "Mbit/s summed", points)
    write(folder, claims, page([chart], 1), {"bps": total, "gain": gain, "slots": SLOTS, "jobs": JOBS})


if __name__ == "__main__":
    main()
