"""The ranks' measurements of their links, against the configured links."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from namespaces import GUARD_S
from network import Network

RANK = """
import json
from netsum.communicator import connect
group = connect(in_network=False, timeout_s=120.0)
print(json.dumps(json.loads(group.core.stats())["link"]))
group.close()
"""


def links(network: Network, hosts: list[str]) -> list[dict]:
    """The cost model's link parameters at each rank, one rank per host."""
    ranks = []
    for rank, host in enumerate(hosts):
        meeting = {"NETSUM_MEETING": f"{network.address[hosts[0]]}:29500", "NETSUM_TOKEN": "none"}
        environment = {"RANK": rank, "WORLD_SIZE": len(hosts), **meeting}
        command = [*network.inside(host), sys.executable, "-c", RANK]
        settings = os.environ | {name: str(value) for name, value in environment.items()}
        ranks.append(subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate(timeout=GUARD_S)[0] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks)
    return [json.loads(output) for output in outputs]


# A busy machine does not reach the rate of a fast link.
FAST = pytest.param(400_000_000, marks=pytest.mark.figures)


@pytest.mark.parametrize("rate_bps", [40_000_000, FAST])
def test_measured_rates_are_those_of_the_links(rate_bps):
    with Network(1, 3, 1, rate_bps) as network:
        found = links(network, network.hosts)
    assert all(link == found[0] for link in found)
    # Headers take 4 %; a shaped link lets its burst pass at once.
    assert 0.25 < found[0]["bytes_per_s"] * 8 / rate_bps < 1.2, found[0]
    assert found[0]["latency_s"] < 0.1
