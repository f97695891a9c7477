"""Two jobs on one link, and a job competing with a TCP flow."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fabric import Fabric, Workers
from namespaces import GUARD_S
from network import Network
from test_throughput import RATE_BPS, write

SECONDS = 15
FLOWS = 4
SWITCH_QUEUE_BYTES = 250_000

TCP_SINK = """
import json, socket, sys, time
server = socket.create_server(("0.0.0.0", 5001))
print("ready", flush=True)
connection, _ = server.accept()
line, total = [(time.time(), 0)], 0
while block := connection.recv(1 << 16):
    total += len(block)
    if time.time() - line[-1][0] > 0.1: line.append((time.time(), total))
print(json.dumps(line))
"""
TCP_SOURCE = """
import socket, sys, time
connection = socket.socket()
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, sys.argv[3].encode())
connection.connect((sys.argv[1], 5001))
end, block = time.monotonic() + float(sys.argv[2]), bytes(1 << 16)
while time.monotonic() < end: connection.send(block)
"""


def steady(fabric: Fabric, hosts: list[str], seconds: float = SECONDS, **environment: str) -> Workers:
    arguments = {"sizes_mib": [2], "repeats": 0, "gloo": False, "seconds": seconds}
    return Workers(fabric, hosts, "worker.py", json.dumps(arguments), **environment)


def rates_together(*lines: list) -> list[float]:
    """Each time line's rate, as a fraction of the link, over the period in which all were running.

    Its first seconds are excluded: the last one to start must first reach its share.
    """
    begin = max(line[0][0] for line in lines) + 3
    end = min(line[-1][0] for line in lines)
    assert end - begin >= 4, f"they were at work together for {end - begin + 3:.1f} s only"

    def rate(line: list) -> float:
        inside = [(at, count) for at, count in line if begin <= at <= end]
        (first, low), (last, high) = inside[0], inside[-1]
        return (high - low) * 8 / (last - first) / RATE_BPS

    return [rate(line) for line in lines]


@pytest.mark.figures
def test_two_jobs_share_the_uplinks_equally():
    # Half-rate uplinks: both jobs' partials need their full rate.
    with Network(2, 4, 2, RATE_BPS, uplink_bps=RATE_BPS // 2) as network, Fabric(network) as fabric:
        h = network.hosts
        jobs = [steady(fabric, [h[0], h[1], h[4], h[5]]), steady(fabric, [h[2], h[3], h[6], h[7]])]
        rates = rates_together(*(job.wait()[0]["line"] for job in jobs))
    write("two_jobs", {"unit": "algbw / host line rate, of a fair 0.5 less headers", "jobs": rates})
    assert abs(rates[0] - rates[1]) <= 0.1 * max(rates), rates


def flow(network: Network, source: str, sink: str, control: str, seconds: float = SECONDS) -> list:
    """The time line of one TCP flow."""
    receiver = [sys.executable, "-c", TCP_SINK]
    receiver = subprocess.Popen([*network.inside(sink), *receiver], stdout=subprocess.PIPE)
    try:
        assert receiver.stdout.readline() == b"ready\n"
        sender = [sys.executable, "-c", TCP_SOURCE, network.address[sink], str(seconds), control]
        subprocess.check_call([*network.inside(source), *sender])
        return json.loads(receiver.communicate(timeout=GUARD_S)[0])
    finally:
        receiver.kill()


def beside_tcp(network: Network, workers: list[str], source: str, sink: str) -> dict:
    """Shares of a job, and of TCP flows that join one after another on the same link."""
    with network, Fabric(network) as fabric:
        job = steady(fabric, workers, (SECONDS + 1) * FLOWS)
        job.wait_for_step(0)
        flows = [flow(network, source, sink, "cubic") for _ in range(FLOWS)]
        line = job.wait()[0]["line"]
    shares = [rates_together([x for x in line if x[0] >= tcp[0][0]], tcp) for tcp in flows]
    means = [sum(s) / FLOWS for s in zip(*shares, strict=True)]
    return {"unit": "fraction of the link", "job": means[0], "tcp": means[1], "flows": shares}


# 20 ms of queue; nothing marks, so both learn of congestion by loss. Who loses how often in a queue that just
# drops depends on phases (Floyd and Jacobson 1991), so single flows differ and their mean counts. In a shorter
# queue the job gets less (docs/operations.md).


@pytest.mark.figures
def test_a_job_and_a_tcp_flow_share_an_uplink():
    # One tree, so that all traffic of the job crosses the flow's link.
    network = Network(2, 4, 1, RATE_BPS, queue_bytes=SWITCH_QUEUE_BYTES)
    h = network.hosts
    shares = beside_tcp(network, [h[0], h[1], h[4], h[5]], h[2], h[6])
    write("uplink_beside_tcp", shares)
    assert min(shares["job"], shares["tcp"]) >= 0.4, shares


@pytest.mark.figures
def test_a_job_and_a_tcp_flow_share_the_link_of_their_host():
    network = Network(2, 4, 2, RATE_BPS, queue_bytes=SWITCH_QUEUE_BYTES)
    shares = beside_tcp(network, network.hosts, network.hosts[0], network.hosts[7])
    write("host_link_beside_tcp", shares)
    assert min(shares["job"], shares["tcp"]) >= 0.4, shares
