"""A fabric of a thousand nodes, which is a long test: NETSUM_CLUSTER=1."""

from __future__ import annotations

import os
import time

import pytest

from chart import VALUES, Netsum
from control_plane import ControlPlane

pytestmark = [
    pytest.mark.needs_cluster,
    pytest.mark.skipif(not os.environ.get("NETSUM_CLUSTER"), reason="a long test: make test-cluster"),
]

RACKS, HOSTS, SPINES = 32, 30, 8
READY_S = 60.0
"""What the documents promise, measured by test-cluster."""


def switches():
    for rack in range(RACKS):
        yield f"t{rack}", {"netsum.dev/role": "switch", "netsum.dev/rack": f"r{rack}"}, True
    for spine in range(SPINES):
        yield f"s{spine}", {"netsum.dev/role": "switch"}, True


def nodes():
    yield from switches()
    for rack in range(RACKS):
        for host in range(HOSTS):
            yield f"h{rack}-{host}", {"netsum.dev/rack": f"r{rack}"}, False


def test_a_fabric_of_many_nodes_is_ready():
    with ControlPlane() as plane:
        start = time.monotonic()
        plane.add_nodes(nodes())
        print(f"{RACKS * (HOSTS + 1) + SPINES} nodes after {time.monotonic() - start:.1f} s")
        # Tens of switches share this machine's memory.
        small = {"fabric": {**VALUES["fabric"], "memory": "4MiB"}}
        cluster = Netsum(plane, [name for name, *_ in switches()], small)
        with cluster.kubelet:
            start = time.monotonic()
            cluster.install()
            fabric = cluster.wait_ready()
            taken = time.monotonic() - start
            print(f"ready {taken:.1f} s after the installation began: {fabric}")
            assert (fabric["hosts"], fabric["switches"]) == (RACKS * HOSTS, RACKS + SPINES)
            assert fabric["switchesUp"] == RACKS + SPINES
            assert len(cluster.status()["hosts"]) == RACKS * HOSTS
            assert taken < READY_S
