"""`netsum top`: rates from counters, and names that look like markup."""

import pytest
import typer
from rich.console import Console

from netsum.cli import top
from netsum.cli.top import _screen, link_rates
from netsum.reports import ControllerStatus, JobStatus, LinkStatus

JOB: JobStatus = {
    "job": 7,
    "name": "[/bold]",
    "size": 1,
    "state": "running",
    "epoch": 1,
    "order": "",
    "trees": [],
    "reason": "[red]",
    "window_max": 0,
    "fragment_bytes": 0,
    "ranks": [{"rank": 0, "host": "[h0]", "pid": 1, "state": "connected", "udp_address": "", "statistics": None}],
    "created_unix_s": 0.0,
    "protocol": "panama",
    "choice": "",
    "tenant": "",
    "tags": False,
    "encrypted": False,
}


def _status(*links: LinkStatus) -> ControllerStatus:
    head = {"fabric": "[/f]", "address": "127.0.0.1:1", "version": "0", "uptime_s": 1.0}
    listed = {"hosts": [], "switches": [], "links": list(links), "jobs": [JOB]}
    return {**head, **listed, "incarnation": 1, "store": None}


def _link(ab: int, ba: int) -> LinkStatus:
    return {"a": "[/x]", "b": "y", "rate_bps": 1000, "bytes_ab": ab, "bytes_ba": ba, "up": True}


def test_a_counter_that_fell_was_started_again():
    (rates,) = link_rates(_status(_link(100, 50)), _status(_link(300, 20)), 2.0)
    assert (rates["ab_bps"], rates["ba_bps"]) == (8 * 200 / 2, 8 * 20 / 2)
    (new,) = link_rates(_status(), _status(_link(300, 20)), 1.0)
    assert (new["ab_bps"], new["ba_bps"]) == (2400, 160)


def test_names_that_look_like_markup_are_shown_as_they_are():
    console = Console(record=True, width=200)
    console.print(_screen(_status(_link(0, 0)), _status(_link(9, 9)), 1.0))
    said = console.export_text()
    for name in ("'[/bold]'", "[red]", "[h0]", "[/x] - y", "[/f]"):
        assert name in said, said


def test_ctrl_c_is_the_usual_end(monkeypatch, capsys):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(top, "controller_of", lambda _: ("127.0.0.1:1", None))
    monkeypatch.setattr(top, "controller_status", lambda *_, **__: _status())
    monkeypatch.setattr(top, "stop_on_termination", lambda: None)
    monkeypatch.setattr(top, "PERIOD_S", 0.0)
    monkeypatch.setattr(top, "_watch", interrupted)
    with pytest.raises(typer.Exit) as ended:
        top.top()
    assert ended.value.exit_code == 130 and capsys.readouterr() == ("", "")
