"""Messages of other programs on a host that takes part in a job: what they wait for in the host's own queue.

Their way is the link from the host to its rack, no further. Hosts have one queue for all flows, or one per flow as with
Linux's fq_codel; the job sums through switches, or between hosts over TCP.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys

import pytest

from fabric import Fabric
from namespaces import GUARD_S
from network import Network, why_no_marks
from test_sharing import steady
from test_throughput import RATE_BPS, write

MESSAGES = 300
MESSAGE_BYTES = 20_000
SECONDS = 30
WAYS = {"switches": {}, "hosts": {"NETSUM_MIN_BYTES": "1073741824"}}

SINK = """
import socket, sys
server = socket.create_server(("0.0.0.0", 5002))
print("ready", flush=True)
connection, _ = server.accept()
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while connection.recv(int(sys.argv[1]), socket.MSG_WAITALL): connection.send(b".")
"""
SOURCE = """
import json, socket, sys, time
address, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
connection = socket.create_connection((address, 5002))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
seconds = []
for number in range(count):
    # Without a beat that the job's steps could have, too.
    time.sleep(0.02 + 0.03 * (number * 0.618 % 1))
    begun = time.perf_counter()
    connection.sendall(bytes(size))
    connection.recv(1)
    seconds.append(time.perf_counter() - begun)
print(json.dumps(seconds))
"""


def messages(network: Network) -> dict[str, float]:
    """Milliseconds from a message to its answer, from the first host to its rack."""
    host = network.hosts[0]
    rack = network.rack_of[host]
    command = [*network.inside(rack), sys.executable, "-c", SINK, str(MESSAGE_BYTES)]
    sink = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert sink.stdout.readline() == b"ready\n"
        arguments = [network.address[rack], str(MESSAGES), str(MESSAGE_BYTES)]
        source = [*network.inside(host), sys.executable, "-c", SOURCE, *arguments]
        seconds = json.loads(subprocess.check_output(source, timeout=GUARD_S))
    finally:
        sink.kill()
    ordered = sorted(1e3 * each for each in seconds)
    return {"median": statistics.median(ordered), "p99": ordered[int(0.99 * len(ordered))]}


@pytest.mark.figures
@pytest.mark.skipif(why_no_marks() is not None, reason=f"a queue per flow {why_no_marks()}")
def test_small_flows_wait_little_beside_a_job():
    table = {}
    for fair_hosts in (False, True):
        queue = "a queue per flow" if fair_hosts else "one queue"
        with Network(2, 2, 1, RATE_BPS, fair_hosts=fair_hosts) as network:
            table[f"{queue}, no job"] = messages(network)
            for way, environment in WAYS.items():
                with Fabric(network) as fabric, contextlib.ExitStack() as stack:
                    job = steady(fabric, network.hosts, SECONDS, **environment)
                    stack.callback(job.wait)
                    job.wait_for_step(0)
                    table[f"{queue}, {way}"] = messages(network)
    result = {"unit": "ms", "message_bytes": MESSAGE_BYTES, "messages": MESSAGES, "table": table}
    write("small_flows", result)
    one, fair = ({way: table[f"{queue}, {way}"] for way in WAYS} for queue in ("one queue", "a queue per flow"))
    assert one["switches"]["median"] < one["hosts"]["median"], table
    assert fair["switches"]["median"] < one["switches"]["median"], table
    for queue in (one, fair):
        assert queue["switches"]["p99"] < queue["hosts"]["p99"], table
