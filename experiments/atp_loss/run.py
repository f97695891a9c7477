"""Throughput under random loss, compared with the pools of switchml: `make fig FIG=atp_loss`."""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fabric_runs import Fabric, Job, Network, Slots, needs_root, rates, repeated, run, why_no_loss
from figure import Chart, Claim, output_folder, page, write

RATE_BPS = 100_000_000
QUEUE_BYTES = 250_000
WINDOW = 128
LOSSES = (0.0, 0.0001, 0.001, 0.01)
PROTOCOLS = ("atp", "switchml")
SECONDS = 6


def throughput(network: Network, protocol: str, loss: float) -> float:
    """Bit/s that a job of 8 workers sums while every packet of every node is lost with that probability."""
    given = Slots(servers=(network.hosts[8],), policy="first-come")
    network.lose(loss)
    try:
        with Fabric(network, controller_options=("--window-max", str(WINDOW)), slots=given) as fabric:
            return rates(run(fabric, [Job(network.hosts[:8], protocol)], SECONDS))[0]
    finally:
        network.lose(0)


def main() -> None:
    folder = output_folder("atp_loss")
    needs_root("atp_loss")
    if reason := why_no_loss():
        print(f"skipped atp_loss: {reason}")
        return
    with Network(1, 9, 1, RATE_BPS, queue_bytes=QUEUE_BYTES, trains=False) as network:
        cases = [(protocol, loss) for protocol in PROTOCOLS for loss in LOSSES]
        measured = dict(zip(cases, repeated([partial(throughput, network, *case) for case in cases], 1), strict=True))
    kept = {p: {loss: measured[p, loss] / measured[p, 0.0] for loss in LOSSES} for p in PROTOCOLS}
    ahead = {loss: measured["atp", loss] / measured["switchml", loss] - 1 for loss in LOSSES}
    claims = [
        Claim(
            f"share of the lossless throughput that is kept at {100 * loss:g} % loss, atp against switchml",
            "more",
            f"{kept['atp'][loss]:.2f} against {kept['switchml'][loss]:.2f}",
            kept["atp"][loss] > kept["switchml"][loss],
            "results out of order show a loss at once; a pool waits for its time-out of 10 ms",
        )
        for loss in LOSSES[1:]
    ]
    claims.append(
        Claim(
            "most that atp is ahead of switchml under loss",
            0.34,
            round(max(ahead[loss] for loss in LOSSES[1:]), 2),
            max(ahead[loss] for loss in LOSSES[1:]) >= 0.34,
            "a slot of the pool stands still for 10 ms of a round trip of some 2 ms; how much depends on that ratio",
        )
    )
    lines = {p: [(100 * max(loss, 0.00001), measured[p, loss] / 1e6) for loss in LOSSES] for p in PROTOCOLS}
    chart = Chart("8 workers, links of 100 Mbit/s", "loss per packet and hop, %", "Mbit/s summed", lines)
    data = {"bps": {p: {str(loss): measured[p, loss] for loss in LOSSES} for p in PROTOCOLS}}
    write(folder, claims, page([chart], 1), data | {"ahead": {str(k): v for k, v in ahead.items()}})


if __name__ == "__main__":
    main()
