"""Tree plans on emulated links: every NVLink of a DGX-1V fragment is a shaped pair of devices.

Without measurements: a small sum over a plan. With them: plan against ring on the same links, against the model.
"""

from __future__ import annotations

import statistics

import pytest

from fragment import PROGRAM, Fragment
from netsum.plan import Selection, pack, topology
from test_throughput import write

# `cargo test` builds it.
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="no plan_rank: cargo test --workspace --no-run")

LINK_MBIT = 40
"""Rate of one NVLink; all links of a fragment together must be far below what the machine can copy."""
PCIE_MBIT = 16
"""PCIe relative to NVLink: 10 GB/s to 25. NCCL falls back to it if there is no NVLink ring."""
REPEATS = 2
PAYLOAD = 3948 / 4014
"""TCP payload per full frame on the fragments' links."""


def fragment(gpus: str) -> dict:
    """NVLinks of a DGX-1V fragment, each slowed down to LINK_MBIT."""
    graph = topology(Selection("dgx1v", gpus.split(","), ["nvlink"]))
    for link in graph["link"]:
        link["rate"] = f"{int(link['rate'].removesuffix('Gbit/s')) // 200 * LINK_MBIT}Mbit/s"
    return graph


def pcie_ring(graph: dict) -> dict:
    """The GPUs in a ring at PCIe's rate."""
    names = [gpu["name"] for gpu in graph["gpu"]]
    ends = [[names[i], names[(i + 1) % len(names)]] for i in range(len(names))]
    return {"name": "pcie", "gpu": graph["gpu"], "link": [{"ends": e, "rate": f"{PCIE_MBIT}Mbit/s"} for e in ends]}


def with_pcie(graph: dict) -> dict:
    """The same GPUs with one additional PCIe switch, to which each has a link."""
    links = [{"ends": [gpu["name"], "pcie"], "rate": f"{PCIE_MBIT}Mbit/s"} for gpu in graph["gpu"]]
    return graph | {"switch": [{"name": "pcie"}], "link": graph["link"] + links}


def servers(*fragments: str) -> dict:
    """DGX-1V fragments whose GPUs each have an additional network interface, at PCIe's rate, on one network."""
    gpus, links = [], []
    for number, names in enumerate(fragments):
        graph = fragment(names)
        own = [f"s{number}{gpu['name']}" for gpu in graph["gpu"]]
        gpus += [{"name": name} for name in own]
        links += [link | {"ends": [f"s{number}{end}" for end in link["ends"]]} for link in graph["link"]]
        links += [{"ends": [name, "net"], "rate": f"{PCIE_MBIT}Mbit/s", "kind": "nic"} for name in own]
    return {"name": "servers", "gpu": gpus, "link": links, "switch": [{"name": "net"}]}


def pair(mbit: tuple[int, ...]) -> dict:
    """Two hosts with a link between them, and interfaces of both behind a switch for each further rate."""
    graph = {
        "name": "pair",
        "gpu": [{"name": "host0"}, {"name": "host1"}],
        "link": [{"ends": ["host0", "host1"], "rate": f"{mbit[0]}Mbit/s"}],
    }
    for number, rate in enumerate(mbit[1:]):
        graph["switch"] = [*graph.get("switch", []), {"name": f"net{number}"}]
        graph["link"] += [{"ends": [host["name"], f"net{number}"], "rate": f"{rate}Mbit/s"} for host in graph["gpu"]]
    return graph


def bytes_of(seconds: float, rate: float) -> int:
    """Bytes of float32 that take `seconds` at `rate` GB/s; two seconds are long compared with the start of a
    pipeline."""
    return int(seconds * rate * 1e9) // 4 * 4


def test_a_plan_runs_over_its_links(tmp_path):
    graph = with_pcie(fragment("0,1,4"))
    best = pack(graph)
    with Fragment(graph) as links:
        links.seconds(best["plan"], bytes_of(0.1, best["rate"]), tmp_path, repeats=1)


@pytest.mark.figures
@pytest.mark.parametrize("gpus", ["0,1,4", "0,3,4", "0,1,2,4", "0,2,3", "0,1,2,3,4,6"])
def test_a_plan_against_a_ring(gpus, tmp_path):
    graph = fragment(gpus)
    best = pack(graph)
    others = dict(best["others"])
    ring_graph = graph if others["rings"] else pcie_ring(graph)
    ring = pack(ring_graph, method="rings")
    size = bytes_of(2, best["rate"])
    with Fragment(graph) as links:
        planned = links.seconds(best["plan"], size, tmp_path, REPEATS)
    with Fragment(ring_graph) as links:
        ringed = links.seconds(ring["plan"], size, tmp_path, REPEATS)
    model, measured = best["rate"] / ring["rate"], ringed / planned
    kind = "NVLink" if others["rings"] else "PCIe"
    result = {
        "gpus": gpus,
        "ring": kind,
        "bytes": size,
        "ratio": {"model": model, "measured": measured},
        "seconds": {"plan": planned, "ring": ringed},
        "rate_gbytes": {"plan": best["rate"], "ring": ring["rate"]},
    }
    write(f"plan_{gpus.replace(',', '')}", result)
    assert measured == pytest.approx(model, rel=0.1)


@pytest.mark.figures
def test_unequal_links_are_used_together(tmp_path):
    nvlink = fragment("0,1,4")
    both = with_pcie(nvlink)
    one, two = pack(nvlink), pack(both)
    size = bytes_of(2, two["rate"])
    with Fragment(both) as links:
        alone = links.seconds(one["plan"], size, tmp_path, REPEATS)
        together = links.seconds(two["plan"], size, tmp_path, REPEATS)
    model, measured = two["rate"] / one["rate"], alone / together
    write("plan_unequal", {"ratio": {"model": model, "measured": measured}, "seconds": [together, alone]})
    assert measured == pytest.approx(model, rel=0.1)


@pytest.mark.figures
def test_three_phases_over_two_servers(tmp_path):
    graph = servers("0,1,4", "0,1,2,4")
    best, phases = pack(graph), pack(graph, method="three-phase")
    size = bytes_of(2, phases["rate"])
    with Fragment(graph) as links:
        seconds = links.seconds(phases["plan"], size, tmp_path, REPEATS)
    model, measured = phases["rate"], size / 1e9 / seconds
    rates = {"model": model, "measured": measured, "bound": best["bound"]}
    write("plan_three_phase", {"rate_gbytes": rates, "bytes": size, "seconds": seconds})
    assert measured == pytest.approx(model, rel=0.1)


# Seconds that sums take, and the least share of what the wires carry in that time; None: the machine may be busy with
# other things, so bytes are compared and not times.
THOROUGH = pytest.param(6, 0.95, marks=pytest.mark.figures, id="thorough")
BRIEF = pytest.param(1.5, None, id="brief")


@pytest.mark.parametrize(("lasts_s", "least"), [BRIEF, THOROUGH])
@pytest.mark.parametrize("mbit", [(100,), (100, 40)])
def test_two_hosts_fill_all_links_between_them(mbit, lasts_s, least, tmp_path):
    """One link, and two unequal interfaces per host, the second behind a switch: the share of what the wires carry."""
    graph = pair(mbit)
    best = pack(graph)
    size = bytes_of(lasts_s, best["rate"])
    with Fragment(graph) as links:
        seconds = links.seconds(best["plan"], size, tmp_path, REPEATS)
        sent = links.sent_bytes(links.gpus[0])
        rates = {b if a == links.gpus[0] else a: rate for (a, b), rate in links.links if links.gpus[0] in (a, b)}
    # Every element crosses each direction once.
    of_wire = size * 8 / seconds / (sum(mbit) * 1e6)
    result = {"mbit": mbit, "bytes": size, "seconds": seconds, "of_wire": of_wire, "of_payload": of_wire / PAYLOAD}
    write(f"plan_links_{len(mbit)}", result)
    assert least is None or of_wire >= least, result
    # Acknowledgements and headers take some, and the links' shares differ by many times that.
    for peer, rate in rates.items():
        assert sent[peer] / sum(sent.values()) == pytest.approx(rate / sum(mbit), abs=0.05), (sent, rates)


@pytest.mark.parametrize(("lasts_s", "least"), [BRIEF, THOROUGH])
@pytest.mark.parametrize("mbit", [(100, 40), (20, 100)])
def test_shares_follow_links_whose_rates_nobody_told(mbit, lasts_s, least, tmp_path):
    """A topology without rates: initially equal shares converge to those of the links, and stay."""
    known = pair(mbit)
    unknown = known | {"link": [{"ends": link["ends"]} for link in known["link"]]}
    plan = pack(unknown)["plan"]
    warm, size = (bytes_of(s, sum(mbit) / 8000) for s in (lasts_s / 6, lasts_s))
    with Fragment(known) as links:
        fixed, _ = links.times(plan, [warm], tmp_path, 1)
        found, _ = links.times(plan, [warm] * 6 + [size], tmp_path, REPEATS, sharing="same-order")
    seconds = statistics.median(found[-1])
    of_wire = size * 8 / seconds / (sum(mbit) * 1e6)
    result = {"mbit": mbit, "of_wire": of_wire, "of_payload": of_wire / PAYLOAD, "shares": links.shares}
    result |= {"seconds": found, "fixed_of_wire": warm * 8 / statistics.median(fixed[0]) / (sum(mbit) * 1e6)}
    write(f"plan_shares_{mbit[0]}_{mbit[1]}", result)
    assert least is None or result["of_payload"] >= least, result
    # Beyond the middle between equal shares, with which it begins, and those of the links.
    fast = max(mbit) / sum(mbit)
    assert max(links.shares) > (fast + 0.5) / 2, result
