"""NCCL's plug-in over shaped links: as fast as netsum's own collectives, from which it differs only in who calls."""

from __future__ import annotations

import json
import os
import statistics

import pytest

from fabric import REPOSITORY, Fabric, Workers
from network import Network
from test_throughput import write

RATE_BPS = 100_000_000
RELEASE = REPOSITORY / "target" / "release"
PLUGINS = [
    path for path in (RELEASE / "libnccl_net_netsum.so", RELEASE / "deps/libnccl_net_netsum.so") if path.exists()
]
REPEATS = int(os.environ.get("NETSUM_FABRIC_REPEATS", "5"))

OPERATIONS = ["allreduce", "reduce_scatter", "allgather"]

# The least ratio of the plug-in's rates to those of netsum's own calls; None: the machine may do other things as well.
BRIEF = pytest.param([4], 3, None, id="brief")
THOROUGH = pytest.param([4, 16], REPEATS, 0.97, marks=pytest.mark.figures, id="thorough")


@pytest.mark.skipif(not PLUGINS, reason="no plug-in: cargo build --release -p netsum-nccl-net")
@pytest.mark.parametrize(("sizes_mib", "repeats", "least"), [BRIEF, THOROUGH])
def test_the_plugin_is_as_fast_as_netsums_own_collectives(sizes_mib, repeats, least):
    plugin = str(max(PLUGINS, key=lambda path: path.stat().st_mtime))
    with Network(2, 2, 2, RATE_BPS) as network, Fabric(network) as fabric:
        arguments = {"plugin": plugin, "sizes_mib": sizes_mib, "operations": OPERATIONS, "repeats": repeats}
        given = {"NETSUM_COLLECTIVES": "all"}
        ranks = Workers(fabric, network.hosts, "collnet_worker.py", json.dumps(arguments), **given).wait()
    rows = {}
    for operation, sizes in ranks[0].items():
        for mib, ways in sizes.items():
            bits = int(mib) * 8 * (1 << 20)
            rates = {way: [bits / s / RATE_BPS for s in seconds] for way, seconds in ways.items()}
            row = {way: {"median": statistics.median(r), "best": max(r)} for way, r in rates.items()}
            ratio = {which: row["plugin"][which] / row["netsum"][which] for which in ("median", "best")}
            rows[f"{operation} {mib} MiB"] = {**row, "ratio": ratio}
    write("collnet", {"unit": "algbw / line rate", "rows": rows})
    assert list(rows) == [f"{operation} {mib} MiB" for operation in OPERATIONS for mib in sizes_mib]
    for name, row in rows.items():
        assert least is None or row["ratio"]["median"] >= least, f"{name}: {row}"
