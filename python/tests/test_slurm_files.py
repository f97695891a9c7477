"""Slurm's files: lists of names, nodes, topology; errors name file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from netsum.fabric.description import Description
from netsum.fabric.errors import FabricError
from netsum.fabric.hostlists import expand
from netsum.fabric.slurm import import_slurm

NODES = """
ClusterName=lab
NodeName=DEFAULT CPUs=64
NodeName=n[0-3] NodeAddr=10.0.1.[10-13] \\
    State=UNKNOWN
NodeName=gpu1 NodeAddr=10.0.1.99   # a comment
"""
TOPOLOGY = """
SwitchName=rack0 Nodes=n[0-1]
SwitchName=rack1 Nodes=n[2-3],gpu1
SwitchName=spine[0-1] Switches=rack[0-1] LinkSpeed=100
"""
ADDRESSES = {"rack0": "10.0.2.1", "rack1": "10.0.2.2", "spine0": "10.0.3.1", "spine1": "10.0.3.2"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("n[0-2]", ["n0", "n1", "n2"]),
        ("n[08-10],m", ["n08", "n09", "n10", "m"]),
        ("r[0-1]n[0,5]x", ["r0n0x", "r0n5x", "r1n0x", "r1n5x"]),
        ("", []),
    ],
)
def test_lists_of_names(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["n[0-", "n]0[", "n[a-b]", "n[3-1]", "n[0-99999]", "n[[0]]", "a[0-999]b[0-999]"])
def test_lists_that_are_no_lists_are_quoted(text: str) -> None:
    with pytest.raises(FabricError) as error:
        expand(text)
    assert text[:4] in str(error.value)


def written(folder: Path, nodes: str = NODES, topology: str = TOPOLOGY) -> tuple[Path, Path]:
    (folder / "slurm.conf").write_text(nodes)
    (folder / "topology.conf").write_text(topology)
    return folder / "slurm.conf", folder / "topology.conf"


def test_files_become_a_fabric(tmp_path: Path) -> None:
    files = written(tmp_path)
    drawing = import_slurm("lab", "10.0.0.1:7700", *files, ADDRESSES, "25Gbit/s", "1GiB")
    (tmp_path / "fabric.toml").write_text(drawing.toml())
    made = Description.read(tmp_path / "fabric.toml")
    assert [(host.name, host.address) for host in made.hosts][-1] == ("gpu1", "10.0.1.99")
    assert [host.address for host in made.hosts][:4] == [f"10.0.1.{number}" for number in range(10, 14)]
    assert {switch.name: switch.address for switch in made.switches} == {k: f"{v}:7701" for k, v in ADDRESSES.items()}
    assert len(made.links) == 5 + 4
    assert {link.rate for link in made.links} == {"25Gbit/s"}
    assert sorted(made.neighbours("spine1")) == ["rack0", "rack1"]


@pytest.mark.parametrize(
    ("nodes", "topology", "message"),
    [
        (NODES, "SwitchName=a Nodes=n9", "has n9, but no NodeName of"),
        (NODES, "Switch=a", r"topology.conf:1: expected SwitchName="),
        (NODES, "SwitchName=a Nodes=n0\nSwitchName=a Nodes=n1", "topology.conf:2: switch a has two lines"),
        (NODES, "SwitchName=a Switches=b", "switch a has b, which no line describes"),
        ("NodeName=n[0-1] NodeAddr=10.0.0.1", "SwitchName=a Nodes=n0", "slurm.conf:1: 2 nodes have 1 addresses"),
        (NODES, "# nothing", "no switch is there"),
        (NODES, "SwitchName=no-such-name.invalid Nodes=n0", "has no address.*--address no-such-name.invalid=IP"),
    ],
)
def test_wrong_files_are_named(nodes: str, topology: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(FabricError, match=message):
        import_slurm("lab", "10.0.0.1:7700", *written(tmp_path, nodes, topology), {"a": "10.0.2.9"}, "1Gbit/s", "1MiB")
