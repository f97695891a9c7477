"""The parts of `netsum dashboard` without a browser: events, words, rates, operations, and who may read the page."""

import copy
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from browser.synthetic import SyntheticFabric
from processes import BOUND_S, wait_until

from netsum.dashboard import operations, words
from netsum.dashboard.errors import DashboardError
from netsum.dashboard.events import EventLog
from netsum.dashboard.operations import OperationLog
from netsum.dashboard.rates import WINDOW_S, Rates, Totals
from netsum.dashboard.server import Dashboard
from netsum.dashboard.topology import topology
from netsum.dashboard.view import View, edges, pauses
from netsum.dashboard.watch import Watch
from netsum.fabric.errors import FabricError
from netsum.fabric.local import LocalFabric
from netsum.reports import Straggler


@pytest.fixture
def fabric() -> SyntheticFabric:
    return SyntheticFabric(racks=3, spines=2, hosts=2, jobs=3, ranks=4)


def texts(log: EventLog) -> list[str]:
    return [event["text"] for event in reversed(log.newest_first())]


def test_events_tell_what_changed_and_nothing_else(fabric: SyntheticFabric) -> None:
    log, before = EventLog(), fabric.status()
    log.compare(None, before)
    log.compare(before, fabric.status())
    assert texts(log) == []
    fabric.down = {"rack1"}
    now = fabric.status()
    now["jobs"][0].update(epoch=2, trees=[], reason="no switch is left")
    now["jobs"][1]["ranks"][2]["state"] = "lost"
    now["jobs"][2]["state"] = "ended"
    pause = {"what": "switch rack1 is down; ", "at_unix_s": 5.0, "seconds": 0.25}
    now["jobs"][0]["ranks"][0]["statistics"]["pauses"].append(pause)
    log.compare(before, now)
    assert texts(log) == [
        "switch rack1 is down; 1 job used it",
        "job 1 (train-1) has a new plan, epoch 2: the hosts add: no switch is left",
        "job 1 (train-1): paused for 0.25 s: switch rack1 is down",
        "job 2 (train-2): rank 2 (h2-0, process 1002) is lost",
        "job 3 (train-3) has ended",
    ]
    fabric.down = set()
    again = copy.deepcopy(now)
    again["switches"] = fabric.status()["switches"]
    again["uptime_s"] = 0.0
    now["uptime_s"] = 100.0
    log.compare(now, again)
    assert texts(log)[5:] == [
        "the controller has started again; running jobs were not affected",
        "switch rack1 is up",
    ]


def test_a_controller_that_does_not_answer_is_told_once() -> None:
    log = EventLog()
    log.failed("gone")
    log.failed("gone")
    log.compare(None, SyntheticFabric(1, 1, 1, 0, 1).status())
    assert texts(log) == ["gone", "the controller answers again"]


def test_rates_are_of_the_window_and_know_restarts() -> None:
    rates = Rates()
    for second in range(11):
        rates.add(float(second), {"x": 100.0 * second, "y": float(second % 7)})
    assert rates.per_s("x") == 100.0 and rates.per_s("unknown") == 0.0
    # It fell from 6 to 0 within the window: what it has counted since is what is known.
    assert rates.growth("y") == 3.0 and WINDOW_S == 3.0
    rates.add(11.0, {"x": 1100.0, "new": 5e9})
    assert rates.growth("new") == 0.0, "what a process counted before it was seen is not of this window"


def test_totals_survive_parts_that_come_back_and_restarts() -> None:
    totals = Totals(2)
    totals.add([("host", (5.0, 0.0)), ("tree", (1e9, 7.0))])
    assert totals.sums == [0.0, 0.0], "what was counted before is not known to be new"
    totals.add([("host", (6.0, 0.0))])
    totals.add([("host", (6.0, 1.0)), ("tree", (1e9 + 10, 8.0))])
    assert totals.sums == [11.0, 2.0]
    totals.add([("host", (2.0, 1.0)), ("tree", (1e9 + 10, 8.0))])
    assert totals.sums == [13.0, 2.0]


def test_a_job_whose_trees_come_back_has_no_burst(fabric: SyntheticFabric) -> None:
    view, rates = View(), []
    for second in range(12):
        status = fabric.status()
        job = status["jobs"][0]
        job.update(state="running")
        for rank in job["ranks"]:
            rank["statistics"].update(host_bytes_tx=0)
            for tree in rank["statistics"]["trees"]:
                tree.update(bytes_tx=10**9 + 1000 * second)
            if second in (5, 6):
                rank["statistics"].update(trees=[])
        view.take(status, float(second))
        rates.append(next(each for each in view.overview()["jobs"] if each["job"] == job["job"])["sum_bps"])
    trees = len(fabric.status()["jobs"][0]["ranks"][0]["statistics"]["trees"])
    assert trees and 0 < max(rates) <= 2 * 8 * 1000 * trees, rates


def said(
    job: dict,
    loads: list[words.LinkLoad] | None = None,
    lost: float = 0.0,
    marked: float = 0.0,
    metered: list[Straggler] | None = None,
) -> list[str]:
    return [reason.text for reason in words.reasons(job, time.time(), loads or [], lost, marked, metered or [])]


def test_each_reason_is_said_when_it_holds_and_not_else(fabric: SyntheticFabric) -> None:
    job = fabric.status()["jobs"][1]
    healthy = said(job)
    assert healthy == ["26% of a step of 100.0 ms is communication that no computing hides."]
    cases = {
        "Rank 1 (host h2-1, process 1001) is lost": lambda j: j["ranks"][1].update(state="lost"),
        "Some ranks cannot reach rank 3": lambda j: j["ranks"][0]["statistics"].update(unreachable_ranks=[3]),
        "The hosts add, not the switches: no memory": lambda j: j.update(trees=[], reason="no memory"),
        "fewer trees than the fabric could give: x": lambda j: j.update(reason="x"),
        "The job waits for a plan": lambda j: j.update(state="planning"),
        "Nothing comes back on tree 0": lambda j: j["ranks"][0]["statistics"].update(silent_trees=[0]),
        "All wait for rank 2": lambda j: j["ranks"][2]["statistics"]["step"].update(exposed_s=0.001),
    }
    for text, change in cases.items():
        changed = copy.deepcopy(job)
        change(changed)
        assert any(text in sentence for sentence in said(changed)), text
        assert not any(text in sentence for sentence in healthy)
    assert any("is full (90%)" in each for each in said(job, loads=[words.LinkLoad("a", "b", 0.9)]))
    assert said(job, loads=[words.LinkLoad("a", "b", 0.5)]) == healthy
    assert any("are lost" in each for each in said(job, lost=0.02))
    assert any("mark of congestion" in each for each in said(job, marked=0.5))
    for rank in job["ranks"]:
        rank["statistics"]["step"]["exposed_s"] = 0.004
    assert said(job) == ["Computing hides the sums: of a step of 100.0 ms only 4% is exposed communication."]


def test_what_switches_wait_for_is_told_once(fabric: SyntheticFabric) -> None:
    job = fabric.status()["jobs"][1]
    late: Straggler = {"job": 2, "tree": 0, "slow": "link", "child": "rank 2", "at": "rack1", "share": 0.4}
    told = "The link from rank 2 to rack1 is slow: the others wait for 40.0% of the time."
    assert told in said(job, metered=[late])
    assert said(job, metered=[{**late, "share": 0.02}]) == said(job)
    rack: Straggler = {**late, "slow": "rack", "child": "rack1", "at": "spine0"}
    assert any(each.startswith("All ranks below rack1 begin late") for each in said(job, metered=[rack]))
    rank: Straggler = {**late, "slow": "rank"}
    assert any(each.startswith("Rank 2 begins late") for each in said(job, metered=[rank]))
    job["ranks"][2]["statistics"]["step"]["exposed_s"] = 0.001
    assert [each for each in said(job, metered=[rank]) if "ank 2" in each] == [
        each for each in said(job) if "All wait for rank 2" in each
    ]


def test_the_view_compares_the_meters_of_switches(fabric: SyntheticFabric) -> None:
    view = View()
    for second in range(4):
        fabric.began -= 1.0
        view.take(fabric.status(), float(second))
    (told,) = view.overview()["jobs"][0]["metered"]
    assert told.startswith("the link from rank 2 to rack1 is slow: the others wait for ")
    found = view.job(1)
    assert found and any("The link from rank 2 to rack1 is slow" in each["text"] for each in found["reasons"])
    assert view.overview()["jobs"][1]["metered"] == []


def test_a_straggler_is_named_only_beyond_a_share_of_the_step(fabric: SyntheticFabric) -> None:
    job = fabric.status()["jobs"][1]
    steps = [rank["statistics"]["step"] for rank in job["ranks"]]
    for late_s, named in ((0.0, False), (0.0029, False), (0.0031, True)):
        for step in steps:
            step["exposed_s"] = 0.02
        steps[3]["exposed_s"] = 0.02 - late_s
        found = words.straggler(job)
        assert (found is not None) == named
        assert found is None or found.rank["rank"] == 3


def test_the_view_has_loads_savings_and_the_edges_of_trees(fabric: SyntheticFabric) -> None:
    view = View()
    first, later = fabric.status(), fabric.status()
    for link in later["links"]:
        link["bytes_ab"] = first["links"][0]["bytes_ab"]
    link = later["links"][2]
    assert (link["a"], link["b"]) == ("rack0", "spine0")
    old = next(each for each in first["links"] if each["a"] == "rack0")
    link["bytes_ab"], link["bytes_ba"] = old["bytes_ab"] + link["rate_bps"] // 8, old["bytes_ba"]
    view.take(first, 10.0)
    view.take(later, 12.0)
    shown = view.overview()
    assert shown["links"][6:9] == [500, 0, 1], "a second's worth in two seconds"
    job = shown["jobs"][0]
    # Of four ranks a ring sends 1.5 bytes for each that a tree takes.
    moved = sum(t["bytes_tx"] + t["bytes_rx"] for r in later["jobs"][0]["ranks"] for t in r["statistics"]["trees"])
    assert job["saved_bytes"] == round(moved / 2) and job["saved_share"] == pytest.approx(1 / 3)
    names = {"rack1": {"h1-0", "h1-1", "spine1"}}
    assert {frozenset((a, b)) for a, bs in names.items() for b in bs} == edges(later["jobs"][0])
    assert topology(first)["nodes"][0] == ["h0-0", "host", 0]
    assert view.job(99) is None


def test_pauses_of_several_ranks_at_a_moment_are_one() -> None:
    job = SyntheticFabric(1, 1, 4, 1, 4).status()["jobs"][0]
    for rank, (at, seconds) in enumerate([(100.0, 0.1), (100.2, 0.3), (100.1, 0.2), (140.0, 1.0)]):
        job["ranks"][rank]["statistics"]["pauses"] = [{"what": "w", "at_unix_s": at, "seconds": seconds}]
    assert [(pause["at_unix_s"], pause["seconds"]) for pause in pauses(job)] == [(100.0, 0.3), (140.0, 1.0)]


def test_operations_merge_complete_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "KEPT", 100)
    log = OperationLog()

    def report(first: int, last: int, running: int | None = None) -> None:
        rows = [
            {"number": n, "call": "allreduce", "bytes": 8, "called_unix_s": n, "seconds": None if n == running else 0.5}
            for n in range(first, last)
        ]
        log.take([{"rank": 3, "operations": rows}])

    report(0, 10, running=9)
    report(5, 12)
    assert [row[0] for row in log.shown()["ranks"][3]] == list(range(12))
    assert all(row[4] == 0.5 for row in log.shown()["ranks"][3])
    report(12, 500)
    assert [row[0] for row in log.shown()["ranks"][3]] == list(range(400, 500))
    trace = log.trace(7, "name", [{"what": "p", "at_unix_s": 1.0, "seconds": 2.0}], {3: "h0 77"})
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 101 and slices[0]["ts"] == 400e6 and slices[0]["dur"] == 0.5e6
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"]
    assert names == ["job 7 name", "rank 3 h0 77", "pauses of the trees"]


@pytest.fixture
def served(fabric: SyntheticFabric) -> Iterator[Dashboard]:
    dashboard = Dashboard(Watch(fabric.status, fabric.operations))
    dashboard.start()
    yield dashboard
    dashboard.stop()


def get(dashboard: Dashboard, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(urlsplit(dashboard.url).netloc, timeout=BOUND_S)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def cookie(dashboard: Dashboard) -> str:
    parts = urlsplit(dashboard.url)
    status, headers, _ = get(dashboard, f"/?{parts.query}")
    assert status == 303 and headers["Location"] == "/"
    found = headers["Set-Cookie"]
    assert "HttpOnly" in found and "SameSite=Strict" in found
    return found.partition(";")[0]


def test_only_who_has_the_token_reads_the_page(served: Dashboard) -> None:
    port = urlsplit(served.url).port
    paths = ("/", "/app.js", "/api/topology", "/api/stream", "/api/jobs/1", "/api/jobs/1/trace.json")
    for path in paths:
        assert get(served, path)[0] == 403
        assert get(served, path, Cookie=f"netsum-{port}=guess")[0] == 403
    assert get(served, "/?token=guess")[0] == 403
    ours = cookie(served)
    for path in (path for path in paths if path != "/api/stream"):
        status, headers, _ = get(served, path, Cookie=ours)
        assert status == 200 and "default-src 'none'" in headers["Content-Security-Policy"]
    # A page of another name that resolves to this address.
    for host in ("evil.example", "evil.example:80", "", "127.0.0.1.evil.example", "[", "10.0.0.1"):
        assert get(served, "/", Cookie=ours, Host=host)[0] == 403, host
    assert get(served, "/", Cookie=ours, Host=f"localhost:{port}")[0] == 200
    for path in ("/../errors.py", "/%2e%2e/errors.py", "/api/jobs/99", "/api/jobs/-1", "/api/jobs/1e9", "//x"):
        assert get(served, path, Cookie=ours)[0] == 404, path


def test_the_page_is_served_to_this_machine_alone(fabric: SyntheticFabric) -> None:
    for host in ("0.0.0.0", "10.0.0.1", "example.com", ""):
        with pytest.raises(DashboardError, match=r"loopback|this machine"):
            Dashboard(Watch(fabric.status, fabric.operations), host)


def test_a_stream_has_each_change_and_an_error_when_the_controller_is_away(fabric: SyntheticFabric) -> None:
    away = False

    def status() -> dict:
        if away:
            raise FabricError("it is away")
        return fabric.status()

    dashboard = Dashboard(Watch(status, fabric.operations))
    dashboard.start()
    try:
        connection = http.client.HTTPConnection(urlsplit(dashboard.url).netloc, timeout=BOUND_S)
        connection.request("GET", "/api/stream", headers={"Cookie": cookie(dashboard)})
        answer = connection.getresponse()

        def next_view() -> dict:
            while not (line := answer.readline()).startswith(b"data: "):
                assert line
            return json.loads(line.removeprefix(b"data: "))

        numbers = [next_view()["number"] for _ in range(3)]
        assert numbers == sorted(set(numbers))
        fabric.down = {"spine0"}
        while not (events := next_view()["events"]):
            pass
        assert events[0]["text"].startswith("switch spine0 is down")
        away = True
        while not (view := next_view())["error"]:
            pass
        assert view["error"] == "it is away" and len(view["jobs"]) == 3
        connection.close()
    finally:
        dashboard.stop()


def test_more_readers_than_places_are_refused(served: Dashboard) -> None:
    ours = cookie(served)
    held = []
    refused = 0
    for _ in range(80):
        connection = http.client.HTTPConnection(urlsplit(served.url).netloc, timeout=BOUND_S)
        try:
            connection.request("GET", "/api/stream", headers={"Cookie": ours})
            held.append(connection.getresponse())
        except (http.client.HTTPException, OSError):
            refused += 1
    assert len(held) == 64 and refused == 16
    for stream in held:
        stream.close()


@pytest.mark.usefixtures("fabric_file")
def test_the_command_serves_a_live_fabric_and_ends(fabric_file, tmp_path, monkeypatch) -> None:
    from netsum.fabric.description import Description
    from netsum.fabric.local import temporary

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with temporary(Description.read(fabric_file)) as live:
        assert isinstance(live, LocalFabric)
        command = [sys.executable, "-c", "from netsum.cli import main; main()", "dashboard", "--no-open"]
        running = subprocess.Popen(
            [*command, "--fabric", str(fabric_file)], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        assert running.stdout
        url = running.stdout.readline().removeprefix("ready ").strip()
        netloc = urlsplit(url).netloc

        def ask(path: str, **headers: str) -> http.client.HTTPResponse:
            connection = http.client.HTTPConnection(netloc, timeout=BOUND_S)
            connection.request("GET", path, headers=headers)
            return connection.getresponse()

        ours = ask(f"/?{urlsplit(url).query}").headers["Set-Cookie"].partition(";")[0]
        wait_until(lambda: len(json.loads(ask("/api/topology", Cookie=ours).read())["nodes"]) == 8)
        running.terminate()
        assert running.wait(BOUND_S) == 0
