"""Steps of DistributedDataParallel over slow links: float32, bf16 and 8 bits compared in one run."""

from __future__ import annotations

import json
import os
import statistics

import pytest

from fabric import Fabric, Slots, Workers
from network import Network
from test_throughput import write

RATE_BPS = 200_000_000
WORKERS = 4
STEPS = 5
IN_SWITCHES = [None, "bf16", "int8:int8", "int8:int16", "e4m3:bf16", "e5m2:bf16"]
NETWORKS = os.environ.get("NETSUM_FABRIC_LOWBIT", "100:1:4,100:2:8")
"""Mbit/s of a link, racks and workers of the networks on which switches add 8 bits."""
WIDTHS = [int(width) for width in os.environ.get("NETSUM_FABRIC_LOWBIT_WIDTHS", "128,1024").split(",")]
"""Widths of the models of eight layers: 0.5 and 34 MB of gradients."""


def rows_of(found: dict, size: int) -> dict[str, dict]:
    """By variant its seconds, what a host sends and receives per byte of `size`, and its error."""
    return {
        name: {
            "seconds": {"median": statistics.median(row["seconds"]), "best": min(row["seconds"])},
            "sent": statistics.median(row["bytes"]) / size,
            "received": statistics.median(row["received"]) / size,
            "error": row["error"],
        }
        for name, row in found.items()
    }


@pytest.mark.figures
def test_fewer_bits_take_less_of_the_links_and_less_time():
    given = {"NETSUM_LINK_LATENCY_S": "1e-4", "NETSUM_LINK_BYTES_PER_S": str(RATE_BPS / 8)}
    with Network(1, WORKERS, 1, RATE_BPS) as network, Fabric(network) as fabric:
        workers = Workers(fabric, network.hosts, "compression_worker.py", json.dumps({"steps": STEPS}), **given)
        found = workers.wait()[0]
    size = found.pop("gradient_bytes")
    rows = {
        name: {
            "seconds": {"median": statistics.median(row["seconds"]), "best": min(row["seconds"])},
            "bytes": statistics.median(row["bytes"]),
            "error": row["error"],
        }
        for name, row in found.items()
    }
    write("compression", {"rate_bps": RATE_BPS, "ranks": WORKERS, "gradient_bytes": size, "rows": rows})
    sent = {name: row["bytes"] / size for name, row in rows.items()}
    # 2 (N - 1) / N over the hosts and 1 through switches, with headers; 8 bits with a scale per 1,024 of them.
    assert 1.5 < sent["hosts float32"] < 1.65 and 0.75 < sent["hosts bf16"] < 0.84, sent
    assert 0.37 < sent["hosts int8"] < 0.42 and sent["switches bf16"] < 0.6, sent
    seconds = {name: row["seconds"]["median"] for name, row in rows.items()}
    assert seconds["hosts float32"] > 1.5 * seconds["hosts bf16"] > 1.5 * 1.3 * seconds["hosts int8"], seconds
    assert all(row["error"] < 0.02 for row in rows.values()), rows


@pytest.mark.figures
@pytest.mark.parametrize("part", NETWORKS.split(","))
def test_switches_add_8_bits(part):
    mbits, racks, workers = map(int, part.split(":"))
    rate_bps = mbits * 1_000_000
    given = {"NETSUM_LINK_LATENCY_S": "1e-4", "NETSUM_LINK_BYTES_PER_S": str(rate_bps / 8)}
    result = {"rate_bps": rate_bps, "racks": racks, "ranks": workers, "models": {}}
    variants = [("switches", to) for to in IN_SWITCHES] + [("hosts", "int8")]
    with Network(racks, workers // racks, 1, rate_bps) as network, Fabric(network) as fabric:

        def run(steps: int, width: int, chosen: list) -> tuple[dict, dict[str, int]]:
            before = network.link_bytes()
            arguments = json.dumps({"steps": steps, "width": width, "variants": chosen})
            found = Workers(fabric, network.hosts, "compression_worker.py", arguments, **given).wait()[0]
            return found, {link: count - before[link] for link, count in network.link_bytes().items()}

        for width in WIDTHS:
            found, _ = run(STEPS, width, variants)
            size = found.pop("gradient_bytes")
            result["models"][size] = rows_of(found, size)
            assert all(row["alike"] for row in found.values()), "ranks have different gradients"
        # All links of the fabric, for each variant alone: what three more steps send.
        for variant in variants:
            name = f"{variant[0]} {variant[1] or 'float32'}"
            _, few = run(1, WIDTHS[-1], [variant])
            _, more = run(4, WIDTHS[-1], [variant])
            busiest = max(more[link] - few[link] for link in more)
            result["models"][size][name]["busiest_link"] = busiest / 3 / size
    write(f"lowbit_{mbits}_{racks}_{workers}", result)
    rows = {name: max(row["sent"], row["received"]) for name, row in result["models"][size].items()}
    # Bytes per byte of a float32 gradient on the busier direction of a host's link, headers and magnitudes counted.
    limits = {"bf16": 0.58, "int8:int8": 0.29, "int8:int16": 0.56, "e4m3:bf16": 0.60, "e5m2:bf16": 0.60}
    assert all(rows[f"switches {to}"] < limit for to, limit in limits.items()), rows


@pytest.mark.figures
@pytest.mark.parametrize("in_kernel", [False, True], ids=["user-space", "in-kernel"])
def test_slots_add_int8_two_to_a_word(in_kernel):
    """atp's slots hold words of 32 bits: float32 and bfloat16 take one each, an int8 of a sum in int16 takes half."""
    variants = [("switches", None), ("switches", "int8:int16"), ("hosts", None), ("hosts", "int8")]
    given = {"NETSUM_LINK_LATENCY_S": "1e-4", "NETSUM_LINK_BYTES_PER_S": str(100_000_000 / 8)}
    given |= {"NETSUM_PROTOCOL": "atp"}
    arguments = json.dumps({"steps": STEPS, "width": 512, "variants": variants})
    slots = Slots(servers=("h0", "h2"), trusted=False)
    with Network(2, 2, 1, 100_000_000) as network:
        if in_kernel:
            network.take_from_hooks()
        with Fabric(network, slots=slots, in_kernel=in_kernel) as fabric:
            if in_kernel and "built without" in fabric.log("rack0"):
                pytest.skip("the daemons are built without the in-kernel switch (make setup-xdp)")
            found = Workers(fabric, network.hosts, "compression_worker.py", arguments, **given).wait()[0]
            served = [lease["contributions"] for lease in fabric.leases("atp") if lease["at"] in network.racks]
    size = found.pop("gradient_bytes")
    rows = rows_of(found, size)
    where = "_in_kernel" if in_kernel else ""
    write(f"slots_int8{where}", {"gradient_bytes": size, "rows": rows, "contributions": served})
    assert all(row["alike"] for row in found.values()), "ranks have different gradients"
    assert served and all(served), served
    assert rows["switches int8:int16"]["seconds"]["median"] < 0.7 * rows["switches float32"]["seconds"]["median"], rows
