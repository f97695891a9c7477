"""How much slower a job is with fewer slots than it has fragments in flight: `make fig FIG=atp_slots`."""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fabric_runs import Fabric, Job, Network, Slots, needs_root, rates, repeated, run
from figure import Chart, Claim, output_folder, page, write

RATE_BPS = 100_000_000
QUEUE_BYTES = 250_000
WINDOW = 128
SHARES = (1.0, 0.5, 0.1)
SECONDS = 8
TIMES = 2


def throughput(network: Network, slots: int) -> float:
    """Bit/s that a job of 8 workers sums with a server in the same rack."""
    given = Slots(servers=(network.hosts[8],), slots=slots, policy="first-come")
    with Fabric(network, controller_options=("--window-max", str(WINDOW)), slots=given) as fabric:
        return rates(run(fabric, [Job(network.hosts[:8], "atp")], SECONDS))[0]


def main() -> None:
    folder = output_folder("atp_slots")
    needs_root("atp_slots")
    with Network(1, 9, 1, RATE_BPS, queue_bytes=QUEUE_BYTES) as network:
        slots = [round(WINDOW * share) for share in SHARES]
        measured = repeated([partial(throughput, network, count) for count in slots], TIMES)
    full = measured[0]
    costs = {share: 1 - rate / full for share, rate in zip(SHARES, measured, strict=True)}
    claims = [
        Claim(
            "slowdown with half the slots that the window needs",
            "0.05 to 0.10",
            round(costs[0.5], 3),
            costs[0.5] <= 0.10,
            "a collision costs eight packets at the server; marks and results out of order shrink the window",
        )
    ]
    points = [(100 * share, rate / 1e6) for share, rate in zip(SHARES, measured, strict=True)]
    chart = Chart("8 workers, links of 100 Mbit/s", "slots, % of the window", "Mbit/s summed", {"atp": points[::-1]})
    data = {"slots": slots, "window": WINDOW, "bps": measured, "slowdown": {str(k): v for k, v in costs.items()}}
    write(folder, claims, page([chart], 1), data)


if __name__ == "__main__":
    main()
