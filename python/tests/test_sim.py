"""The simulator from Python: results, rejections, sweeps that resume, reports. Runs the real simulator."""

import base64
import html
import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from processes import wait_until
from typer.testing import CliRunner

from netsum import sim
from netsum.cli import sim as cli
from netsum.fabric import binaries
from netsum.sim import report, toml
from netsum.sim.picture import heat_map
from netsum.sim.result import TABLES
from netsum.sim.runner import GIVEN, SIMULATOR
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


def test_a_sweep_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / "deep.toml"
    deep.write_text("base = " + "[" * 20_000 + "]" * 20_000 + "\n")
    with pytest.raises(sim.SimError, match=r"deep\.toml: .*nested too deeply"):
        sim.Sweep.read(deep)


def test_a_configuration_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    deep: dict = {}
    for _ in range(5_000):
        deep = {"deeper": deep}
    with pytest.raises(sim.SimError, match="nested more than"):
        sim.run({"duration": "1ms", "fabric": deep}, tmp_path / "out")
    # What is refused here, the simulator would refuse as well.
    assert tomllib.loads(toml.dumps({"list": [[[[[1]]]]]})) == {"list": [[[[[1]]]]]}


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
    # Interrupted: no summary. Changed: another configuration. Only these two are run again.
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
        ('base = "none.toml"\n[grid]\nseed = [1]\n', r"base: there is no file .*none\.toml; give"),
        ("base = 5\n[grid]\nseed = [1]\n", "base: 5 is no path"),
        ('base = "base.toml"\ngrid = [1]\n', "grid: .* is no table"),
        ('base = "base.toml"\n[grid]\nname = [1979-05-27]\n', "holds no date"),
        ("\udcff\udcfe", "no UTF-8 text"),
    ]:
        file.write_text(text, errors="surrogateescape")
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

    # CSV has six digits; in Parquet, columns other than times have more.
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
        if told.steps > 0:
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
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
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


def test_files_of_a_grid_are_relative_to_the_sweep(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(f'name = "{name}"\nfaults = []\n')
    (tmp_path / "sizes.csv").write_text("")
    (tmp_path / "base.toml").write_text(toml.dumps(SMALL))
    file = tmp_path / "sweep.toml"
    file.write_text(
        'base = "base.toml"\n[grid]\nscenario = ["a.toml", "b.toml"]\n"flows.0.sizes" = ["sizes.csv", "web-search"]\n'
    )
    runs = Sweep.read(file).runs()
    assert runs["scenario=b.toml,flows.0.sizes=sizes.csv"]["scenario"] == str(tmp_path / "b.toml")
    sizes = [config["flows"][0]["sizes"] for config in runs.values()]
    assert sizes == [str(tmp_path / "sizes.csv"), "web-search"] * 2


def test_every_combination_has_a_folder_of_its_own() -> None:
    names = list(Sweep(SMALL, {"name": ["a b", "a_b", "a/b", "c"], "seed": [1, 2]}).runs())
    assert len(set(names)) == 8 and "name=c,seed=1" in names
    long = list(Sweep(SMALL, {"name": ["x" * 300, "x" * 300 + "y"]}).runs())
    assert len(set(long)) == 2 and all(len(name) < 255 for name in long)
    with pytest.raises(sim.SimError, match="seed lists 1 twice"):
        Sweep(SMALL, {"seed": [1, 2, 1]}).runs()


def test_a_sweep_runs_again_what_depends_on_a_changed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = tmp_path / "scenario.toml"
    scenario.write_text('name = "nothing"\nfaults = []\n')
    plan = Sweep(SMALL | {"scenario": str(scenario)}, {"seed": [1]})
    started = []

    def again() -> int:
        started.clear()
        sim.sweep(plan, tmp_path / "out", done=lambda name, *_: started.append(name))
        return len(started)

    assert [again(), again()] == [1, 0]
    scenario.write_text('name = "half is lost"\n[[faults]]\nkind = "loss"\nshare = 0.01\n')
    assert [again(), again()] == [1, 0]
    # Another simulator: the same name, but different bytes.
    wrapper = tmp_path / SIMULATOR
    wrapper.write_text(f'#!/bin/sh\nexec {binaries.find(SIMULATOR)} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("NETSUM_BIN", str(tmp_path))
    assert [again(), again()] == [1, 0]


def test_a_sweep_is_refused_before_its_first_run(tmp_path: Path) -> None:
    plan = Sweep(SMALL, {"flows.0.load": [0.1, 2.0, 0.3]})
    with pytest.raises(sim.SimError, match=r"^flows\.0\.load=2\.0: flows\.0\.load: a load of 2"):
        sim.sweep(plan, tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


def test_what_is_refused_leaves_nothing(tmp_path: Path) -> None:
    for config, options, reason in [
        (SMALL | {"duration": "soon"}, {}, r"^[^/]*soon"),
        (SMALL | {"seed": None}, {}, "holds no NoneType"),
        (SMALL, {"format": "xml"}, "^format: .*csv or parquet"),
        (SMALL, {"threads": 99_999}, "^threads: .*99999"),
    ]:
        with pytest.raises(sim.SimError, match=reason):
            sim.run(config, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()
    with pytest.raises(sim.SimError, match="without a run"):
        sim.sweep({}, tmp_path / "out")
    (tmp_path / "file").touch()
    for start in (sim.run, lambda config, out: sim.sweep({"a": config}, out)):
        with pytest.raises(sim.SimError, match="cannot write the results"):
            start(SMALL, tmp_path / "file")


@pytest.mark.parametrize("command", ["run", "sweep"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_says_where_it_was_interrupted(tmp_path: Path, command: str, number: int) -> None:
    endless = SMALL | {"duration": "20s", "jobs": [SMALL["jobs"][0] | {"steps": 1_000_000}]}
    (tmp_path / "base.toml").write_text(toml.dumps(endless))
    (tmp_path / "sweep.toml").write_text('base = "base.toml"\n[grid]\nseed = [1, 2, 3]\n')
    file, out = {"run": ("base.toml", "out"), "sweep": ("sweep.toml", "out/seed=1")}[command]
    main = "from netsum.cli import main; main()"
    started = subprocess.Popen(
        [sys.executable, "-c", main, "sim", command, file, "--out", "out"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: (tmp_path / out / "links.csv").exists())
    # Ctrl-C in a terminal reaches the whole group.
    started.send_signal(number) if number == signal.SIGTERM else os.killpg(started.pid, number)
    said = started.communicate(timeout=300)[1]
    assert started.returncode == 128 + number
    expected = {"run": "the tables in out end there", "sweep": "interrupted: 0 of 3 are done; the same command goes on"}
    assert expected[command] in said
    assert sim.Result(tmp_path / out, complete=False).rows("links")


def test_a_report_does_not_outlive_its_tables(tmp_path: Path) -> None:
    page = report.write(sim.run(SMALL, tmp_path))
    with pytest.raises(sim.SimError):
        sim.run(SMALL | {"duration": "soon"}, tmp_path)
    assert page.exists()
    sim.run(SMALL | {"seed": 2}, tmp_path)
    assert not page.exists()


def test_the_command_wants_pyarrow_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = tmp_path / "run.toml"
    file.write_text(toml.dumps(SMALL | {"format": "parquet"}))
    ended = CliRunner().invoke(cli.app, ["run", str(file), "--out", str(tmp_path / "out")])
    assert isinstance(ended.exception, sim.SimError) and "pip install pyarrow" in str(ended.exception)
    assert not (tmp_path / "out").exists()


def test_a_resumed_sweep_shows_all_runs_and_what_differs(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(toml.dumps(SMALL))
    file = tmp_path / "sweep.toml"
    file.write_text('base = "base.toml"\n[grid]\n"scheme.kind" = ["ring"]\nseed = [18001, 18002]\n')
    for _ in range(2):
        ended = CliRunner().invoke(cli.app, ["sweep", str(file), "--out", str(tmp_path / "out")])
        assert ended.exit_code == 0, ended.exception
        assert "2/2" in ended.output
        assert "18001" in ended.output and "18002" in ended.output and "ring" not in ended.output


def test_the_table_of_a_sweep_fits_into_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.console, "_width", 80)
    (tmp_path / "base.toml").write_text(toml.dumps(SMALL))
    file = tmp_path / "sweep.toml"
    file.write_text(
        'base = "base.toml"\n[grid]\n"scheme.kind" = ["ring", "halving-doubling"]\n"flows.0.load" = [0.1, 0.2]'
    )
    shown = CliRunner().invoke(cli.app, ["sweep", str(file), "--out", str(tmp_path / "out")]).output
    for whole in ("┃ kind ", "┃ load ", "│ halving-doubling │ 0.2  │", "packet-hops"):
        assert whole in shown


@pytest.mark.parametrize("odd", [{"flows": 5}, {"fabric": {"kind": "file", "path": 5}}, {"scenario": 5}])
def test_a_base_that_makes_no_sense_is_refused(tmp_path: Path, odd: dict) -> None:
    (tmp_path / "base.toml").write_text(toml.dumps(SMALL | odd))
    (tmp_path / "sweep.toml").write_text('base = "base.toml"\n[grid]\nseed = [1]\n')
    with pytest.raises(sim.SimError, match=r"^seed=1: .*invalid type"):
        sim.sweep(Sweep.read(tmp_path / "sweep.toml"), tmp_path / "out")


def test_a_report_has_a_line_per_part_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    links = [f"h{i}>rack{i // 4}.{i // 2 % 2}" for i in range(7)]
    page = report.render(sim.run(SMALL | {"scheme": {"kind": "ideal"}}, tmp_path / "ideal"))
    rate = next(picture for picture in re.findall(r"<svg.*?</svg>", page, re.DOTALL) if ">Rate<" in picture)
    assert rate.count("<polyline") == 4 and "h0→rack0.0 (jobs)" in rate
    for line in re.findall(r'points="([^"]*)"', rate):
        times = [float(point.split(",")[0]) for point in line.split()]
        assert times == sorted(times)
    page = report.render(sim.run(SMALL | {"samples": {"every": "50us", "links": links}}, tmp_path / "many"))
    assert "Not drawn, and in the table of samples: h6→rack1.1." in page


def test_a_report_moves_if_all_links_are_sampled(tmp_path: Path) -> None:
    result = sim.run(SMALL | {"samples": {"every": "20us", "links": ["*"]}}, tmp_path)
    links, samples = result.rows("links"), result.rows("samples")
    assert {(row["from"], row["to"]) for row in samples} == {(row["from"], row["to"]) for row in links}
    page = report.render(result)
    facts = json.loads(html.unescape(re.search(r'data-animation="([^"]*)"', page).group(1)))
    busy = list(base64.b64decode(facts["busy"]))
    assert facts["links"] == len(links) and len(busy) == len(links) * len(facts["times"]) and len(facts["levels"]) == 64
    assert len(facts["times"]) <= 240
    from_ms, to_ms = (float(time) for time in re.findall(r"[\d.]+", facts["times"][3]))
    simulated = result.summary["simulated_us"] / 1e3
    assert float(re.findall(r"[\d.]+", facts["times"][-1])[1]) <= simulated
    # The intervals together are as busy as the whole run, each to within half a level.
    for at, link in enumerate(links):
        own = busy[at * len(facts["times"]) :][: len(facts["times"])]
        part = sum(own) / 63 * (to_ms - from_ms) / simulated
        off = len(own) * (to_ms - from_ms) / simulated / 126 + 0.05 * link["utilisation"] + 0.002
        assert abs(part - link["utilisation"]) < off, link
    lines = re.findall(r"<title>([^<]*)</title>", page[page.index("data-animation") :])
    assert lines == [f"{link['from']} → {link['to']}" for link in links]
    still = report.render(sim.run(SMALL, tmp_path / "some"))
    assert "data-animation" not in still and "<script>" not in still


def test_a_single_flow_is_reported(tmp_path: Path) -> None:
    config = {name: SMALL[name] for name in ("duration", "drain", "fabric")}
    (tmp_path / "trace.csv").write_text("start_us,src,dst,bytes\n0,0,1,1000\n")
    config["flows"] = [{"kind": "trace", "path": str(tmp_path / "trace.csv")}]
    page = report.render(sim.run(config, tmp_path / "out"))
    assert "<h2>Flows</h2>" in page and "FCT of flows below 40 MB" in page


def test_jobs_that_did_not_complete_are_counted(tmp_path: Path) -> None:
    jobs = [*SMALL["jobs"], SMALL["jobs"][0] | {"steps": 1_000_000}]
    (tmp_path / "run.toml").write_text(toml.dumps(SMALL | {"jobs": jobs, "drain": "0ms"}))
    ended = CliRunner().invoke(cli.app, ["run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")])
    assert "1 job had not completed its steps when the run ended" in ended.output
    assert "1 job had not completed its steps" in (tmp_path / "out" / "report.html").read_text()


def _lines(links: list[tuple[str, str]], hosts: set[str]) -> dict[str, tuple[float, ...]]:
    rows = [{"from": a, "to": b, "utilisation": 0.5, "dropped_packets": 0} for a, b in links]
    picture = ElementTree.fromstring(heat_map(rows, hosts))
    return {
        line[0].text.split(":")[0]: tuple(float(line.get(k)) for k in ("x1", "y1", "x2", "y2"))
        for line in picture.iter("line")
    }


def test_no_direction_of_a_link_hides_the_other() -> None:
    ends = [("h0", "left"), ("h1", "right"), ("left", "right")]
    lines = _lines([*ends, *((b, a) for a, b in ends)], {"h0", "h1"})
    there, back = lines["left → right"], lines["right → left"]
    assert there[1] < back[1] and there[0] == back[2]
    assert lines["h0 → left"][0] < lines["left → h0"][2]


def test_a_spine_with_one_rack_is_no_host() -> None:
    ends = [("h0", "rack0"), ("h1", "rack0"), ("rack0", "spine0"), ("rack0", "spine1")]
    lines = _lines([*ends, *((b, a) for a, b in ends)], {"h0", "h1"})
    assert lines["rack0 → spine0"][3] < lines["rack0 → spine0"][1] < lines["h0 → rack0"][1]


def test_the_picture_of_a_fabric_file_takes_its_hosts_for_hosts(tmp_path: Path) -> None:
    text = 'name = "x"\ncontroller = "10.0.0.1:1"\n'
    for place, name in enumerate(("rack", "h9")):
        text += f'[[switch]]\nname = "{name}"\naddress = "10.0.1.{place}:1"\nmemory = "1MiB"\n'
    for place, name in enumerate(("gpu", "cpu")):
        text += f'[[host]]\nname = "{name}"\naddress = "10.0.0.{place}"\n'
    for name in ("h9", "gpu", "cpu"):
        text += f'[[link]]\nends = ["{name}", "rack"]\nrate = "10Gbit/s"\n'
    (tmp_path / "fabric.toml").write_text(text)
    fabric = {"kind": "file", "path": str(tmp_path / "fabric.toml")}
    flows = [{"kind": "permutation", "bytes": 1000}]
    page = report.render(sim.run({"duration": "1ms", "fabric": fabric, "flows": flows}, tmp_path / "out"))
    picture = re.findall(r"<svg.*?</svg>", page, re.DOTALL)[-1]
    lines = {line[0].text.split(":")[0]: line for line in ElementTree.fromstring(picture).iter("line")}
    spine, rack = (float(lines[f"{name} → {other}"].get("y1")) for name, other in (("h9", "rack"), ("rack", "gpu")))
    assert spine < rack


def test_no_name_of_a_picture_is_clipped() -> None:
    long = "rack-with-a-name-of-its-own-17"
    links = [
        {"from": a, "to": b, "utilisation": 0.5, "dropped_packets": 0}
        for host in ("a-host-of-the-second-floor", "another-host-of-the-second-floor")
        for a, b in ((host, long), (long, host))
    ]
    svg = heat_map(links, {link["from"] for link in links} - {long})
    width, height = map(int, re.search(r'viewBox="0 0 (\d+) (\d+)"', svg).groups())
    names = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"( transform="rotate\(35)?[^>]*>([^<]+)</text>', svg)
    assert len(names) >= 3
    for x, y, slanted, name in names:
        # A letter of this size is about 6 wide.
        right, down = (math.cos(math.radians(35)), math.sin(math.radians(35))) if slanted else (1.0, 0.0)
        length = 6 * len(name) if "busy" not in name else 0
        assert float(x) + right * length <= width and float(y) + down * length <= height, name


def test_a_heat_map_has_names_and_a_scale() -> None:
    rows = [{"from": a, "to": b, "utilisation": 0.5, "dropped_packets": 0} for a, b in [("h0", "<s>"), ("<s>", "h0")]]
    texts = [text.text for text in ElementTree.fromstring(heat_map(rows, {"h0"})).iter("text")]
    assert texts == ["h0", "<s>", "busy: 0 %", "100 %"]


def test_the_example_completes_its_steps(tmp_path: Path) -> None:
    result = sim.run(Path(__file__).parents[2] / "experiments" / "example.toml", tmp_path)
    assert result.unfinished_jobs == 0 and len(result.rows("steps")) == 4


def test_an_interruption_between_two_runs_ends_the_others(tmp_path: Path) -> None:
    endless = SMALL | {"duration": "20s", "jobs": [SMALL["jobs"][0] | {"steps": 1_000_000}]}

    def interrupt(*_: object) -> None:
        wait_until(lambda: (tmp_path / "long" / "links.csv").exists())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sim.sweep({"long": endless, "short": SMALL}, tmp_path, workers=2, done=interrupt)
    assert sim.Result(tmp_path / "long", complete=False).rows("links")
