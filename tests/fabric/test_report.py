"""What `netsum report` advises, followed: the predicted step against the clock of the ranks, on shaped links.

Links are slow, so that they and not the processors of the machine say how long sums take.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import statistics
from typing import Any

import pytest

from fabric import Fabric, Workers
from netsum.report.files import read
from netsum.report.summary import summarize
from network import DELAY_LINE, Network
from test_throughput import write

RATE_BPS = 20_000_000
NEAR = 0.1


@dataclasses.dataclass(frozen=True)
class Case:
    """A job, the advice on it, and the same job with the advice followed: other arguments, settings and hosts.

    network: hosts per rack, spines, rate of the racks' uplinks, delay of links in microseconds.
    """

    advice: str
    network: tuple[int, int, int, int] = (2, 2, RATE_BPS, 0)
    hosts: tuple[str, ...] = ("h0", "h1", "h2", "h3")
    job: dict[str, Any] = dataclasses.field(default_factory=dict)
    settings: dict[str, str] = dataclasses.field(default_factory=dict)
    then_job: dict[str, Any] = dataclasses.field(default_factory=dict)
    then_settings: dict[str, str] = dataclasses.field(default_factory=dict)
    then_hosts: tuple[str, ...] | None = None
    gains: tuple[float, float] = (0.1, 0.9)
    """The smallest and the largest share of the step that the case is made for."""


DEFAULTS = {"steps": 16, "compute_s": 0.05, "sums": [1 << 18], "dtype": "float32", "overlap": False}
BY_SWITCHES = {"NETSUM_MIN_BYTES": "0"}

CASES = {
    "more trees": Case(
        "trees",
        network=(2, 2, RATE_BPS // 2, 0),
        settings={"NETSUM_MAX_TREES": "1"},
        then_settings={"NETSUM_MAX_TREES": "2"},
    ),
    "another placement": Case(
        "placement",
        network=(4, 1, RATE_BPS * 2 // 5, 0),
        hosts=("h0", "h1", "h4", "h5"),
        then_hosts=("h0", "h1", "h2", "h3"),
    ),
    "bfloat16": Case("bfloat16", then_job={"dtype": "bfloat16"}),
    "larger buckets": Case(
        "buckets",
        network=(2, 2, RATE_BPS, 4000),
        job={"sums": [1 << 15, *[1 << 10] * 8], "steps": 20},
        settings=BY_SWITCHES,
        then_job={"sums": [(1 << 15) + 8 * (1 << 10)]},
    ),
    # Two ranks of a host add in its memory; through switches each sends its own bytes over the host's link.
    "small batches that compute most of the time": Case(
        "hosts",
        hosts=("h0", "h0", "h2", "h2"),
        job={"sums": [1 << 14] * 2, "compute_s": 0.3},
        settings=BY_SWITCHES,
        then_settings={"NETSUM_MIN_BYTES": str(1 << 30)},
        gains=(0.03, 0.25),
    ),
    # Only the last sum is not hidden, and only its gain may be promised.
    "computing that hides the sums": Case(
        "bfloat16",
        job={"sums": [1 << 15] * 8, "compute_s": 0.6, "overlap": True},
        then_job={"dtype": "bfloat16"},
        gains=(0.01, 0.12),
    ),
}


def followed(
    fabric: Fabric, case: Case, job: dict[str, Any], settings: dict[str, str], hosts: tuple[str, ...]
) -> float:
    """The median step of a job, by the clocks of its ranks."""
    arguments = json.dumps(DEFAULTS | case.job | job)
    workers = Workers(fabric, list(hosts), "report_worker.py", arguments, **case.settings | settings)
    return statistics.median(result["step_s"] for result in workers.wait())


@pytest.mark.figures
@pytest.mark.parametrize("name", CASES)
def test_an_advice_that_is_followed_gives_the_predicted_step(name: str, tmp_path: pathlib.Path) -> None:
    case = CASES[name]
    hosts_per_rack, spines, uplink_bps, delay_us = case.network
    if delay_us and not DELAY_LINE.exists():
        pytest.skip("cargo build --release -p netsum-net --example delay_line")
    with (
        Network(2, hosts_per_rack, spines, RATE_BPS, uplink_bps, delay_us=delay_us) as network,
        Fabric(network) as fabric,
    ):
        now_s = followed(fabric, case, {}, {"NETSUM_REPORT": str(tmp_path)}, case.hosts)
        then_s = followed(fabric, case, case.then_job, case.then_settings, case.then_hosts or case.hosts)
    summary = summarize(read(tmp_path))
    (advice,) = (each for each in summary["advice"] if each["key"] == case.advice)
    figures = {"now_s": now_s, "reported_s": summary["steps"]["seconds"], "then_s": then_s}
    figures |= {"predicted_s": advice["step_s"], "error": advice["step_s"] / then_s - 1, "how": advice["how"]}
    write(f"report-{case.advice}-{len(name)}", {"case": name, **figures})
    assert summary["steps"]["seconds"] == pytest.approx(now_s, rel=0.05)
    assert advice["step_s"] == pytest.approx(then_s, rel=NEAR), figures
    least, most = case.gains
    assert least <= 1 - then_s / now_s <= most, figures
    assert least <= advice["gain"] <= most, figures
