"""Reports of jobs: the figures against independent ones, the predictions against a simulation, the page, the errors."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from page_parts import PageParts
from processes import BOUND_S, run_ranks

from netsum import _core
from netsum.communicator import connect
from netsum.fabric.local import LocalFabric
from netsum.fabric.ring import ring_link_bytes
from netsum.report import compare, files, page, recording, words
from netsum.report.files import ReportError, read
from netsum.report.model import Model
from netsum.report.network import Net, placements, plan_trees, ring_seconds, tree_loads
from netsum.report.record import BLOCK, SAMPLE_MAX, SERIES_MAX, GroupRecord, Series
from netsum.report.recording import GroupFile
from netsum.report.repeating import training_steps
from netsum.report.steps import rhythm
from netsum.report.summary import summarize

RANKS = 4
LARGE, SMALL = 1 << 16, 1 << 8
KEPT = 512
BUSY = 0.5
"""Times of real jobs differ by as much on a busy machine; how exact the figures are is told by simulated jobs."""


# A simulated job: computing, and a network that serves one sum after the other.


@dataclass(frozen=True)
class Part:
    """What a step does: compute, then sum. by rank, seconds of computing."""

    computing: tuple[float, ...]
    nbytes: int
    waits: bool = True


@dataclass(frozen=True)
class Simulated:
    """A job whose sums take `fixed_s` and, per byte, `per_byte_s`. jitter, noise: shares by which computing and sums
    take longer at times."""

    parts: tuple[Part, ...]
    steps: int = 40
    fixed_s: float = 0.002
    per_byte_s: float = 1e-8
    jitter: float = 0.02
    noise: float = 0.0
    seed: int = 1
    clocks: tuple[float, ...] = (0.0, 0.4, -3.0, 7.0)
    """By how much the ranks' clocks are ahead."""

    def run(self) -> tuple[list[list[dict[str, Any]]], float]:
        """By rank, the operations as a recorder has them; and the median step."""
        chance = random.Random(self.seed)
        now = [1000.0] * RANKS
        rows: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]
        busy_until, number = 0.0, 0
        begins = []
        for _ in range(self.steps):
            pending: list[float] = []
            begin = None
            for part in self.parts:
                calls = [
                    now[rank] + part.computing[rank] * (1 + self.jitter * chance.random()) for rank in range(RANKS)
                ]
                last = max(calls)
                begin = last if begin is None else begin
                slower = 1 + self.noise * chance.random() if self.noise else 1.0
                seconds = (self.fixed_s + self.per_byte_s * part.nbytes) * slower
                follows = self.per_byte_s * part.nbytes * slower
                end = max(last + seconds, busy_until + follows) if busy_until > last else last + seconds
                busy_until = end
                for rank in range(RANKS):
                    call = f"allreduce float32[{part.nbytes // 4}] sum"
                    called = calls[rank] + self.clocks[rank]
                    row = {"number": number, "call": call, "called_unix_s": called, "seconds": end - calls[rank]}
                    rows[rank].append({**row, "error": None, "dtype": "float32", "bytes": part.nbytes})
                number += 1
                pending.append(end)
                now = calls
                if part.waits:
                    now = [max(*pending, at) for at in calls]
            begins.append(begin)
        return rows, median([b - a for a, b in pairwise(begins)] or [0.0])


class RecordedGroup:
    """A core group that has done these operations so far."""

    def __init__(self, rank: int, rows: list[dict[str, Any]]) -> None:
        self.rank, self.rows, self.done = rank, rows, 0

    def recorded(self) -> str:
        operations = self.rows[max(self.done - KEPT, 0) : self.done]
        place = {"place": f"host h{self.rank}, pid {100 + self.rank}", "why": "", "failure": None}
        return json.dumps(
            {"format": 1, "group": "world", "rank": self.rank, "size": RANKS, **place}
            | {"written_unix_s": 2000.0, "operations": operations}
        )

    def stats(self) -> str:
        link = {"ranks": RANKS, "shared_memory": False, "latency_s": 1e-4, "bytes_per_s": 1e8, "across": None}
        sent = sum(row["bytes"] for row in self.rows[: self.done])
        trees = [{"tree": 0, "bytes_tx": sent}]
        return json.dumps(
            {"job": None, "epoch": 1, "path": "trees", "protocol": "panama", "trees": trees, "pauses": []}
            | {"link": link, "operations": self.done, "network_operations": self.done, "redone": 0}
        )

    def explain(self, operation: str, nbytes: int, dtype: str, op: str) -> str:
        return _core.explain_hosts(RANKS, 1e-4, 1e8, operation, nbytes, dtype, op)


def written(folder: Path, simulated: Simulated) -> float:
    """Write the files of a simulated job; returns its median step."""
    rows, step_s = simulated.run()
    for rank in range(RANKS):
        group: Any = RecordedGroup(rank, rows[rank])
        file = GroupFile(folder)
        while group.done < len(group.rows):
            group.done = min(group.done + 300, len(group.rows))
            file.look(group)
        file.finish(group)
    return step_s


def even(seconds: float) -> tuple[float, ...]:
    return (seconds,) * RANKS


BLOCKING = tuple(Part(even(s), n) for s, n in ((0.03, 1 << 20), (0.001, 1 << 14), (0.001, 1 << 14), (0.001, 1 << 15)))
OVERLAPPED = tuple(Part(even(0.012), n, waits=n == 1 << 19) for n in (1 << 20, 1 << 18, 1 << 18, 1 << 19))
HIDDEN = tuple(Part(even(0.08), n, waits=n == 1 << 19) for n in (1 << 20, 1 << 18, 1 << 18, 1 << 19))


def halved(job: Simulated, _how: str) -> Simulated:
    return replace(job, parts=tuple(replace(part, nbytes=part.nbytes // 2) for part in job.parts))


def in_buckets(job: Simulated, how: str) -> Simulated:
    """Neighbouring sums together, at the last one's call, up to the MiB that the advice names."""
    limit = int(how.partition("buckets of ")[2].partition(" ")[0]) << 20
    parts: list[Part] = []
    for part in job.parts:
        if parts and parts[-1].nbytes + part.nbytes <= limit:
            seconds = tuple(one + other for one, other in zip(parts[-1].computing, part.computing, strict=True))
            parts[-1] = Part(seconds, parts[-1].nbytes + part.nbytes, part.waits)
        else:
            parts.append(part)
    return replace(job, parts=tuple(parts))


@pytest.mark.parametrize("parts", [BLOCKING, OVERLAPPED, HIDDEN], ids=["blocking", "overlapped", "hidden"])
@pytest.mark.parametrize(("key", "followed"), [("bfloat16", halved), ("buckets", in_buckets)])
@pytest.mark.parametrize("seed", range(3))
def test_a_followed_advice_gives_the_predicted_step(
    tmp_path: Path, parts: tuple[Part, ...], key: str, followed: Callable[[Simulated, str], Simulated], seed: int
) -> None:
    job = Simulated(parts, seed=seed)
    step_s = written(tmp_path, job)
    summary = summarize(read(tmp_path))
    assert summary["steps"]["seconds"] == pytest.approx(step_s, rel=0.01)
    (advice,) = (each for each in summary["advice"] if each["key"] == key)
    _, then_s = followed(job, advice["how"]).run()
    assert advice["step_s"] == pytest.approx(then_s, rel=0.04)
    assert advice["now_s"] == pytest.approx(step_s, rel=0.01)
    assert advice["worth"] == (advice["gain"] >= 0.03)


def test_where_computing_hides_the_sums_nothing_is_promised(tmp_path: Path) -> None:
    written(tmp_path, Simulated(HIDDEN))
    summary = summarize(read(tmp_path))
    assert summary["steps"]["overlap"] > 0.6
    assert not [each for each in summary["advice"] if each["worth"]]


@pytest.mark.parametrize("parts", [BLOCKING, OVERLAPPED], ids=["blocking", "overlapped"])
def test_a_ring_takes_2n_minus_2_messages_and_2n_minus_2_nths_of_the_bytes(
    tmp_path: Path, parts: tuple[Part, ...]
) -> None:
    job = Simulated(parts)
    written(tmp_path, job)
    ring = summarize(read(tmp_path))["ring"]
    _, then_s = replace(job, fixed_s=2 * 3 * 1e-4, per_byte_s=2 * 3 / 4 / 1e8).run()
    assert ring["step_s"] == pytest.approx(then_s, rel=0.03)


def test_where_sums_vary_nothing_is_said_of_hosts_and_rings(tmp_path: Path) -> None:
    job = Simulated(BLOCKING, noise=2.0)
    written(tmp_path, job)
    summary = summarize(read(tmp_path))
    assert summary["ring"] is None and "hosts" not in {each["key"] for each in summary["advice"]}
    assert any("is not predicted" in note for note in summary["notes"])


def test_the_late_rank_is_named_and_what_it_costs_predicted(tmp_path: Path) -> None:
    slow = (0.03, 0.03, 0.042, 0.03)
    job = Simulated((Part(slow, 1 << 20), Part(even(0.001), 1 << 14)))
    written(tmp_path, job)
    summary = summarize(read(tmp_path))
    assert summary["stragglers"]["rank"] == 2
    assert summary["stragglers"]["late_s"] == pytest.approx(0.012, rel=0.05)
    (advice,) = (each for each in summary["advice"] if each["key"] == "straggler")
    _, then_s = replace(job, parts=(Part(even(0.03), 1 << 20), job.parts[1])).run()
    assert advice["step_s"] == pytest.approx(then_s, rel=0.02)


def test_the_files_of_a_long_job_are_bounded() -> None:
    record, rows = GroupRecord(), Simulated(BLOCKING, steps=4096).run()[0][0]
    group: Any = RecordedGroup(0, rows)
    while group.done < len(rows):
        group.done = min(group.done + 400, len(rows))
        record.fold(group)
    found = record.written()
    assert found is not None and found["lost"] == 0
    assert sum(call["count"] for call in found["calls"]) == len(rows)
    sample = [operation[0] for operation in found["sample"]["operations"]]
    assert 0.4 * SAMPLE_MAX < len(sample) <= SAMPLE_MAX
    # Whole blocks, by a rule that is the same at all ranks.
    assert {number // BLOCK % found["sample"]["stride"] for number in sample} == {0}
    assert len(sample) % BLOCK == 0
    steps = found["steps"]
    assert len(steps["rows"]) <= SERIES_MAX and sum(row[5] for row in steps["rows"]) == steps["count"]
    assert 4080 <= steps["count"] <= 4096
    assert len(json.dumps(found)) < 600_000


def test_operations_that_were_not_read_in_time_are_counted() -> None:
    record, rows = GroupRecord(), Simulated(BLOCKING, steps=1000).run()[0][0]
    group: Any = RecordedGroup(0, rows)
    for done in (400, 400 + 2 * KEPT):
        group.done = done
        record.fold(group)
    found = record.written()
    assert found is not None and found["lost"] == KEPT


def test_steps_of_calls_that_are_all_alike_begin_after_the_long_pauses() -> None:
    calls, at = [], 0.0
    for _ in range(12):
        at += 0.05
        for _ in range(6):
            calls.append(("allreduce", 4096, at, at + 0.004))
            at += 0.006
    found = training_steps(calls)
    assert {step["operations"] for step in found} == {6}
    assert all(step["seconds"] == pytest.approx(0.086) for step in found)
    series = Series()
    series.add(training_steps(calls[:7]))
    series.add(found)
    assert series.count == len(found)


def test_what_changed_is_said(tmp_path: Path) -> None:
    slow = (0.03, 0.06, 0.03, 0.03)
    for name, part in (("a", BLOCKING[0]), ("b", Part(slow, BLOCKING[0].nbytes))):
        written(tmp_path / name, Simulated((part, *BLOCKING[1:])))
    one, other = (summarize(read(tmp_path / name)) for name in "ab")
    words = compare.compare(one, other)["words"]
    assert "longer" in words[0] and "more computing" in words[0]
    assert "all wait for rank 1 now" in words
    assert "nobody waits for rank 1 any more" in compare.compare(other, one)["words"]


# The network.


def leaf_spine(racks: int, hosts: int, spines: int, uplink_bps: float = 1e9) -> Net:
    names = [f"h{i}" for i in range(racks * hosts)]
    links = [(name, f"rack{i // hosts}", 1e9) for i, name in enumerate(names)]
    links += [(f"rack{rack}", f"spine{spine}", uplink_bps) for rack in range(racks) for spine in range(spines)]
    switches = [f"rack{i}" for i in range(racks)] + [f"spine{i}" for i in range(spines)]
    return Net.of(
        {
            "name": "test",
            "hosts": names,
            "switches": [{"name": name, "role": "switch", "state": "up"} for name in switches],
            "links": [{"a": a, "b": b, "rate_bps": rate} for a, b, rate in links],
        }
    )


def test_trees_have_the_least_depth_and_share_no_link_between_switches() -> None:
    net = leaf_spine(2, 2, 3)
    trees = plan_trees(net, ["h0", "h1", "h2", "h3"], 255)
    assert len(trees) == 3 and all(len(tree) == 4 + 2 for tree in trees)
    uplinks = [edge for tree in trees for edge in tree if edge <= net.switches]
    assert len(set(uplinks)) == len(uplinks) == 6
    # Ranks of one rack get the one tree at its switch.
    (one,) = plan_trees(net, ["h0", "h1"], 255)
    assert one == [frozenset(("h0", "rack0")), frozenset(("h1", "rack0"))]
    assert net.fullest(tree_loads(trees, [1 / 3] * 3)) == pytest.approx(8e-9)


def test_slow_uplinks_limit_trees_until_the_ranks_share_a_rack() -> None:
    net = leaf_spine(2, 4, 1, uplink_bps=1e8)
    apart = ["h0", "h1", "h4", "h5"]
    assert net.fullest(tree_loads(plan_trees(net, apart, 1), [1.0])) == pytest.approx(8e-8)
    assert placements(net, apart, set())[0] == ["h0", "h1", "h2", "h3"]
    assert placements(net, apart, {"h3"})[0] == ["h4", "h5", "h6", "h7"]
    assert not [hosts for hosts in placements(net, apart, {"h3", "h7"}) if {"h3", "h7"} & {*hosts}]


@pytest.mark.parametrize("placement", [["h0", "h1", "h2", "h3"], ["h0", "h2", "h1", "h3"], ["h0", "h0", "h2", "h2"]])
def test_the_fullest_link_of_a_ring_follows_from_its_bytes(placement: list[str]) -> None:
    net = leaf_spine(2, 2, 2)
    both_ways = ring_link_bytes(net.description, placement, 1000)
    # Each host is entered as often as it is left.
    of_hosts = max(both_ways[f"h{host}-rack{host // 2}"] for host in range(4)) / 2
    assert ring_seconds(net, placement) == pytest.approx(8 * of_hosts / 1000 / 1e9)


def test_large_jobs_are_looked_at_in_fewer_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step_s = written(tmp_path, Simulated(BLOCKING, steps=1500))
    whole = read(tmp_path)
    monkeypatch.setattr(files, "OPERATIONS_MAX", 2 * SAMPLE_MAX)
    part = read(tmp_path)
    for rank, file in part.ranks.items():
        assert {o.number // BLOCK for o in file.operations} == {0, 2, 4}
        assert len(file.operations) < len(whole.ranks[rank].operations)
    assert summarize(part)["steps"]["seconds"] == pytest.approx(step_s, rel=0.01)


# Real jobs.


def training(steps: int, late: int = -1) -> Callable[[int], float]:
    """The body of a rank: a large sum and a small one after computing, which takes the late rank longer. Its own
    clock says what a step takes."""

    def body(rank: int) -> float:
        times = []
        large, small = np.ones(LARGE, np.float32), np.ones(SMALL, np.float32)
        with connect() as ours:
            for _ in range(steps):
                began = time.perf_counter()
                time.sleep(0.02 + (0.1 if rank == late else 0.0))
                ours.allreduce(large, op="max")
                ours.allreduce(small, op="max")
                times.append(time.perf_counter() - began)
        return median(times)

    return body


def test_the_report_of_a_job_on_switches(fabric: LocalFabric, tmp_path: Path) -> None:
    steps, folder = 60, tmp_path / "report"
    own = run_ranks(
        training(steps, late=3),
        RANKS,
        **fabric.environment(),
        NETSUM_MIN_BYTES="16384",
        NETSUM_REPORT=str(folder),
    )
    job = read(folder)
    summary = summarize(job)
    assert (summary["group"], summary["size"], summary["path"]) == ("world", RANKS, "trees")
    # A busy machine does not allow all predictions.
    assert [note for note in summary["notes"] if "is not predicted" not in note] == []
    assert summary["steps"]["seconds"] == pytest.approx(median(own), rel=BUSY)
    assert (summary["steps"]["operations"], summary["steps"]["bytes"]) == (2, 4 * LARGE + 4 * SMALL)
    assert [
        (call["bytes"], call["count"], call["by"]) for call in sorted(summary["calls"], key=lambda c: -c["bytes"])
    ] == [
        (4 * LARGE, steps, "switches"),
        (4 * SMALL, steps, "hosts"),
    ]
    # The rank that sleeps longer is awaited, and waits least.
    assert summary["stragglers"]["rank"] == 3
    assert summary["stragglers"]["late_s"] == pytest.approx(0.1, rel=BUSY)
    # A tree's packet goes up and down each link of a host once; a ring sends 2(N-1)/N from each rank.
    summed = steps * 4 * LARGE
    by_link = {(link["a"], link["b"]): link for link in summary["links"]}
    for host in range(RANKS):
        link = by_link[f"h{host}", f"rack{host // 2}"]
        for direction in ("bytes_ab", "bytes_ba"):
            assert summed <= link[direction] <= 1.2 * summed
        ring = 2 * 2 * (RANKS - 1) / RANKS * steps * (4 * LARGE + 4 * SMALL)
        assert link["ring_bytes"] == pytest.approx(ring)
    # The trees are those that the report computes by the controller's rule.
    found = rhythm(job)
    assert found is not None
    model = Model(job, found)
    assert model.net is not None and model.placement == ["h0", "h1", "h2", "h3"]
    assert sorted(map(sorted, map(partial(map, sorted), model.trees))) == sorted(
        map(sorted, map(partial(map, sorted), plan_trees(model.net, model.placement, 2)))
    )
    parts = PageParts(page.render(job, summary))
    assert parts.problems == []
    headings = {"What would help", "Steps", "Load of the links", "Stragglers", "Calls", "Settings"}
    assert headings <= set(parts.texts["h2"]) and parts.count["svg"] >= 5
    assert parts.references == []
    assert "NETSUM_TOKEN" not in json.dumps(summary)


def test_recoveries_are_told(fabric: LocalFabric, tmp_path: Path) -> None:
    def body(rank: int) -> int:
        with connect() as ours:
            large, going = np.ones(LARGE, np.float32), np.ones(1, np.float32)
            for _ in range(20):
                ours.allreduce(large, op="max")
            if rank == 0:
                fabric.daemon("spine1").kill()
            while going[0] > 0:
                ours.allreduce(large, op="max")
                going[0] = 0.0 if ours.stats()["pauses"] else 1.0
                ours.allreduce(going, op="min")
        return rank

    run_ranks(body, RANKS, **fabric.environment(), NETSUM_MIN_BYTES="0", NETSUM_REPORT=str(tmp_path / "report"))
    job = read(tmp_path / "report")
    summary = summarize(job)
    assert len(summary["recoveries"]["pauses"]) == 1
    assert "spine1" in summary["recoveries"]["pauses"][0]["what"]
    assert "Recoveries" in PageParts(page.render(job, summary)).texts["h2"]


def test_a_job_without_a_controller_and_what_changed(tmp_path: Path) -> None:
    own = {}
    for name, late in (("a", -1), ("b", 1)):
        settings = {"NETSUM_REPORT": str(tmp_path / name), "NETSUM_SHARED_MEMORY": "off", "NETSUM_CONTROLLER": ""}
        more = {"NETSUM_NETWORK": "tcp"} if name == "b" else {}
        own[name] = median(run_ranks(training(20, late), RANKS, **settings, **more))
    one, other = (summarize(read(tmp_path / name)) for name in "ab")
    assert one["links"] is None and any("without a controller" in note for note in one["notes"])
    found = compare.compare(one, other)
    assert 1 + found["step"] == pytest.approx(own["b"] / own["a"], rel=BUSY)
    assert [each["setting"] for each in found["settings"]] == ["NETSUM_NETWORK"]
    assert other["stragglers"]["rank"] == 1
    parts = PageParts(compare.render(found, one, other))
    assert parts.problems == [] and parts.texts["h1"] == ["What changed"]
    same = compare.compare(one, one)
    assert same["step"] == 0 and same["settings"] == same["calls"] == []


def test_a_rank_that_fails_leaves_a_file(tmp_path: Path) -> None:
    def body(rank: int) -> str:
        try:
            with connect(timeout_s=30.0) as ours:
                for _ in range(20):
                    ours.allreduce(np.ones(LARGE, np.float32))
                if rank == 1:
                    raise ValueError("the loss is not a number")
                ours.barrier()
        except Exception as error:
            return str(error)
        return ""

    run_ranks(body, 3, NETSUM_REPORT=str(tmp_path), NETSUM_CONTROLLER="", NETSUM_SHARED_MEMORY="off")
    summary = summarize(read(tmp_path))
    assert any("the loss is not a number" in note for note in summary["notes"])


def test_a_program_that_closes_nothing_leaves_its_file(tmp_path: Path) -> None:
    script = "import numpy as np; from netsum.communicator import connect\n"
    script += "ours = connect()\nfor _ in range(20): ours.allreduce(np.ones(1000, np.float32))"
    settings = {**os.environ, "NETSUM_REPORT": str(tmp_path), "NETSUM_CONTROLLER": ""}
    ended = subprocess.run(
        [sys.executable, "-c", script], env=settings, timeout=BOUND_S, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    file = read(tmp_path).first
    assert file.ended and [call.count for call in file.calls] == [20]


def test_without_the_setting_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NETSUM_REPORT", raising=False)
    monkeypatch.setattr(recording, "_follower", None)
    recording.follow(object())  # type: ignore[arg-type]
    assert recording._follower is None


def test_a_folder_that_cannot_be_written_ends_no_job(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = {"NETSUM_REPORT": str(tmp_path / "file" / "report"), "NETSUM_CONTROLLER": ""}
    assert len(run_ranks(training(3), 2, **settings)) == 2


def test_a_report_that_fails_ends_no_job(tmp_path: Path) -> None:
    class Broken:
        def recorded(self) -> str:
            raise RuntimeError("no recorder")

    group: Any = Broken()
    follower = recording.Follower()
    follower.add(group, tmp_path)
    with pytest.warns(UserWarning, match="no recorder"):
        while not follower._files[group].ended:
            follower.finish(group)
    assert list(tmp_path.iterdir()) == []


# The command.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written(tmp_path, Simulated(BLOCKING, steps=8))
    return tmp_path


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command with these arguments, on a wide terminal."""
    words = [sys.executable, "-c", "from netsum.cli.app import main; main()", "report", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, timeout=BOUND_S)


def test_steps_that_were_not_all_looked_at_are_counted() -> None:
    summary = {"size": 2, "path": "host", "trees": 0, "steps": {"count": 58, "looked_at": 58}}
    assert words.lead(summary) == "2 ranks, sums by hosts. 58 steps."
    summary["steps"] = {"count": 5000, "looked_at": 64}
    assert words.lead(summary) == "2 ranks, sums by hosts. 5,000 steps, 64 of them looked at on all ranks."


def test_the_command_prints_writes_and_compares(folder: Path, tmp_path: Path) -> None:
    found = command(folder, "-o", tmp_path / "page.html")
    assert found.returncode == 0, found.stderr
    assert "job world: 4 ranks, sums by switches" in found.stdout and "bfloat16 gradients" in found.stdout
    assert PageParts((tmp_path / "page.html").read_text()).problems == []
    figures = json.loads(command(folder, "--json").stdout)
    assert figures["steps"]["operations"] == len(BLOCKING)
    both = command(folder, folder, "--json", "-o", tmp_path / "both.html")
    assert json.loads(both.stdout)["step"] == 0 and "What changed" in (tmp_path / "both.html").read_text()
    assert "the step takes the same time" in command(folder, folder).stdout


def test_the_command_names_what_it_cannot_use(folder: Path, tmp_path: Path) -> None:
    for arguments, said in (
        ((folder / "gone",), "no such folder"),
        ((folder, folder / "gone"), "no such folder"),
        ((folder, "--group", "[/bold]x"), "no group [/bold]x"),
        ((folder, "-o", folder / "gone" / "page.html"), "cannot be written"),
    ):
        found = command(*arguments)
        assert found.returncode == 1 and said in found.stderr and "Traceback" not in found.stderr


def test_texts_of_others_are_printed_as_they_are(folder: Path, tmp_path: Path) -> None:
    name = "[/bold]<script>x"
    for path in folder.glob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"group": name, "place": name, "failure": name}))
    found = command(folder, "-o", tmp_path / "page.html")
    assert f"job {name}: " in found.stdout and f"failed: {name}" in found.stdout
    parts = PageParts((tmp_path / "page.html").read_text())
    assert parts.problems == [] and "script" not in parts.count


# Unusable files.


FIRST = "netsum-report-world-rank0.json"


def edited(folder: Path, **values: Any) -> None:
    content = json.loads((folder / FIRST).read_text())
    (folder / FIRST).write_text(json.dumps(content | values))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"format": 9}, "format 9"),
        ({"rank": 7}, "rank 7 of 4"),
        ({"size": 5}, "another run"),
        ({"rank": 1}, "a second file of group world, rank 1"),
        ({"calls": []}, "is not listed"),
        ({"stats": {}}, "stats.job"),
        ({"sample": 3}, "is not a file of NETSUM_REPORT"),
        ({"settings": [1]}, "is not a file of NETSUM_REPORT"),
    ],
)
def test_an_unusable_file_is_named(folder: Path, values: dict[str, Any], said: str) -> None:
    edited(folder, **values)
    with pytest.raises(ReportError, match=said) as caught:
        read(folder)
    assert "netsum-report-world-rank" in str(caught.value)


def test_texts_that_are_no_reports_are_named(folder: Path) -> None:
    for content in ("", "[]", "nothing", '{"format": 1}', "\xff"):
        (folder / FIRST).write_text(content, encoding="latin-1")
        with pytest.raises(ReportError, match=FIRST):
            read(folder)


def test_an_empty_folder_and_an_unknown_group_are_named(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(ReportError, match="run the ranks with NETSUM_REPORT="):
        read(tmp_path_factory.mktemp("empty"))
    with pytest.raises(ReportError, match="no such folder"):
        read(folder / "gone")
    with pytest.raises(ReportError, match="no group elsewhere; there are world"):
        read(folder, "elsewhere")


def test_ranks_without_files_are_named(folder: Path) -> None:
    (folder / "netsum-report-world-rank2.json").unlink()
    summary = summarize(read(folder))
    assert "1 of 4 ranks left no file: 2" in summary["notes"]
    assert summary["steps"] is not None


def test_calls_that_do_not_repeat_have_no_steps(tmp_path: Path) -> None:
    rows, _ = Simulated(BLOCKING, steps=1).run()
    group: Any = RecordedGroup(0, rows[0])
    file = GroupFile(tmp_path)
    group.done = len(rows[0])
    file.finish(group)
    job = read(tmp_path)
    summary = summarize(job)
    assert summary["steps"] is None and any("no steps are known" in note for note in summary["notes"])
    assert PageParts(page.render(job, summary)).problems == []
