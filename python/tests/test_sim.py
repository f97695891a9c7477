"""The simulator from Python: results, refusals, sweeps that resume, reports. Runs the real simulator."""

import importlib.util
import json
import re
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from netsum import sim
from netsum.sim import report, toml
from netsum.sim.result import TABLES
from netsum.sim.runner import GIVEN
from netsum.sim.sweep import Sweep

SMALL = {
    "duration": "1ms",
    "drain": "1s",
    "fabric": {"kind": "fat-tree", "k": 4},
    "flows": [{"kind": "poisson", "load": 0.3, "sizes": "web-search"}],
    "jobs": [{"compute": "50us", "bytes": 200_000, "workers": 6, "steps": 3}],
    "samples": {"every": "50us", "links": ["h0>rack0.0", "rack0.0>agg0.1"]},
}


def test_a_run_leaves_tables_and_a_report(tmp_path: Path) -> None:
    told = []
    result = sim.run(SMALL, tmp_path, progress=told.append)
    assert told[-1].steps == 3 and told[-1].hops == result.summary["packet_hops"]
    assert [p.hops for p in told] == sorted(p.hops for p in told)
    flows = result.rows("flows")
    assert len(flows) == told[-1].flows > 0
    assert all(row["received_bytes"] == row["bytes"] and row["fct_us"] > 0 for row in flows)
    steps = result.rows("steps")
    assert [row["step"] for row in steps] == [0, 1, 2]
    assert all(row["start_us"] + 50 == row["reduce_start_us"] < row["end_us"] for row in steps)
    assert result.rows("jobs")[0]["workers"] == 6
    assert tomllib.loads((tmp_path / "effective.toml").read_text())["switch"]["mark_packets"] == 85
    page = report.write(result).read_text()
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) >= 4
    for picture in pictures:
        ElementTree.fromstring(picture)
    links = len(result.rows("links"))
    assert pictures[-1].count("<line") == links == 2 * 48


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('duration = "1ms"\n[fabric]\nkind = "fat-tree"\nk = 4\n[mix]\nload = 1.2\n')
    with pytest.raises(sim.SimError, match=r"bad\.toml:6: mix\.load: a load of 1\.2"):
        sim.run(file, tmp_path / "out")
    with pytest.raises(sim.SimError, match=r"summary\.json is missing"):
        sim.Result(tmp_path / "out")
    with pytest.raises(sim.SimError, match="no table is named 'flow'"):
        sim.run(SMALL, tmp_path / "good").rows("flow")


def test_a_configuration_is_written_as_it_is_read() -> None:
    assert tomllib.loads(toml.dumps(SMALL)) == SMALL
    odd = {'k"ey': [True, 1.5, -3, 'ä\n"', {"a b": []}], "empty": {}}
    assert tomllib.loads(toml.dumps(odd)) == odd


def test_a_sweep_resumes_where_it_stopped(tmp_path: Path) -> None:
    grid = {"scheme.kind": ["ring", "panama"], "flows.0.load": [0.1, 0.2]}
    plan = Sweep(SMALL, grid)
    started = []
    results = sim.sweep(plan, tmp_path, done=lambda name, *_: started.append(name))
    assert sorted(started) == sorted(plan.runs()) and len(results) == 4
    name = "scheme.kind=ring,flows.0.load=0.2"
    before = {run: (tmp_path / run / "summary.json").stat().st_mtime_ns for run in plan.runs()}
    # Interrupted: no summary. Changed: another configuration. Both are run again, and nothing else.
    (tmp_path / name / "summary.json").unlink()
    changed = plan.runs()
    changed["scheme.kind=panama,flows.0.load=0.1"]["seed"] = 7
    started.clear()
    sim.sweep(changed, tmp_path, done=lambda name, *_: started.append(name))
    assert sorted(started) == sorted([name, "scheme.kind=panama,flows.0.load=0.1"])
    for run in set(plan.runs()) - set(started):
        assert (tmp_path / run / "summary.json").stat().st_mtime_ns == before[run]
    assert set(json.loads((tmp_path / "sweep.json").read_text())) == set(plan.runs())


def test_a_sweep_gives_the_same_bytes_with_any_number_of_workers(tmp_path: Path) -> None:
    plan = Sweep(SMALL, {"scheme.kind": ["ring", "panama"], "seed": [1, 2]})
    for workers in (1, 3):
        sim.sweep(plan, tmp_path / str(workers), workers=workers)
    for name in plan.runs():
        one, three = ({p.name: p.read_bytes() for p in (tmp_path / n / name).iterdir()} for n in ("1", "3"))
        assert one == three and "flows.csv" in one


def test_threads_change_no_byte(tmp_path: Path) -> None:
    flows = [*SMALL["flows"], {"kind": "permutation", "bytes": 100_000}]
    given = SMALL | {"switch": {"pause": {"high_packets": 20, "low_packets": 10}}, "flows": flows}
    runs = [sim.run(given, tmp_path / str(threads), threads=threads) for threads in (1, 2, 3)]
    runs.append(sim.run(given | {"threads": 2}, tmp_path / "key"))
    files = [{path.name: path.read_bytes() for path in run.folder.iterdir() if path.name != GIVEN} for run in runs]
    assert files[0]["flows.csv"].count(b"\n") > 16
    assert all(other == files[0] for other in files[1:])


def test_a_sweep_names_the_run_that_failed(tmp_path: Path) -> None:
    plan = Sweep(SMALL, {"jobs.0.workers": [6, 17]})
    with pytest.raises(sim.SimError, match=r"^jobs\.0\.workers=17: .*17 workers on 16 hosts"):
        sim.sweep(plan, tmp_path, workers=1)
    with pytest.raises(sim.SimError, match=r"no place for 'jobs\.3\.workers'"):
        Sweep(SMALL, {"jobs.3.workers": [6]}).runs()


def test_a_sweep_file_is_checked(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(toml.dumps(SMALL))
    file = tmp_path / "sweep.toml"
    file.write_text('base = "base.toml"\n[grid]\nseed = [1, 2]\n')
    assert [config["seed"] for config in Sweep.read(file).runs().values()] == [1, 2]
    for text, reason in [
        ("[grid]\nseed = [1]\n", "'base' is missing"),
        ('base = "base.toml"\n[grid]\nseed = 1\n', "has a list of values"),
        ('base = "base.toml"\nmore = 1\n[grid]\nseed = [1]\n', "no key 'more'"),
        ('base = "none.toml"\n[grid]\nseed = [1]\n', "none.toml"),
    ]:
        file.write_text(text)
        with pytest.raises(sim.SimError, match=reason):
            Sweep.read(file)


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_frames_hold_what_the_tables_hold(tmp_path: Path) -> None:
    result = sim.run(SMALL, tmp_path)
    frame = result.frame("flows")
    assert list(frame["bytes"]) == [row["bytes"] for row in result.rows("flows")]


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_parquet_holds_what_csv_holds(tmp_path: Path) -> None:
    text = sim.run(SMALL, tmp_path / "csv")
    typed = sim.run(SMALL | {"format": "parquet"}, tmp_path / "parquet")
    assert not list(typed.folder.glob("*.csv"))

    # CSV has six digits; what is not a time has more of them in Parquet.
    def rounded(row: dict) -> dict:
        return row | ({"utilisation": round(row["utilisation"], 6)} if "utilisation" in row else {})

    for table in TABLES:
        assert [rounded(row) for row in typed.rows(table)] == text.rows(table)
        if importlib.util.find_spec("pandas"):
            assert typed.frame(table).round(6).to_csv() == text.frame(table).to_csv()
    assert "<svg" in report.write(typed).read_text()
    assert sim.run(SMALL, typed.folder, format="csv").rows("flows") == text.rows("flows")
    assert not list(typed.folder.glob("*.parquet"))


def test_parquet_without_its_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = sim.run(SMALL, tmp_path, format="parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(sim.SimError, match="pip install pyarrow"):
        typed.rows("flows")
    with pytest.raises(sim.SimError, match="csv or parquet"):
        sim.run(SMALL, tmp_path, format="xlsx")


def test_an_interrupted_run_leaves_tables(tmp_path: Path) -> None:
    endless = SMALL | {"duration": "20s", "jobs": [SMALL["jobs"][0] | {"steps": 1_000_000}]}

    def interrupt(told: sim.Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sim.run(endless, tmp_path, progress=interrupt)
    with pytest.raises(sim.SimError, match=r"summary\.json is missing"):
        sim.Result(tmp_path)
    half = sim.Result(tmp_path, complete=False)
    assert half.rows("links") and half.rows("steps")


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install ray")
def test_a_sweep_over_ray_gives_the_same(tmp_path: Path) -> None:
    import ray

    plan = Sweep(SMALL, {"seed": [1, 2, 3]})
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        there = sim.sweep(plan, tmp_path / "ray", engine="ray")
        bad = Sweep(SMALL, {"jobs.0.workers": [17]})
        with pytest.raises(sim.SimError, match="17 workers on 16 hosts"):
            sim.sweep(bad, tmp_path / "bad", engine="ray")
    finally:
        ray.shutdown()
    here = sim.sweep(plan, tmp_path / "local")
    for name in plan.runs():
        assert there[name].summary == here[name].summary
        for table in ("flows.csv", "links.csv", "steps.csv"):
            assert (there[name].folder / table).read_bytes() == (here[name].folder / table).read_bytes()
