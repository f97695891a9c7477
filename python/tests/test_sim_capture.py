"""The simulator's pcapng files, read by tshark with the dissector: the same packets as the run's tables count."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from test_tools import packets, tshark

from netsum import sim
from netsum.sim.errors import SimError

WORKERS, STEPS, BYTES = 4, 2, 40_000
CONFIG = {
    "duration": "1ms",
    "drain": "1s",
    "fabric": {"kind": "leaf-spine", "racks": 2, "hosts_per_rack": 2, "spines": 2},
    "jobs": [{"compute": "10us", "bytes": BYTES, "workers": WORKERS, "steps": STEPS}],
}
needs_tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason="no tshark; make setup-wireshark installs it")


@needs_tshark
@pytest.mark.parametrize("protocol", ["panama", "atp", "switchml"])
def test_every_packet_of_a_run_is_explained(protocol: str, tmp_path: Path) -> None:
    file = tmp_path / "run.pcapng"
    config = CONFIG | {"scheme": {"kind": protocol}}
    sim.run(config, tmp_path / "with", pcapng=file)
    plain = sim.run(config, tmp_path / "without", threads=2)
    # The capture changes nothing.
    for table in ("steps.csv", "links.csv"):
        assert (tmp_path / "with" / table).read_text() == (plain.folder / table).read_text()
    names = ("netsum.protocol", "netsum.kind", "ip.src", "ip.dst", "frame.interface_name", "ip.dsfield.ecn")
    found = packets(file, *names, home=tmp_path, keys="")
    assert {packet[0] for packet in found} == {protocol}
    # Every packet is recorded at the node to which it went.
    interfaces: dict[str, set[str]] = {}
    for packet in found:
        interfaces.setdefault(packet[3], set()).add(packet[4])
    assert all(len(each) == 1 for each in interfaces.values())
    hosts = [address for address, (name,) in interfaces.items() if name.startswith("h")]
    assert len(hosts) >= WORKERS
    kinds = Counter(packet[1] for packet in found)
    assert kinds["result"] > 0 and kinds["contribution"] > 0
    assert {packet[5] for packet in found} <= {"2", "3"}, "ECT(0), or CE"
    trees = tshark(file, "-q", "-z", "netsum,trees", home=tmp_path).splitlines()
    assert trees[-1] == "malformed packets: 0"
    for row in trees[1:-1]:
        assert int(row.split()[4]) == int(row.split()[5]) > 0, row
    if protocol == "panama":
        # Each rank sends each fragment once on this fabric, where nothing is lost, and gets its result once.
        sent = sum(packet[1] == "contribution" for packet in found)
        assert sent == sum(packet[1] == "result" and packet[3] in hosts for packet in found)
        assert sent % WORKERS == 0


def test_what_cannot_be_captured_is_said(tmp_path: Path) -> None:
    with pytest.raises(SimError, match="cannot write the packets into"):
        sim.run(CONFIG, tmp_path / "out", pcapng=tmp_path / "none" / "run.pcapng")
    fluid = {key: value for key, value in CONFIG.items() if key != "jobs"}
    fluid |= {"scheme": {"kind": "fluid"}, "flows": [{"kind": "poisson", "load": 0.3, "sizes": "web-search"}]}
    with pytest.raises(SimError, match="has no packets"):
        sim.run(fluid, tmp_path / "out", pcapng=tmp_path / "run.pcapng")
