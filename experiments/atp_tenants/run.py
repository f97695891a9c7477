"""Few slots for many jobs: a static partition against first come and preemption: `make fig FIG=atp_tenants`."""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fabric_runs import Fabric, Job, Network, Slots, delay_line, needs_root, run, why_no_marks
from figure import Chart, Claim, output_folder, page, write

RATE_BPS = 40_000_000
DELAY_US = 4_000
"""Delay of every link, each way: with a server's hop a round trip of 16 ms, about 54 fragments."""
QUEUE_BYTES = 100_000
MARK_BYTES = 50_000
JOBS, WORKERS = 4, 3
WINDOW = 64
SLOTS = (32, 64, 128)
"""Slots of the switch: the window of one of the four jobs, half and twice that."""
BYTES = 1 << 20
BUSY_S = 2.0
"""Duration of other work after each sum, 1 to 3 s: jobs sum about a third of the time."""
SECONDS = 14
TIMES = 2
POLICIES = ("partition", "first-come", "preempt")
POOLS = "switchml"
"""The paper's static partition: each job has a pool and no server."""


def sums(network: Network, how: str, slots: int) -> list[float]:
    """Seconds of each sum, of all jobs. `how`: a policy of slots, with a server for each job, or pools."""
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
        # The first sum of each job starts with initial windows.
        return [seconds for job in run(fabric, jobs, SECONDS).summing for seconds in job[1:]]


def main() -> None:
    folder = output_folder("atp_tenants")
    needs_root("atp_tenants")
    if reason := why_no_marks():
        print(f"skipped atp_tenants: {reason}")
        return
    delay_line()
    ways = [(how, slots) for slots in SLOTS for how in (*POLICIES, POOLS)]
    hosts = JOBS * (WORKERS + 1)
    taken: dict[tuple[str, int], list[float]] = {way: [] for way in ways}
    queues = {"queue_bytes": QUEUE_BYTES, "mark_bytes": MARK_BYTES, "delay_us": DELAY_US}
    with Network(1, hosts, 1, RATE_BPS, **queues) as network:
        # Interleaved, so that a disturbance affects neighbouring runs equally.
        for _ in range(TIMES):
            for way in ways:
                taken[way] += sums(network, *way)
    rate = {way: BYTES * 8 / statistics.mean(seconds) for way, seconds in taken.items()}
    gain = {how: {slots: rate[how, slots] / rate["partition", slots] - 1 for slots in SLOTS} for how in POLICIES[1:]}
    why = "see the README"
    claims = []
    for how in POLICIES[1:]:
        best = max(gain[how].values())
        claims.append(Claim(f"{how} over a partition, best of {SLOTS} slots", 0.38, round(best, 2), best >= 0.38, why))
    pools = max(rate["first-come", slots] / rate[POOLS, slots] - 1 for slots in SLOTS)
    claims.append(
        Claim(f"first-come over {POOLS}'s pools, best of {SLOTS} slots", 0.38, round(pools, 2), pools >= 0.38, why)
    )
    lines = {how: [(float(slots), rate[how, slots] / 1e6) for slots in SLOTS] for how in (*POLICIES, POOLS)}
    chart = Chart("4 jobs, a third of the time at work", "slots of the switch", "Mbit/s of a job while it sums", lines)
    rows = [
        {"how": how, "slots": slots, "bps": bps, "sums": len(taken[how, slots])} for (how, slots), bps in rate.items()
    ]
    write(folder, claims, page([chart], 1), {"runs": rows, "jobs": JOBS})


if __name__ == "__main__":
    main()
