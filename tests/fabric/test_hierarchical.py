"""Sums by hosts without a plan: over their links, and with two ranks each through memory within a host."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

import pytest

from namespaces import GUARD_S
from network import Network
from test_throughput import write

RATE_BPS = 200_000_000
BYTES = 16 << 20
MTU = 4000

RANK = """
import json, sys, time
import numpy as np
from netsum.communicator import connect
operation, count, repeats = sys.argv[1], *map(int, sys.argv[2:])
group = connect(in_network=False, timeout_s=120.0)
base = np.arange(count, dtype=np.float32) % 1021
seconds = []
for _ in range(repeats):
    array = base * (group.rank + 1)
    gathered = np.zeros((group.size, count if operation == "allgather" else 0), dtype=np.float32)
    group.barrier()
    begun = time.perf_counter()
    if operation == "allgather":
        group.allgather(array, gathered)
    else:
        group.allreduce(array)
    seconds.append(time.perf_counter() - begun)
    if operation == "allgather":
        assert all((gathered[rank] == base * (rank + 1)).all() for rank in range(group.size))
    else:
        assert (array == base * (group.size * (group.size + 1) // 2)).all()
stats = json.loads(group.core.stats())
print(json.dumps({"seconds": seconds, "by": stats["hosts_by"], "link": stats["link"]}))
group.close()
"""


def ranks(
    network: Network,
    count: int,
    repeats: int,
    per_host: int = 2,
    dealt=False,
    operation: str = "allreduce",
    **settings: str,
) -> list[dict]:
    """Start `per_host` ranks on each host, neighbours or round-robin; returns their output."""
    hosts = network.hosts * per_host if dealt else [host for host in network.hosts for _ in range(per_host)]
    started = []
    for rank, host in enumerate(hosts):
        place = {"RANK": str(rank), "WORLD_SIZE": str(len(hosts)), "OMP_NUM_THREADS": "1"}
        meeting = {"NETSUM_MEETING": f"{network.address[hosts[0]]}:29500", "NETSUM_TOKEN": "none"}
        command = [*network.inside(host), sys.executable, "-c", RANK, operation, str(count), str(repeats)]
        environment = os.environ | place | meeting | settings
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate(timeout=GUARD_S)[0] for rank in started]
    assert all(rank.returncode == 0 for rank in started)
    return [json.loads(output) for output in outputs]


def test_ranks_of_a_host_share_memory_and_hosts_the_link():
    with Network(1, 2, 1, RATE_BPS) as network:
        found = ranks(network, 100_003, 2)
    assert all(rank["by"] == "shared memory within hosts, TCP between them" for rank in found)
    assert all(rank["link"]["across"]["hosts"] == [[0, 1], [2, 3]] for rank in found)


@pytest.mark.figures
def test_half_of_the_bytes_between_hosts():
    with Network(1, 2, 1, RATE_BPS) as network:
        flat = ranks(network, BYTES // 4, 5, NETSUM_ALGORITHMS="allreduce=shares")
        chosen = ranks(network, BYTES // 4, 5)
    flat, hierarchical = (statistics.median(found[0]["seconds"][1:]) for found in (flat, chosen))
    # Each host sends half of the buffer for its partner to add, and half of the sums.
    limit = BYTES * 8 / RATE_BPS
    result = {"bytes": BYTES, "seconds": {"flat": flat, "hierarchical": hierarchical, "limit": limit}}
    write("hierarchical", result | {"ratio": flat / hierarchical, "of_limit": limit / hierarchical})
    assert flat / hierarchical > 1.7


@pytest.mark.figures
def test_an_order_of_hosts_sends_less_for_ranks_dealt_out_in_turn():
    with Network(1, 2, 1, RATE_BPS) as network:
        of_ranks = ranks(network, BYTES // 4, 5, dealt=True)
        of_hosts = ranks(network, BYTES // 4, 5, dealt=True, NETSUM_ORDER="hosts")
    of_ranks, of_hosts = (statistics.median(found[0]["seconds"][1:]) for found in (of_ranks, of_hosts))
    seconds = {"order of ranks": of_ranks, "order of hosts": of_hosts, "limit": BYTES * 8 / RATE_BPS}
    write("order_of_hosts", {"bytes": BYTES, "seconds": seconds, "ratio": of_ranks / of_hosts})
    assert of_ranks / of_hosts > 1.3


@pytest.mark.figures
@pytest.mark.parametrize("operation, fewest_steps", [("allreduce", "shares"), ("allgather", "one-hop")])
@pytest.mark.parametrize("per_rack", [2, 4])
def test_ranks_cross_the_links_of_racks_seldom(per_rack: int, operation: str, fewest_steps: str) -> None:
    """Two racks, each with a link as fast as that of a host."""
    hosts = 2 * per_rack
    count = BYTES // 4 // (hosts if operation == "allgather" else 1)
    with Network(2, per_rack, 1, RATE_BPS) as network:
        named = {"NETSUM_ALGORITHMS": f"{operation}={fewest_steps}"}
        found = [ranks(network, count, 4, per_host=1, operation=operation, **given) for given in (named, {})]
    times = [[max(each) for each in zip(*(rank["seconds"] for rank in of), strict=True)][1:] for of in found]
    few, chosen = map(statistics.median, times)
    # Over the hosts' own links.
    limit = BYTES * 8 / RATE_BPS * (hosts - 1) / hosts * (2 if operation == "allreduce" else 1)
    result = {"hosts": hosts, "bytes": BYTES, "seconds": {fewest_steps: few, "chosen": chosen, "limit": limit}}
    result["by_distance"] = found[1][0]["link"]["by_distance"]
    write(f"racks_{operation}_{hosts}", result | {"ratio": few / chosen})
    assert few / chosen > 1.1, result


@pytest.mark.figures
@pytest.mark.parametrize("hosts", [2, 4])
def test_hosts_alone_fill_their_links(hosts):
    count = 64 << 18
    with Network(1, hosts, 1, RATE_BPS, mtu=MTU) as network:
        found = ranks(network, count, 3, per_host=1)
    seconds = statistics.median(max(times) for times in zip(*(rank["seconds"] for rank in found), strict=True))
    # Each rank sends all but its own share twice, once for the owners to add and once as sums.
    of_wire = count * 4 * 8 * 2 * (hosts - 1) / hosts / seconds / RATE_BPS
    of_payload = of_wire / ((MTU - 52) / (MTU + 14))
    result = {"hosts": hosts, "bytes": count * 4, "seconds": seconds, "of_wire": of_wire, "of_payload": of_payload}
    write(f"hosts_alone_{hosts}", result)
    assert of_payload >= 0.98, result
