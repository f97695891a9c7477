"""A job of atp and TCP flows on the link into its server: `make fig FIG=atp_tcp`."""

import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fabric_runs import Fabric, Job, Network, Slots, needs_root, run, why_no_marks
from figure import Chart, Claim, output_folder, page, write

RATE_BPS = 100_000_000
QUEUE_BYTES = 250_000
MARK_BYTES = 80_000
"""1,000 cells of 80 bytes."""
FLOWS, FLOW_S = 3, 12
SETTLE_S = 3


def share(line: list, begin: float, end: float) -> float:
    inside = [(at, count) for at, count in line if begin <= at <= end]
    (first, low), (last, high) = inside[0], inside[-1]
    return (high - low) * 8 / (last - first) / RATE_BPS


def shares(mark_bytes: int | None) -> list[tuple[float, float]]:
    """Shares of the link of the job and of each TCP flow, in their order."""
    from test_sharing import flow

    flows: list[list] = []
    with Network(1, 6, 1, RATE_BPS, queue_bytes=QUEUE_BYTES, mark_bytes=mark_bytes) as network:
        server, source = network.hosts[4], network.hosts[5]
        given = Slots(servers=(server,), policy="first-come")
        with Fabric(network, slots=given) as fabric:

            def beside() -> None:
                time.sleep(8)
                flows.extend(flow(network, source, server, "cubic", FLOW_S) for _ in range(FLOWS))

            thread = threading.Thread(target=beside)
            thread.start()
            seconds = 10 + FLOWS * (FLOW_S + 1)
            outcome = run(fabric, [Job(network.hosts[:4], "atp", bytes=1 << 20)], seconds)
            thread.join()
    job = outcome.lines[0]
    pairs = []
    for tcp in flows:
        begin, end = tcp[0][0] + SETTLE_S, tcp[-1][0]
        pairs.append((share(job, begin, end), share(tcp, begin, end)))
    return pairs


def mean(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    job, tcp = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
    return job, tcp


def claim(what: str, pairs: list[tuple[float, float]], why: str) -> Claim:
    job, tcp = mean(pairs)
    ours = f"job {job:.2f}, TCP {tcp:.2f} of the link"
    return Claim(what, "equal (max-min fair)", ours, min(job, tcp) / max(job, tcp) >= 0.67, why)


def main() -> None:
    folder = output_folder("atp_tcp")
    needs_root("atp_tcp")
    dropping = shares(None)
    why = "the daemon marks the job by its own socket's queue, and nothing marks TCP, which fills it until it drops"
    claims = [claim("a job beside a TCP flow on the link into the server, queues that only drop", dropping, why)]
    results = {"dropping": dropping}
    if reason := why_no_marks():
        print(f"left out: queues that mark: {reason}")
    else:
        marking = results["marking"] = shares(MARK_BYTES)
        why = "both answer marks; each has its own increase per round trip"
        claims.insert(0, claim("the same, queues that mark at 80 kB as the paper's switch does", marking, why))
    lines = {}
    for queue, pairs in results.items():
        lines |= {f"job, {queue}": [(float(number), pair[0]) for number, pair in enumerate(pairs)]}
        lines |= {f"TCP, {queue}": [(float(number), pair[1]) for number, pair in enumerate(pairs)]}
    chart = Chart("link of 100 Mbit/s, 250 kB of queue", "flow", "share of the link", lines)
    write(folder, claims, page([chart], 1), results)


if __name__ == "__main__":
    main()
