"""Random networks are discovered as they are, and faults that are planted in them are named. NETSUM_CLUSTER=1: 50."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
import threading

import pytest

import random_topology
from namespaces import GUARD_S, namespace, run
from netsum.discovery import collect, compare, paths, probe, survey
from netsum.discovery.collect import Way
from netsum.fabric.description import Description
from netsum.fabric.drawing import Drawing, parse_rate
from random_topology import MTU, RandomTopology
from ranks import ask

CLUSTER = bool(os.environ.get("NETSUM_CLUSTER"))
SEEDS = range(50 if CLUSTER else 3)
CONTROLLER = "10.78.0.1:7700"

pytestmark = pytest.mark.skipif(random_topology.why_not() is not None, reason=str(random_topology.why_not()))


class Forks(Way):
    """Asks machines by forks of this process, where a new interpreter would take most of the time."""

    def __init__(self, network: RandomTopology) -> None:
        super().__init__()
        object.__setattr__(self, "network", network)
        object.__setattr__(self, "lock", threading.Lock())

    def ask(self, machine: str, *words: str) -> object:
        def answer() -> str:
            if not words:
                return json.dumps(
                    dataclasses.asdict(probe.look(machine, self.network.lldp_socket.replace("{}", machine)))
                )
            values = [words[i + 1] for i in range(0, len(words), 2) if words[i] == "--trace"]
            source, flows = words[words.index("--source") + 1], int(words[words.index("--flows") + 1])
            found = [paths.trace(each, source, flow) for each in values for flow in range(flows)]
            return json.dumps({"traces": [dataclasses.asdict(each) for each in found]})

        with self.lock:
            return json.loads(ask(namespace(machine), answer))


def discover(network: RandomTopology, probes: bool = True) -> tuple[survey.Survey, Drawing]:
    way = Forks(network)
    known, silent = collect.machines(way, [network.hosts[0]])
    assert silent == []
    found = survey.survey(known)
    if probes:
        survey.look_at_paths(found, collect.traces(way, found))
    return found, found.drawing("random", CONTROLLER)


def expected(network: RandomTopology) -> tuple[set, set]:
    """Nodes and links as they were made."""
    nodes = {
        (name, "switch" if name in network.switches else "host", network.address[name]) for name in network.address
    }
    return nodes, {(frozenset((cable.a, cable.b)), cable.rate_mbps * 10**6) for cable in network.cables}


def drawn(drawing: Drawing) -> tuple[set, set]:
    nodes = {(node.name, node.kind, node.address) for node in drawing.nodes}
    return nodes, {(frozenset(link.ends), parse_rate(link.rate)) for link in drawing.links}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_network_comes_out_exactly(seed):
    with RandomTopology(seed) as network:
        found, drawing = discover(network)
        assert drawn(drawing) == expected(network)
        assert found.findings == []


@pytest.fixture(scope="module")
def network():
    """Two switches, three hosts at least: enough for every fault."""
    seed = next(seed for seed in range(1000) if is_large(seed))
    with RandomTopology(seed) as network:
        yield network


def is_large(seed: int) -> bool:
    drawn = RandomTopology(seed)
    drawn.folder.rmdir()
    below = {host: cable for host in drawn.hosts for cable in drawn.cables if host in (cable.a, cable.b)}
    switches = {other(cable, host) for host, cable in below.items()}
    return len(drawn.hosts) >= 3 and len(switches) >= 2 and len(drawn.cables) > len(drawn.hosts)


def other(cable: random_topology.Cable, end: str) -> str:
    return cable.b if cable.a == end else cable.a


@pytest.fixture
def file(network, tmp_path):
    """The fabric file of the network before a fault."""
    _, drawing = discover(network, probes=False)
    path = tmp_path / "fabric.toml"
    path.write_text(drawing.toml())
    return Description.read(path)


def named(file: Description, network: RandomTopology, probes: bool = False) -> list[tuple[str, str]]:
    """What discovery says about the network now."""
    found, drawing = discover(network, probes)
    return [(each.kind, each.text) for each in [*found.findings, *compare.compare(file, found, drawing)]]


def test_nothing_is_said_of_a_network_that_is_as_its_file(network, file):
    assert named(file, network, probes=True) == []


def test_a_wrong_rate_is_named(network, file):
    cable = network.cables[0]
    network.shape(cable.a, cable.device_a, cable.rate_mbps // 2)
    try:
        said = named(file, network)
        pair = " - ".join(sorted((cable.a, cable.b)))
        assert {kind for kind, _ in said} == {"rate"}
        assert any(text.startswith(f"the link {pair} has {cable.rate_mbps // 2}Mbit/s") for _, text in said)
        assert any(f"{cable.a} ({cable.device_a})" in text for _, text in said)
    finally:
        network.shape(cable.a, cable.device_a, cable.rate_mbps)


def test_a_wrong_mtu_is_named(network, file):
    cable = network.cables[0]
    change = [*network.inside(cable.b), "ip", "link", "set", cable.device_b, "mtu"]
    run(*change, "1400")
    try:
        text = f"{cable.b} ({cable.device_b}) has an MTU of 1400, most of the fabric has {MTU}"
        assert named(file, network) == [("mtu", text)]
    finally:
        run(*change, str(MTU))


@pytest.mark.skipif(random_topology.why_no_ecn() is not None, reason=str(random_topology.why_no_ecn()))
def test_a_machine_that_clears_ecn_is_named(network, file):
    cable = next(each for each in network.cables if each.a in network.hosts or each.b in network.hosts)
    switch, device = (cable.a, cable.device_a) if cable.a in network.switches else (cable.b, cable.device_b)
    rule = ["iptables", "-t", "mangle", "-{}", "POSTROUTING", "-o", device, "-j", "TOS", "--set-tos", "0/0x03"]
    run(*network.inside(switch), *[word.replace("{}", "A") for word in rule])
    try:
        said = named(file, network, probes=True)
        assert [kind for kind, _ in said] == ["ecn"]
        assert said[0][1].startswith(f"ECN bits are cleared between {switch} and {other(cable, switch)} ")
    finally:
        run(*network.inside(switch), *[word.replace("{}", "D") for word in rule])


def test_an_interface_that_is_down_is_named(network, file):
    # Between switches, so that every machine is still found.
    cable = next(each for each in network.cables if each.a in network.hosts or each.b in network.hosts)
    node, device = (cable.a, cable.device_a) if cable.a in network.switches else (cable.b, cable.device_b)
    run(*network.inside(node), "ip", "link", "set", device, "down")
    host = other(cable, node)
    way = Forks(network)
    try:
        known, _ = collect.machines(way, list(network.address))
        found = survey.survey(known)
        said = [(each.kind, each.text) for each in found.findings]
        said += [(each.kind, each.text) for each in compare.compare(file, found, found.drawing("random", CONTROLLER))]
        assert {kind for kind, _ in said} == {"down"}
        pair = " - ".join(sorted((node, host)))
        assert any(t.startswith(f"the link {pair} is gone") and f"{node} ({device}) is disabled" in t for _, t in said)
        assert any(t.startswith(f"{host} (") and "no carrier" in t for _, t in said)
    finally:
        run(*network.inside(node), "ip", "link", "set", device, "up")
        network.restore_routes()
        network.wait_heard()


def test_swapped_cables_are_named(file, network):
    first, second = network.two_host_cables()
    network.swap(first, second)
    try:
        said = named(file, network)
        assert [kind for kind, _ in said] == ["cable"], said
        assert said[0][1].startswith("two cables are swapped: ")
        for cable in (first, second):
            assert " - ".join(sorted((cable.a, cable.b))) in said[0][1]
    finally:
        network.swap(first, second)


def test_the_command_writes_a_file_and_says_later_what_is_wrong(network, tmp_path):
    out = tmp_path / "fabric.toml"
    main = f"{sys.executable} -c 'from netsum.cli import main; main()'"
    agent = f"{main} fabric probe --name {{}} --lldp-socket {network.lldp_socket}"
    command = [sys.executable, "-c", "from netsum.cli import main; main()", "fabric", "discover", network.hosts[0]]
    more = ["--via", network.via, "--agent", agent, "--controller", CONTROLLER, "--out", str(out), "--no-probes"]

    def again() -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more, "--json"], capture_output=True, text=True, timeout=GUARD_S)

    made = again()
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["written"]
    before = out.read_text()
    cable = random.Random(1).choice(network.cables)
    network.shape(cable.a, cable.device_a, cable.rate_mbps // 2)
    try:
        changed = again()
        assert changed.returncode == 1
        assert {each["kind"] for each in json.loads(changed.stdout)["findings"]} == {"rate"}
        assert out.read_text() == before
    finally:
        network.shape(cable.a, cable.device_a, cable.rate_mbps)
