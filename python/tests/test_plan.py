"""`netsum plan`: topologies from files and by name, and refusals."""

import json
import os
import re
import subprocess
import sys

import pytest

from netsum import plan as planner
from netsum.plan import PlanError, Selection, topology


def plan(*arguments: str, code: int = 0) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from netsum.cli import main; main()", "plan", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended


def test_show_a_file_that_the_command_wrote(tmp_path):
    written = plan("show", "dgx1v", "--gpus", "0,1,4", "--links", "nvlink", "--json").stdout
    assert len(json.loads(written)["link"]) == 2
    file = tmp_path / "three.json"
    file.write_text(written)
    assert topology(Selection(str(file))) == json.loads(written)
    assert "3 GPUs, 0 switches, 2 links" in plan("show", str(file)).stdout


@pytest.mark.parametrize(
    ("source", "gpus", "says"),
    [
        ("dgx9", [], "no such machine"),
        ("dgx1v", ["0", "0"], "named twice"),
        ("missing.toml", [], "cannot be read"),
    ],
)
def test_what_cannot_be_planned_for(source, gpus, says):
    with pytest.raises(PlanError, match=says):
        topology(Selection(source, gpus))


def test_the_command_says_why():
    assert "no such machine" in plan("show", "dgx9", code=1).stderr


def test_pack_verify_and_other_forms(tmp_path):
    file, program, picture = tmp_path / "plan.json", tmp_path / "plan.xml", tmp_path / "plan.svg"
    fragment = ["dgx1v", "--gpus", "0,1,2,3,4,6", "--links", "nvlink"]
    shown = plan("pack", *fragment, "--out", str(file)).stdout
    assert "allreduce: 50 GB/s = bound 50 GB/s" in shown and "rings: 30 GB/s" in shown
    assert "cross between the 3 parts" in shown
    assert "right" in plan("verify", str(file), *fragment).stdout
    plan("pack", *fragment, "--out", str(program))
    assert "right" in plan("verify", str(program)).stdout
    steps = tmp_path / "plan.mscclpp.json"
    plan("pack", *fragment, "--out", str(steps))
    assert "right" in plan("verify", str(steps)).stdout
    plan("pack", *fragment, "--out", str(picture))
    assert picture.read_text().startswith("<svg")


def test_an_all_to_all_with_its_proof(tmp_path):
    file, report, picture = tmp_path / "plan.json", tmp_path / "report.json", tmp_path / "plan.svg"
    shown = plan("pack", "torus:3x4", "--collective", "alltoall", "--out", str(file)).stdout
    # 12 GPUs; the 20 hops to the others include 12 along rings of 4, whose two links carry 100 GB/s.
    assert "alltoall: 100 GB/s = bound 100 GB/s" in shown and "blocks together travel" in shown
    report.write_text(plan("pack", "torus:3x4", "--collective", "alltoall", "--json").stdout)
    proof = ["--proof", str(report)]
    assert "proven: no plan exceeds 100 GB/s; this one is the best" in plan(
        "verify", str(file), "torus:3x4", *proof
    ).stdout.replace("\n", " ")
    slower = json.loads(file.read_text())
    slower["rate_bps"] = "400000000000"
    file.write_text(json.dumps(slower))
    assert "50 % below it" in plan("verify", str(file), "torus:3x4", *proof).stdout
    forged = json.loads(report.read_text())
    forged["certificate"]["arcs"][0]["length"] = "-1"
    report.write_text(json.dumps(forged))
    assert "is no length of" in plan("verify", str(file), "torus:3x4", *proof, code=1).stderr
    plan("pack", "torus:3x4", "--collective", "alltoall", "--out", str(picture))
    assert picture.read_text().startswith("<svg")
    refused = plan("pack", "torus:3x4", "--collective", "alltoall", "--out", str(tmp_path / "plan.xml"), code=1)
    assert "an all-to-all has no such form" in refused.stderr.replace("\n", " ")
    report.write_text(plan("pack", "torus:3x4", "--json").stdout)
    assert "only proofs of an all-to-all" in plan("verify", str(file), "torus:3x4", *proof, code=1).stderr


def test_links_of_unequal_rates(tmp_path):
    fabric, file = tmp_path / "unequal.json", tmp_path / "plan.json"
    rates = [112, 296, 144, 152, 64, 40, 248, 176, 8, 200, 96, 136, 280]
    pairs = [(a, b) for a in range(6) for b in range(a + 1, 6) if (a, b) not in ((1, 4), (2, 5))]
    graph = {
        "name": "unequal",
        "gpu": [{"name": f"gpu{rank}"} for rank in range(6)],
        "link": [
            {"ends": [f"gpu{a}", f"gpu{b}"], "rate": f"{rate}Gbit/s"} for (a, b), rate in zip(pairs, rates, strict=True)
        ],
    }
    fabric.write_text(json.dumps(graph))
    for collective in planner.COLLECTIVES:
        shown = plan("pack", str(fabric), "--collective", collective, "-o", str(file)).stdout
        assert " = bound " in shown
        assert "right" in plan("verify", str(file), str(fabric)).stdout


def test_shares_that_are_written_can_be_read(tmp_path):
    file = tmp_path / "plan.json"
    plan("pack", "a100x2", "--collective", "allgather", "-o", str(file))
    assert "right" in plan("verify", str(file), "a100x2").stdout


def test_a_search_within_a_time():
    graph = topology(Selection("torus:8x8"))
    found = planner.pack(graph, "allgather", seconds=0.001, progress=lambda seconds, reached: seconds < 600)
    assert 0 < found["rate"] <= found["bound"] and found["gap"] >= 0
    assert planner.verify(json.dumps(found["plan"]), graph) is None
    with pytest.raises(PlanError, match="give more than 0"):
        planner.pack(graph, seconds=-1)


def test_exports_say_what_they_lose(tmp_path):
    for name, words in (("plan.xml", "for RCCL: 100.0 %"), ("plan.mscclpp.json", "for MSCCL++: 100.0 %")):
        said = plan("pack", "dgx2", "--collective", "reduce-scatter", "-o", str(tmp_path / name))
        assert words in said.stderr
        assert "right" in plan("verify", str(tmp_path / name)).stdout


def test_pictures_as_pixels(tmp_path, monkeypatch):
    fragment = ["pack", "dgx1v", "--gpus", "0,1,4", "--links", "nvlink", "-o"]
    with monkeypatch.context() as without:
        (tmp_path / "resvg_py.py").write_text("raise ImportError")
        without.setenv("PYTHONPATH", str(tmp_path))
        assert "pip install 'netsum[pictures]'" in plan(*fragment, str(tmp_path / "plan.png"), code=1).stderr
        assert not (tmp_path / "plan.png").exists()
    pytest.importorskip("resvg_py", reason="resvg-py is not installed")
    plan(*fragment, str(tmp_path / "plan.png"))
    plan("ocs", "6", "3", "1", "4", "--svg", str(tmp_path / "ocs.png"))
    for name in ("plan.png", "ocs.png"):
        header = (tmp_path / name).read_bytes()[:24]
        assert header[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(header[16:20]) == 1600


def test_servers_in_three_phases(tmp_path):
    file = tmp_path / "plan.json"
    shown = plan("pack", "a100x2", "--method", "three-phase", "-o", str(file)).stdout
    assert "171.429 GB/s < bound 173.333 GB/s" in shown and "rings in servers and between them" in shown
    assert "right" in plan("verify", str(file), "a100x2").stdout
    assert "all GPUs are in one server" in plan("pack", "dgx1v", "--method", "three-phase", code=1).stderr


def test_a_wrong_plan_is_refused(tmp_path):
    file = tmp_path / "plan.json"
    plan("pack", "dgx1p", "--links", "nvlink", "--out", str(file))
    wrong = json.loads(file.read_text())
    wrong["flows"][0]["down"].pop()
    file.write_text(json.dumps(wrong))
    error = plan("verify", str(file), "dgx1p", "--links", "nvlink", code=1).stderr
    assert "should be" in error or "nobody has written" in error


def test_the_front_is_ordered():
    points = json.loads(plan("pack", "dgx2", "--pareto", "--json").stdout)
    rates = [point["rate"] for point in points]
    assert rates == sorted(rates, reverse=True) and rates[0] == points[0]["bound"]


def test_the_front_says_what_is_fastest_at_which_size():
    shown = plan("pack", "torus:4x4", "--pareto").stdout
    assert "fastest" in shown and re.search(r"from \d+ [KMG]?i?B", shown), shown
    found = planner.front_by_size(topology(Selection("torus:4x4")))
    sizes = [span["from_bytes"] for span in found["fastest"]]
    assert sizes[0] == 1 and sizes == sorted(set(sizes))
    heights = [found["points"][span["point"]]["height"] for span in found["fastest"]]
    assert heights[0] == min(point["height"] for point in found["points"])
    # Large buffers take the plan with the best rate.
    assert found["fastest"][-1]["point"] == 0
    assert all(span["seconds"] <= span["of_first"] for span in found["fastest"])


def test_a_regular_fabric_is_planned_for_one_rank(tmp_path):
    file = tmp_path / "plan.json"
    shown = plan("symmetric", "h100x16", "--collective", "allgather", "--out", str(file)).stdout
    assert "which no plan exceeds" in shown and "8 × 16 automorphisms" in shown, shown
    assert "no plan is faster" in plan("verify", str(file), "h100x16").stdout
    wrong = json.loads(file.read_text())
    wrong["automorphisms"][0]["to"][:2] = reversed(wrong["automorphisms"][0]["to"][:2])
    file.write_text(json.dumps(wrong))
    assert "automorphism" in plan("verify", str(file), "h100x16", code=1).stderr
    assert "look alike" in plan("symmetric", "dgx1v", code=1).stderr


def test_groups_are_planned_together(tmp_path):
    file = tmp_path / "plan.json"
    words = ["--group", "allreduce:64MiB:0-3;4-7", "--group", "allgather:16MiB:0-4/4;1,5"]
    shown = plan("groups", "dgx1v", *words, "--out", str(file)).stdout
    assert "all 4 end after" in shown and "which no plan exceeds" in shown, shown
    assert "no plan is faster" in plan("verify", str(file), "dgx1v").stdout
    found = json.loads(file.read_text())
    assert [len(group["plan"]["gpus"]) for group in found["groups"]] == [4, 4, 2, 2]
    for wrong, says in [
        ("allreduce:64MiB", "COLLECTIVE:BYTES:RANKS"),
        ("gossip:1MiB:0-3", "'gossip' is unknown"),
        ("allreduce:64MiB:0-x", "is no list of ranks"),
        ("allreduce:1MiB:0,99", "99 is no rank of 8 GPUs"),
    ]:
        assert says in plan("groups", "dgx1v", "--group", wrong, code=1).stderr


def test_classes_of_a_box():
    rows = json.loads(plan("classes", "dgx1p", "--links", "nvlink", "--json").stdout)
    assert len(rows) == 14 and rows[-1]["broadcast"] == 80.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["dgx1v", "--collective", "gossip"], "collective 'gossip' is unknown"),
        (["dgx1v", "--collective", "broadcast", "--root", "9"], "root 9 is no rank of 8"),
        (["dgx1v", "--method", "magic"], "use exact, blink, three-phase or rings"),
        (["dgx1v", "--gpus", "1,4", "--links", "nvlink"], "disconnected"),
    ],
)
def test_requests_that_cannot_be(arguments, says):
    assert says in plan("pack", *arguments, code=1).stderr


def test_explain_says_when_aggregation_helps():
    command = [sys.executable, "-c", "from netsum.cli import main; main()", "explain"]
    for machine, says in [
        ("h100", "1.75 times"),
        ("dgx2", "aggregation cannot help"),
        ("dgx2", "fastest by size: everybody to everybody from 1 B, one hop from "),
    ]:
        ended = subprocess.run([*command, machine], capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0 and says in ended.stdout, ended.stdout + ended.stderr


def test_kinds_of_links_side_by_side(tmp_path):
    file = tmp_path / "plan.json"
    hybrid = ("pack", "dgx1v", "--setup", "pcie=0.0001", "--out", str(file), "--json")
    large = json.loads(plan(*hybrid, "--size", "1GiB").stdout)
    assert [part["kind"] for part in large["parts"]] == ["nvlink", "pcie"]
    assert large["seconds"] < large["alone_seconds"]
    assert "right" in plan("verify", str(file), "dgx1v").stdout
    assert json.loads(plan(*hybrid, "--size", "1MiB").stdout)["parts"][1]["bytes"] == 0
    assert "no link here is of kind" in plan("pack", "dgx1v", "--size", "1MiB", "--setup", "nic=1", code=1).stderr
    assert "give --size as well" in plan("pack", "dgx1v", "--setup", "pcie=1", code=1).stderr
    assert "'1 Gi' is not a size" in plan("pack", "dgx1v", "--size", "1 Gi", code=1).stderr
    assert "write kind and seconds" in plan("pack", "dgx1v", "--size", "1MiB", "--setup", "pcie=fast", code=1).stderr


def test_explain_without_a_topology_prints_the_hosts_algorithms(tmp_path):
    def explain(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", "from netsum.cli import main; main()", "explain", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment})

    links = ("--ranks", "4", "--latency", "0.00003", "--rate", "1.25e9", "--sizes", "8B,16MiB")
    given = explain(*links, "--json")
    choices = {(c["operation"], c["bytes"]): c for c in json.loads(given.stdout)["choices"]}
    assert choices["allreduce", 8]["chosen"] == "one-hop"
    assert choices["allreduce", 16 << 20]["chosen"] == "shares"
    assert {cost["name"]: cost["seconds"] for cost in choices["allreduce", 8]["costs"]}["ring"] is None
    shown = explain(*links, COLUMNS="80").stdout
    assert "* chosen: the least cost" in shown and "not possible here: shared-memory, ring, hierarchical" in shown
    # All of it fits into a terminal of 80 columns.
    assert re.search(r"│ 16 MiB +│ +40295\.3 │ +20192\.7 \* │", shown) and "…" not in shown
    assert "ring" in explain(*links, "--dtype", "int32").stdout
    measured = json.loads(explain("--sizes", "8B", "--json", NETSUM_SHARED_MEMORY="off").stdout)
    assert measured["link"]["bytes_per_s"] != 1.25e9 and not measured["link"]["shared_memory"]
    together = json.loads(explain("--sizes", "8B", "--json").stdout)
    assert together["choices"][0]["why"] == "all ranks share memory"
    assert "dtype foo" in explain(*links, "--dtype", "foo").stderr
    assert "--rate -1" in explain("--rate", "-1").stderr


def test_explain_times_the_operations_that_switches_do(fabric):
    command = [sys.executable, "-c", "from netsum.cli import main; main()", "explain", "--ranks", "2"]
    command += ["--sizes", "8B,64KiB"]
    environment = {**os.environ, **fabric.environment()}
    run = [
        subprocess.run([*command, *more], capture_output=True, text=True, env=environment) for more in (["--json"], [])
    ]
    assert [ended.returncode for ended in run] == [0, 0], run[0].stderr + run[1].stderr
    times = {(c["operation"], c["bytes"]): c["switches_s"] for c in json.loads(run[0].stdout)["choices"]}
    assert times["allreduce", 64 << 10] > 0 and times["allreduce", 8] is None and times["barrier", 8] is None
    assert "switches do it" in run[1].stdout and re.search(r"[\d.]+ \*", run[1].stdout)
