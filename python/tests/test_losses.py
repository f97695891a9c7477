"""Plans for a degraded fabric: the removed parts, the report, and the plan put in place."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from netsum.plan import Losses, PlanError, Selection, calibrated, fastest, pack, replan, topology, without

NETSUM = Path(sys.executable).with_name("netsum")


@pytest.fixture
def graph() -> dict:
    return topology(Selection("dgx1v", ["0", "1", "2", "3"], ["nvlink"]))


def test_a_lost_link_costs_what_it_carried(graph):
    old = pack(graph)
    new = replan(old["plan"], graph, Losses(["gpu0-gpu3"]))
    assert new["lost"] == ["gpu0–gpu3 (400Gbit/s)"]
    assert new["before"] == pytest.approx(old["rate"]) and new["rate"] < old["rate"]
    assert new["optimal"] and new["seconds"] < 1
    # The optimum is the strength: six units of links between four GPUs less two.
    assert new["rate"] == pytest.approx(pack(without(graph, Losses(["gpu3-gpu0"]))[0])["rate"])


def test_trees_without_a_loss_are_kept():
    graph = topology(Selection("torus:4x4"))
    for collective in ["broadcast", "reduce", "allgather", "reduce-scatter", "allreduce"]:
        old = pack(graph, collective)["plan"]
        new = replan(old, graph, Losses(["gpu0-gpu1"]))
        anew = pack(without(graph, Losses(["gpu0-gpu1"]))[0], collective)
        assert (new["mended"], new["rate_units"], new["bound_units"]) == (True, anew["rate_units"], anew["bound_units"])
        assert 0 <= new["kept"] < 1
        again = replan(new["plan"], without(graph, Losses(["gpu0-gpu1"]))[0], Losses())
        assert again["kept"] == pytest.approx(1) and again["plan"]["rate_bps"] == new["plan"]["rate_bps"]


def test_the_root_of_a_broadcast_stays_the_same_gpu():
    graph = topology(Selection("torus:4x4"))
    old = pack(graph, "broadcast", 5)["plan"]
    new = replan(old, graph, Losses(["gpu2"]))["plan"]
    assert new["collective"] == {"kind": "broadcast", "root": 4} and new["vertices"][new["gpus"][4]] == "gpu5"
    with pytest.raises(PlanError, match="gpu5 is the root, and no plan can do without it"):
        replan(old, graph, Losses(["gpu5"]))


def test_a_degraded_link_keeps_what_it_has_left(graph):
    half = replan(pack(graph)["plan"], graph, Losses([], {"gpu0-gpu3": "200Gbit/s"}))
    none = replan(pack(graph)["plan"], graph, Losses(["gpu0-gpu3"]))
    assert half["lost"] == ["gpu0–gpu3 at 200Gbit/s in place of 400Gbit/s"]
    assert none["rate"] < half["rate"] < half["before"]


def test_a_lost_switch_takes_its_links_along():
    graph = topology(Selection("dgx2", ["0", "1", "2"]))
    switch = graph["switch"][0]["name"]
    left, words = without(graph, Losses([switch]))
    assert all(switch not in link["ends"] for link in left["link"]) and "with 3 links" in words[0]


def test_what_is_not_there_cannot_be_lost(graph):
    for word, problem in [
        ("gpu0-gpu9", '"gpu0-gpu9" is no GPU, switch or link'),
        ("gpu7", '"gpu7" is no GPU, switch or link'),
    ]:
        with pytest.raises(PlanError, match=problem):
            without(graph, Losses([word]))
    with pytest.raises(PlanError, match=r"without gpu0–gpu1 \(200Gbit/s\): "):
        alone = topology(Selection("dgx1v", ["0", "1", "4"], ["nvlink"]))
        replan(pack(alone)["plan"], alone, Losses(["gpu0-gpu1"]))


def test_the_command_puts_the_new_plan_in_place(graph, tmp_path):
    plan, fabric = tmp_path / "plan.json", tmp_path / "fabric.json"
    plan.write_text(json.dumps(pack(graph)["plan"]))
    fabric.write_text(json.dumps(graph))
    before = os.stat(plan).st_ino
    done = subprocess.run(
        [NETSUM, "plan", "replan", plan, fabric, "--lost", "gpu0-gpu3"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "lost: gpu0–gpu3 (400Gbit/s)" in done.stdout and "in place of" in done.stdout
    assert "mended in" in done.stdout and "% of the buffer keeps its trees" in done.stdout
    assert os.stat(plan).st_ino != before, "readers see the old file or the new one"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["fabric.json", "plan.json"]
    ways = [way for flow in json.loads(plan.read_text())["flows"] for way in flow["up"] + flow["down"]]
    assert [0, 3] not in ways and [3, 0] not in ways
    wrong = subprocess.run(
        [NETSUM, "plan", "replan", plan, fabric, "--degraded", "gpu0"], capture_output=True, text=True
    )
    assert wrong.returncode == 1 and "write LINK=RATE" in wrong.stderr


def test_measured_links_change_what_is_fastest(graph):
    ends = {tuple(link["ends"]) for link in graph["link"]}
    quick, count = calibrated(graph, {pair: (1e-6, 10e9) for pair in ends})
    assert count == len(graph["link"]) and {link["latency"] for link in quick["link"]} == {"1000ns"}
    slow, _ = calibrated(graph, {pair: (5e-3, 10e9) for pair in ends})
    assert fastest(slow, 4096)[1] > fastest(quick, 4096)[1]
    assert fastest(quick, 1e9)[0] == "exact"
    # Six equal links between four GPUs: strength 2.
    assert fastest(quick, 1e9)[1] == pytest.approx(1e9 * 8 / (2 * 10e9), rel=0.05)
