"""`netsum plan ocs…` and `netsum.ocs`: figures, files, refusals."""

import json
import subprocess
import sys
from fractions import Fraction
from xml.etree import ElementTree

import pytest

from netsum.ocs import Ocs, OcsError, answer, check, compare, curve, draw, share


def plan(*arguments: str, code: int = 0) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from netsum.cli import main; main()", "plan", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended


@pytest.mark.parametrize(("devices", "time"), [(6, "3/5"), (2, "9/11"), (1, "9/10")])
@pytest.mark.parametrize("method", ["closed", "dp", "shared"])
def test_times_of_slide_20(devices, time, method):
    found = answer(Ocs(6, 3, devices, 4), method)
    rate = Fraction(found["report"]["algbw"])
    assert Fraction(found["compared"]["rings"]) / rate == Fraction(time)
    assert sum(Fraction(lane["share"]) for lane in found["plan"]["lanes"]) == rate


def test_methods_over_all_devices():
    network = Ocs(16, 8, 24, 8)
    closed, dp, shared = ([Fraction(rate) for rate in curve(network, method)] for method in ("closed", "dp", "shared"))
    assert closed == dp and len(closed) == 25
    assert all(ours >= theirs for ours, theirs in zip(shared, closed, strict=True))
    bounds = [Fraction(compare(Ocs(16, 8, count, 8))["bound"]["algbw"]) for count in range(25)]
    assert all(ours <= most for ours, most in zip(shared, bounds, strict=True))
    assert shared[20] == 8 and closed[23] < 8


def test_command_writes_what_it_can_check(tmp_path):
    file, svg = tmp_path / "plan.json", tmp_path / "plan.svg"
    written = plan("ocs", 16, 8, 11, 8, "--method", "shared", "--json", "--plan", file, "--svg", svg).stdout
    found = json.loads(written)
    assert found["plan"] == json.loads(file.read_text()) and found["method"] == "shared"
    assert found["compared"]["bound"]["worker_price"] == "1/30"
    report = json.loads(plan("ocs-check", file, "--json").stdout)
    assert report == found["report"]
    lines = ElementTree.parse(svg).getroot().findall(".//{http://www.w3.org/2000/svg}path")
    assert len(lines) == len({frozenset(map(str, pair.values())) for pair in found["plan"]["circuits"]})
    broken = found["plan"]
    broken["lanes"][0]["reduce"].pop()
    file.write_text(json.dumps(broken))
    assert "of 16 contributions" in plan("ocs-check", file, code=1).stderr


def test_the_command_prints_the_bound_and_its_proof():
    text = " ".join(plan("ocs", 6, 3, 1, 4).stdout.split())
    assert "algbw 2, the most possible" in text
    assert "at 1/10 per worker port and 1/20 per device port no tree costs less than 1" in text


def test_the_table():
    rows = json.loads(plan("ocs-table", 6, 3, 6, 4, "--json").stdout)["rows"]
    assert [row["closed"] for row in rows] == ["9/5", "2", "11/5", "11/5", "13/5", "13/5", "3"]
    assert "1.667" in plan("ocs-table", 6, 3, 6, 4).stdout


def test_a_pool_among_jobs():
    grants = share([(16, 8), (16, 8)], 18, 8)
    assert [grant["devices"] for grant in grants] == [9, 9]
    assert "0 devices are left over" in plan("ocs-share", "16,8", "16,8", "--pool", 18, "--device-ports", 8).stdout


def test_paired_ports_are_joined_both_ways():
    found = answer(Ocs(16, 8, 5, 8, paired=True), "shared")["plan"]
    ways = {(tuple(way["from"].values()), tuple(way["to"].values())) for way in found["circuits"]}
    assert all((to, since) in ways for since, to in ways)
    assert check(json.dumps(found))["algbw"] == "79/15"
    assert draw(found).count("<circle") == 16


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ((6, 3, 2, 1), "E, the ports of a device, must be from 2"),
        ((6, 0, 2, 4), "D, the ports of a worker, must be from 1"),
        ((1, 3, 2, 4), "N, the number of workers, must be from 2"),
        ((6, 3, -1, 4), "M must be from 0"),
    ],
)
def test_impossible_networks(numbers, says):
    with pytest.raises(OcsError, match=says):
        answer(Ocs(*numbers))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ocs", 6, 3, 2, 1), "must be from 2"),
        (("ocs", 6, 3, 2, 4, "--method", "magic"), "use closed, dp or shared"),
        (("ocs-check", "nowhere.json"), "cannot read the plan"),
        (("ocs", 6, 3, 10**12, 4), "M must be from 0"),
        (("ocs-share", "16,8", "--pool", -1, "--device-ports", 8), "no pool"),
        (("ocs-share", "16", "--pool", 3, "--device-ports", 8), "write workers and ports"),
    ],
)
def test_the_command_says_why(arguments, says):
    assert says in " ".join(plan(*arguments, code=1).stderr.split())


def test_what_is_no_plan():
    with pytest.raises(OcsError, match="not a plan"):
        check("{}")
