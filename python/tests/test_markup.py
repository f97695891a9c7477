"""Names that look like rich's markup are printed as they are."""

import io

import pytest
from rich.console import Console

from netsum.cli import app, doctor, fabric, output, top
from netsum.doctor.check import fail
from netsum.fabric.errors import FabricError

NAME = "[/bold][red]x"


def printed(monkeypatch, module, show) -> str:
    """A command's output on a wide terminal."""
    out = io.StringIO()
    for stream in ("console", "errors"):
        like = getattr(output, stream)
        wide = Console(file=out, width=400, markup=like._markup)
        if hasattr(module, stream):
            monkeypatch.setattr(module, stream, wide)
    show(module)
    return out.getvalue()


def status() -> dict:
    tree = {"tree": 0, "window": 1, "rtt_ns": 1, "results": 1, "retransmits": 0, "marks": 0}
    rank = {"rank": 0, "host": NAME, "state": "connected", "statistics": {"trees": [tree]}}
    job = {
        "job": 1,
        "name": NAME,
        "state": "running",
        "epoch": 1,
        "protocol": "panama",
        "encrypted": True,
        "trees": [{"root": NAME}],
        "choice": NAME,
        "reason": NAME,
        "ranks": [rank],
    }
    switch = {
        "name": NAME,
        "state": "up",
        "memory_used_bytes": 0,
        "memory_leased_bytes": 0,
        "memory_bytes": 0,
        "drops": {},
        "trees": [],
        "tenants": [{"tenant": NAME, "packets": 1, "bytes": 2, "marked": 3, "dropped": 4}],
    }
    return {
        "fabric": NAME,
        "switches": [switch],
        "links": [],
        "jobs": [job],
        "store": {"problem": f"{NAME}: the disk is full", "failing_for_s": 3.0},
    }


def test_top_shows_any_name(monkeypatch):
    shown = printed(monkeypatch, top, lambda module: module.console.print(module._screen(status(), status(), 1.0)))
    assert f"job 1 '{NAME}': running" in shown
    assert f"fabric {NAME}: switches" in shown
    assert "tenants beyond their rate or share" in shown
    assert f"for 3 s: {NAME}: the disk is full" in shown


def test_fabric_status_shows_any_name(monkeypatch):
    report = {"fabric": NAME, "address": "a", "parts": [{"name": NAME, "process": 1, "alive": True}]}

    def show(module):
        module.console.print(module._table(report))
        module.console.print(module._jobs(status()["jobs"]))

    assert printed(monkeypatch, fabric, show).count(NAME) >= 3


def test_doctor_shows_any_name(monkeypatch):
    checks = [fail("fabric", NAME, NAME)]
    assert printed(monkeypatch, doctor, lambda module: module.console.print(module._table(checks))).count(NAME) == 2


@pytest.mark.parametrize("text", [NAME, "a [b] c", "\\[x]"])
def test_errors_show_any_name(monkeypatch, text):
    def refuse(standalone_mode):
        raise FabricError(text)

    shown = printed(monkeypatch, app, lambda module: module._guarded(refuse))
    assert shown == f"error: {text}\n"
