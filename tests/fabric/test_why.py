"""`netsum why` on running jobs with planted faults that do not depend on how busy the machine is."""

from __future__ import annotations

import random

import pytest

from fabric import Fabric
from network import Network, why_not
from why_faults import RATE_BPS, case

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def test_planted_faults_are_named() -> None:
    network = Network(racks=2, hosts_per_rack=2, spines=1, rate_bps=RATE_BPS)
    with network, Fabric(network, store=False) as fabric:
        for seed, name in enumerate(("stopped rank", "mismatched call", "exception", "disk stall")):
            outcome = case(fabric, seed, name, random.Random(seed), None)
            assert outcome.verdict == "right", (name, outcome.rank, outcome.said)
