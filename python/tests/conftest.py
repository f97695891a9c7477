"""Fixtures of all tests."""

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from netsum.fabric.builtin import demo_toml, free_block
from netsum.fabric.description import Description
from netsum.fabric.local import LocalFabric, temporary

BLOCKS = range(200, 250)
"""Second bytes of the loopback blocks 127.X.0.0/16 of tests: those of `netsum demo` and `netsum run` are lower."""


def pytest_configure() -> None:
    # A shell that starts a background command makes it ignore Ctrl-C, which all processes started by the tests would
    # inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def block() -> Iterator[int]:
    """A loopback block that no other fabric on this machine uses."""
    reserved = free_block(random.sample(BLOCKS, len(BLOCKS)))
    yield reserved.number
    reserved.release()


@pytest.fixture
def fabric_file(tmp_path: Path, block: int) -> Path:
    """The demo's fabric on its own addresses."""
    path = tmp_path / "fabric.toml"
    path.write_text(demo_toml(block))
    return path


@pytest.fixture
def fabric(fabric_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalFabric]:
    """The same fabric, running."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with temporary(Description.read(fabric_file)) as running:
        yield running
