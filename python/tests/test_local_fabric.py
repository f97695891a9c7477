"""A local fabric on a busy machine: late answers are waited for, impossible ones are not."""

from pathlib import Path

import pytest

from netsum.fabric import local
from netsum.fabric.description import Description
from netsum.fabric.errors import FabricError

SWITCHES = ["rack0", "rack1", "spine0", "spine1"]


def _late(monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """Let the controller appear too busy for `times` calls; returns the addresses, call by call."""
    asked, answer = [], local.controller_status

    def status(address: str, timeout_s: float, credentials: Path) -> dict:
        asked.append(address)
        if len(asked) <= times:
            raise FabricError(f"no controller answers at {address}: deadline has elapsed")
        return answer(address, timeout_s, credentials)

    monkeypatch.setattr(local, "controller_status", status)
    return asked


def test_a_controller_that_answers_late_is_asked_again(fabric, monkeypatch):
    asked = _late(monkeypatch, 3)
    fabric.wait_alive(SWITCHES)
    assert len(asked) == 4


def test_a_controller_that_has_ended_is_not_waited_for(fabric, monkeypatch):
    asked = _late(monkeypatch, 1000)
    fabric.process("controller").kill()
    with pytest.raises(FabricError, match="deadline has elapsed"):
        fabric.wait_alive(SWITCHES)
    assert len(asked) == 1


def test_a_controller_that_never_answers_is_named(fabric, monkeypatch):
    monkeypatch.setattr(local, "JOIN_S", 0.1)
    _late(monkeypatch, 1_000_000)
    with pytest.raises(FabricError, match="deadline has elapsed"):
        fabric.wait_alive(SWITCHES)


def test_a_switch_that_has_ended_is_named(fabric):
    fabric.process("rack1").kill()
    while "rack1" in local.alive_switches(fabric.status()):
        pass
    with pytest.raises(FabricError, match="rack1 has ended"):
        fabric.wait_alive(SWITCHES)


def test_a_trusted_fabric_has_no_certificates(fabric_file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # One that is meant for another fabric must not count.
    monkeypatch.setenv("NETSUM_CREDENTIALS", str(tmp_path / "another"))
    fabric_file.write_text("trusted = true\n" + fabric_file.read_text())
    with local.temporary(Description.read(fabric_file)) as fabric:
        assert fabric.environment()["NETSUM_CREDENTIALS"] == ""
        assert local.alive_switches(fabric.status()) >= set(SWITCHES)
        assert not (fabric.folder / "credentials").exists() and not (fabric.folder / "ca").exists()
        assert "no credentials" in fabric.process("controller").log_tail()
