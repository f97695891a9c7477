"""Skips all tests of this folder, with the reason, if the machine cannot run them."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import network


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = network.why_not()
    for item in items:
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
