"""Skips tests of clusters, with the reason, if the machine cannot run them."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import control_plane


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = control_plane.why_not()
    for item in items:
        if reason and "needs_cluster" in {mark.name for mark in item.iter_markers()}:
            item.add_marker(pytest.mark.skip(reason=reason))
