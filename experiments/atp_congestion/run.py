"""Four jobs that overload one server's link, with and without congestion control: `make fig FIG=atp_congestion`."""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fabric_runs import Fabric, Job, Network, Slots, needs_root, rates, repeated, run
from figure import Chart, Claim, output_folder, page, write

RATE_BPS = 100_000_000
QUEUE_BYTES = 100_000
JOBS, WORKERS = 4, 2
SECONDS = 12
TIMES = 2


def throughput(network: Network, congestion: str) -> list[float]:
    """Bit/s that each job sums; without slots all contributions go to the one server."""
    given = Slots(servers=(network.hosts[JOBS * WORKERS],), slots=0, policy="first-come")
    with Fabric(network, slots=given) as fabric:
        hosts = [network.hosts[WORKERS * job : WORKERS * (job + 1)] for job in range(JOBS)]
        options = {"congestion": congestion}
        return rates(run(fabric, [Job(h, "atp", bytes=1 << 20, options=options) for h in hosts], SECONDS))


def main() -> None:
    folder = output_folder("atp_congestion")
    needs_root("atp_congestion")
    with Network(1, JOBS * WORKERS + 1, 1, RATE_BPS, queue_bytes=QUEUE_BYTES) as network:

        def total(congestion: str) -> float:
            return sum(throughput(network, congestion))

        controlled, fixed = repeated([partial(total, "panama"), partial(total, "none")], TIMES)
    claims = [
        Claim(
            "throughput of four jobs at one server's link, with congestion control over without",
            3.0,
            round(controlled / fixed, 2),
            controlled / fixed >= 3.0,
            "with it 91 % of what the link allows; without it what is dropped costs only its sender's link",
        )
    ]
    bars = {"all jobs": [(0.0, fixed / 1e6), (1.0, controlled / 1e6)]}
    chart = Chart("link of 100 Mbit/s, no slots", "0: fixed window, 1: ATP's control", "Mbit/s summed", bars)
    write(folder, claims, page([chart], 1), {"with_bps": controlled, "without_bps": fixed})


if __name__ == "__main__":
    main()
