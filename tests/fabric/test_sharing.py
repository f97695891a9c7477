"""Two jobs on one link, and a job beside a TCP flow."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from fabric import Fabric, Workers
from network import Network
from test_throughput import RATE_BPS, write

SECONDS = 15

TCP_SINK = """
import json, socket, sys, time
connection, _ = socket.create_server(("0.0.0.0", 5001)).accept()
line, total = [(time.time(), 0)], 0
while block := connection.recv(1 << 16):
    total += len(block)
    if time.time() - line[-1][0] > 0.1: line.append((time.time(), total))
print(json.dumps(line))
"""
TCP_SOURCE = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5001))
end, block = time.monotonic() + float(sys.argv[2]), bytes(1 << 16)
while time.monotonic() < end: connection.send(block)
"""


def steady(fabric: Fabric, hosts: list[str]) -> Workers:
    arguments = {"sizes_mib": [2], "repeats": 0, "gloo": False, "seconds": SECONDS}
    return Workers(fabric, hosts, "worker.py", json.dumps(arguments))


def rates_together(*lines: list) -> list[float]:
    """Each time line's rate, as a fraction of the link, over the time in which all were at work.

    The first seconds of that are left out: who comes last must first find its share.
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
    # Half-rate uplinks: both jobs' partials want all of them.
    with Network(2, 4, 2, RATE_BPS, uplink_bps=RATE_BPS // 2) as network, Fabric(network) as fabric:
        h = network.hosts
        jobs = [steady(fabric, [h[0], h[1], h[4], h[5]]), steady(fabric, [h[2], h[3], h[6], h[7]])]
        rates = rates_together(*(job.wait(150)[0]["line"] for job in jobs))
    write("two_jobs", {"unit": "algbw / host line rate, of a fair 0.5 less headers", "jobs": rates})
    assert abs(rates[0] - rates[1]) <= 0.1 * max(rates), rates


@pytest.mark.figures
@pytest.mark.xfail(
    strict=True,
    reason="in a queue that is served in order, on the host that sends both, TCP keeps less queued than one train"
    " of the worker and gets 0.21 of the link, the job 0.72; a queue per flow is the way out, not measured here",
)
def test_a_job_and_a_tcp_flow_both_get_on():
    with Network(2, 4, 2, RATE_BPS) as network, Fabric(network) as fabric:
        h = network.hosts
        job = steady(fabric, h)
        job.wait_for_step(0, 100)
        sink = [sys.executable, "-c", TCP_SINK]
        sink = subprocess.Popen([*network.inside(h[7]), *sink], stdout=subprocess.PIPE)
        time.sleep(0.5)
        try:
            source = [sys.executable, "-c", TCP_SOURCE, network.address[h[7]], str(SECONDS)]
            subprocess.check_call([*network.inside(h[0]), *source])
            tcp = json.loads(sink.communicate(timeout=30)[0])
        finally:
            sink.kill()
        job_rate, tcp_rate = rates_together(job.wait(150)[0]["line"], tcp)
    write("beside_tcp", {"unit": "fraction of the link", "job": job_rate, "tcp": tcp_rate})
    assert job_rate >= 0.4 and tcp_rate >= 0.4, (job_rate, tcp_rate)
