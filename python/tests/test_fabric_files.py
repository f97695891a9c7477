"""Fabric files parsed by the command line, and a ring's traffic on their links."""

import pytest

from netsum.demo.meter import LinkMeter
from netsum.fabric.builtin import demo_toml
from netsum.fabric.description import Description, parts
from netsum.fabric.errors import FabricError
from netsum.fabric.ring import ring_link_bytes, shortest_paths
from netsum.fabric.sockets import split_address


@pytest.fixture
def fabric(tmp_path):
    path = tmp_path / "demo.toml"
    path.write_text(demo_toml(77))
    return Description.read(path)


def test_the_demo_fabric_reads_back(fabric):
    assert fabric.name == "demo"
    assert [host.name for host in fabric.hosts] == ["h0", "h1", "h2", "h3"]
    assert [switch.name for switch in fabric.switches] == ["rack0", "rack1", "spine0", "spine1"]
    assert fabric.neighbours("rack0") == ["h0", "h1", "spine0", "spine1"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name = ", "cannot be read as TOML"),
        ("", "needs name"),
        ('name = "../up"\ncontroller = "c:1"', "names a folder"),
        ('name = "a"', "needs controller"),
        ('name = "a"\ncontroller = "c:1"\nhost = 3', r"\[\[host\]\]"),
        ('name = "a"\ncontroller = "c:1"\n[[host]]\nname = "h"', "host 0 needs address"),
        ('name = "a"\ncontroller = "c:1"\n[[link]]\nends = ["h"]', "link 0 needs ends"),
    ],
)
def test_a_bad_file_is_named(tmp_path, text, complaint):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(FabricError, match=complaint) as error:
        Description.read(path)
    assert str(path) in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FabricError, match=r"none\.toml: no such file"):
        Description.read(tmp_path / "none.toml")


@pytest.mark.parametrize("bad", ["127.0.0.1", ":1", "a:b", "a:70000"])
def test_a_bad_address_is_named(bad):
    with pytest.raises(FabricError, match="not an address"):
        split_address(bad)


def test_parts_are_counted_in_words(fabric, tmp_path):
    assert parts(fabric) == "4 switches, 2 servers"
    path = tmp_path / "small.toml"
    path.write_text('name = "a"\ncontroller = "c:1"\n[[switch]]\nname = "s"\naddress = "127.0.0.1:1"\n')
    assert parts(Description.read(path)) == "1 switch"


def test_ring_over_the_demo_fabric(fabric):
    # Four ranks: each of the edges 0-1, 1-2, 2-3, 3-0 carries 1.5 B. A host link is in two edges; edges 1-2 and 3-0
    # each cross two racks' uplinks, shared by two spines.
    found = ring_link_bytes(fabric, ["h0", "h1", "h2", "h3"], 1000)
    assert found["h0-rack0"] == 3000
    assert found["rack0-spine0"] == found["rack1-spine1"] == 1500
    assert sum(found.values()) == 4 * 3000 + 4 * 1500


def test_ring_within_one_host_uses_no_link(fabric):
    assert set(ring_link_bytes(fabric, ["h0", "h0"], 1000).values()) == {0.0}
    assert set(ring_link_bytes(fabric, ["h0"], 1000).values()) == {0.0}


def test_paths(fabric):
    assert shortest_paths(fabric, "h0", "h1") == [["h0", "rack0", "h1"]]
    assert len(shortest_paths(fabric, "h0", "h2")) == 2
    with pytest.raises(ValueError, match="no path from h0 to nowhere"):
        shortest_paths(fabric, "h0", "nowhere")


ADDRESSES = {
    "h0": "127.77.1.1",
    "h1": "127.77.1.2",
    "rack0": "127.77.2.1",
    "rack1": "127.77.2.2",
    "spine0": "127.77.2.3",
}


def status(switch: str, port: int = 7701, **bytes_by_neighbour: int) -> dict:
    neighbours = [
        {"name": "", "address": f"{ADDRESSES[name]}:{port}", "rx_bytes": count, "tx_bytes": 0}
        for name, count in bytes_by_neighbour.items()
    ]
    return {"switches": [{"name": switch, "neighbours": neighbours}]}


def test_the_meter_counts_from_its_first_reading_and_across_restarts(fabric):
    meter = LinkMeter(fabric)
    meter.read(status("rack0", h0=500))
    meter.read(status("rack0", h0=700, h1=40))
    meter.read(status("rack0"))  # dead: its neighbours are not known
    meter.read(status("rack0", h0=30))
    found = meter.link_bytes()
    assert found["h0-rack0"] == 230
    assert found["h1-rack0"] == 40


def test_the_meter_believes_the_end_that_saw_more(fabric):
    meter = LinkMeter(fabric)
    for reading in (0, 900):
        meter.read(status("rack0", spine0=reading))
        meter.read(status("spine0", rack0=reading // 3))
    assert meter.link_bytes()["rack0-spine0"] == 900


def test_the_meter_counts_what_racks_send_each_other_on_the_paths_between_them(fabric):
    meter = LinkMeter(fabric)
    for reading in (0, 900):
        meter.read(status("rack0", rack1=reading, h0=reading))
        meter.read(status("rack1", rack0=reading))
        meter.read(status("server0", rack0=reading))  # on h0, to whose link rack0 has counted it
    found = meter.link_bytes()
    assert found["h0-rack0"] == 900
    assert [found[f"rack{rack}-spine{spine}"] for rack in (0, 1) for spine in (0, 1)] == [450] * 4


def test_the_meter_follows_counters_from_socket_to_socket(fabric):
    meter = LinkMeter(fabric)
    meter.read(status("rack0"))
    meter.read(status("rack0", port=5000, h0=100))
    # The job has ended: its socket's counters are folded into those of port 0.
    meter.read(status("rack0", port=0, h0=100))
    assert meter.link_bytes()["h0-rack0"] == 100
