"""Parts of the demo that need no training: pauses, charts, the picture of the fabric."""

import time
from importlib import resources
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from rich.console import Console

from netsum.demo.faults import FaultScript, Kill
from netsum.demo.result import complaints
from netsum.demo.runner import Record
from netsum.demo.show import tables
from netsum.fabric.builtin import demo_toml
from netsum.fabric.description import Description
from netsum.pages.curves import chart
from netsum.pages.fabric import draw


def record(times: list[float]) -> Record:
    steps = [{"at_unix_s": at, "step": i, "seconds": 0.1} for i, at in enumerate(times)]
    return Record("netsum", {"batch": 16, "ranks": 4}, steps, [], [])


def test_a_pause_is_the_longest_gap_after_a_kill():
    found = record([0.0, 0.1, 0.2, 1.7, 1.8, 1.9, 5.9, 6.0])
    assert found.pause_after(0.25) == pytest.approx(3.9)
    assert found.pause_after(0.25, within_s=2.0) == pytest.approx(1.4)
    assert found.pause_after(5.95) == pytest.approx(0.0)


def test_a_kill_is_dated_before_what_follows_from_it():
    class Daemon:
        def kill(self) -> None:
            self.gone_at = time.time()

    daemon = Daemon()
    fabric = SimpleNamespace(daemon=lambda _: daemon)
    script = FaultScript(fabric, [Kill("spine1", 0.2)])
    at, words = script.advance(0.3, {"switches": []})
    assert at == script.kills[0].at_unix_s <= daemon.gone_at and "spine1 killed" in words


def test_throughput_counts_the_time_between_steps():
    assert record([0.0, 0.5, 1.0]).samples_per_s == pytest.approx(128.0)


def test_tables_fit_into_80_columns():
    result = {
        "workload": "characters",
        "held_out_loss": {"netsum": 2.084, "gloo": 2.085},
        "step_time_s": {"netsum": 0.1234, "gloo": 0.2345},
        "characters_per_s": {"netsum": 123456.0, "gloo": 234567.0},
        "uplink_bytes": {"netsum": 1234567890, "ring": 2345678901},
        "host_path_bytes": 0,
        "host_path_bytes_before": 214_800_000,
        "bit_identical": True,
        "control_sums": {"checked": 1056, "wrong_elements": 0},
        "equals_run_without_kills": True,
        "collectives": [{"operation": "reduce_scatter", "bytes": 1000, "calls": 5, "by": "switches"}],
        "link_bytes": {"rack0-spine0": {"netsum": 1e9, "ring": 2e9}},
        "pauses": [{"what": "spine1 killed", "seconds": 0.51}],
    }
    screen = Console(width=80, record=True)
    for table in tables(result):
        screen.print(table)
    shown = screen.export_text()
    # No cell goes on in a second line, in which the first column would be empty.
    assert not [line for line in shown.splitlines() if line.startswith("│  ")]
    assert "2345.7 MB (a ring's)" in shown and "Before the first step it was 214.8 MB" in " ".join(shown.split())


def test_a_shortened_training_may_be_worse():
    result = {
        "workload": "digits",
        "accuracy": {"netsum": 0.5, "gloo": 0.99},
        "epochs": 12,
        "bit_identical": True,
        "control_sums": {"wrong_elements": 0},
        "equals_run_without_kills": None,
        "operations": {"in_network": 1},
    }
    assert complaints(result) == ["accuracy on netsum is 50.00%, not above 95.00%"]
    assert complaints(result | {"epochs": 11}) == []


def test_charts_are_well_formed():
    series = {"a <b>": [(1, 2.5), (2, 0.1)], "c": [(1, 0.0), (2, 0.0)]}
    root = ElementTree.fromstring(chart("loss & more", " %", "epoch", series, marks=[(1.5, "spine1 <killed>")]))
    assert len(root.findall("polyline")) == 2


def test_all_lines_of_a_chart_have_a_colour_and_all_names_stand_inside():
    series = {f"a scheme of number {i}": [(0, i), (1, 2 * i + 1)] for i in range(11)}
    root = ElementTree.fromstring(chart("A title of some length", " ms", "time", series))
    css = resources.files("netsum.pages").joinpath("style.css").read_text()
    lines = [*root.findall("polyline"), *root.findall("line")]
    for name in {part for line in lines for part in line.get("class").split() if part.startswith("series")}:
        assert f".{name} {{ stroke" in css
    names = {text.text: text for text in root.findall("text") if text.text in series}
    assert len(names) == 11 and all(62 <= float(text.get("x")) < 700 for text in names.values())
    places = {(text.get("x"), text.get("y")) for text in names.values()}
    points = [point.split(",") for line in root.findall("polyline") for point in line.get("points").split()]
    highest = min(float(y) for _, y in points)
    assert len(places) == 11 and max(float(y) for _, y in places) < highest


def test_no_label_of_an_axis_is_clipped():
    series = {"a link": [(0, 0.0), (12_500, 0.00025)]}
    root = ElementTree.fromstring(chart("Rate", " Gbit/s", "milliseconds", series))
    ends = {text.text: float(text.get("x")) for text in root.findall("text") if text.get("text-anchor") == "end"}
    assert "0.0001 Gbit/s" in ends
    # A letter of this size is about 6.5 wide.
    assert all(x - 6.5 * len(name) >= 0 for name, x in ends.items()), ends


def test_charts_of_flat_and_single_points():
    ElementTree.fromstring(chart("flat", "", "epoch", {"a": [(1, 0.0)]}))


def test_the_picture_has_every_part(tmp_path):
    path = tmp_path / "demo.toml"
    path.write_text(demo_toml(77))
    fabric = Description.read(path)
    loads = {link.name: {"netsum": 1e6, "ring": 2e6} for link in fabric.links}
    text = draw(fabric, loads, ["h0", "h1", "h2", "h3"], {"spine1"})
    root = ElementTree.fromstring(text)
    assert len(root.findall("g")) == 8 and len(root.findall("rect")) == 8
    assert "rank 3" in text and "killed, came back" in text
