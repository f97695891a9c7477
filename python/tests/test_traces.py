"""Traces of operations and failovers: in a real OpenTelemetry collector, and what they cost when it is away."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="make setup-otel installs what traces need")

import numpy as np
from processes import BOUND_S, run_ranks, wait_until

from netsum.communicator import connect
from netsum.fabric.local import LocalFabric
from netsum.fabric.reservations import reserved_port
from netsum.traces import following

COLLECTOR = Path(__file__).parents[2] / "out/otel/netsum-collector"
RANKS = 3
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Endpoint and output of a running collector."""
    found = shutil.which("netsum-collector") or (str(COLLECTOR) if COLLECTOR.is_file() else None)
    if found is None:
        pytest.skip("make setup-otel builds the collector")
    output = tmp_path / "collector.txt"
    with reserved_port() as port, output.open("wb") as file:
        config = {
            "receivers::otlp::protocols::http::endpoint": f"127.0.0.1:{port}",
            "exporters::debug::verbosity": "detailed",
            "service::pipelines::traces::receivers": "[otlp]",
            "service::pipelines::traces::exporters": "[debug]",
            "service::telemetry::metrics::level": "none",
        }
        arguments = [f"--config=yaml:{key}: {value}" for key, value in config.items()]
        running = subprocess.Popen([found, *arguments], stderr=file, stdout=file)
        try:
            wait_until(lambda: "Everything is ready" in output.read_text() or running.poll() is not None)
            assert running.poll() is None, output.read_text()
            yield f"http://127.0.0.1:{port}", output
        finally:
            running.terminate()
            running.wait(BOUND_S)


def spans(output: Path) -> list[dict[str, str]]:
    """The spans that the collector has printed: their fields and attributes."""
    found = []
    for text in re.split(r"\nSpan #\d+\n", output.read_text())[1:]:
        fields = re.findall(r"^ +(?:-> )?([\w .]+?) *: (.*)$", text, re.MULTILINE)
        found.append({name: re.sub(r"^\w+\((.*)\)$", r"\1", value) for name, value in fields})
    return found


def sums(rank: int) -> int:
    with connect() as ours:
        for _ in range(4):
            ours.allreduce(np.ones(1 << 16, np.float32))
    return rank


def test_a_collective_is_a_trace_with_a_span_of_each_rank(collector: tuple[str, Path]) -> None:
    endpoint, output = collector
    run_ranks(sums, RANKS, **{ENDPOINT: endpoint, "NETSUM_CONTROLLER": "", "OTEL_RESOURCE_ATTRIBUTES": "team=x"})
    named = [span for span in spans(output) if span["Name"] == "netsum allreduce"]
    traces: dict[str, list[dict[str, str]]] = {}
    for span in named:
        traces.setdefault(span["Trace ID"], []).append(span)
    assert len(traces) == 4
    for trace in traces.values():
        assert sorted(span["netsum.rank"] for span in trace) == ["0", "1", "2"]
        assert len({span["netsum.operation.number"] for span in trace}) == 1
        (root,) = (span for span in trace if span["netsum.rank"] == "0")
        assert root["Parent ID"] == "" and root["netsum.operation.bytes"] == str(4 << 16)
        assert {span["Parent ID"] for span in trace if span is not root} == {root["ID"]}
        assert {span["Status code"] for span in trace} == {"Ok"}
    text = output.read_text()
    assert "service.name: Str(netsum)" in text and "team: Str(x)" in text


def test_a_failover_is_a_span(collector: tuple[str, Path], fabric: LocalFabric) -> None:
    endpoint, output = collector

    def body(rank: int) -> int:
        with connect() as ours:
            large = np.ones(1 << 18, np.float32)
            ours.allreduce(large)
            if rank == 0:
                fabric.daemon("spine1").kill()
            going = np.ones(1, np.float32)
            while going[0] > 0:
                ours.allreduce(large)
                going[0] = 0.0 if ours.stats()["pauses"] else 1.0
                ours.allreduce(going, op="min")
        return rank

    run_ranks(body, RANKS, **{ENDPOINT: endpoint}, **fabric.environment(), NETSUM_MIN_BYTES="0")
    failovers = [span for span in spans(output) if span["Name"] == "netsum failover"]
    assert sorted({span["netsum.rank"] for span in failovers}) == ["0", "1", "2"]
    assert all("spine1" in span["netsum.failover.cause"] for span in failovers)


def test_without_an_endpoint_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT, raising=False)
    monkeypatch.setattr(following, "_follower", None)
    following.follow(object())  # type: ignore[arg-type]
    assert following._follower is None


def test_a_collector_that_is_away_ends_no_job_and_delays_its_end_by_a_bound() -> None:
    with reserved_port() as port:
        assert run_ranks(sums, RANKS, **{ENDPOINT: f"http://127.0.0.1:{port}", "NETSUM_CONTROLLER": ""}) == [0, 1, 2]


def test_a_share_of_the_traces_is_sent_whole(collector: tuple[str, Path]) -> None:
    endpoint, output = collector

    def body(rank: int) -> int:
        with connect() as ours:
            for _ in range(100):
                ours.allreduce(np.ones(1 << 12, np.float32))
        return rank

    half = {ENDPOINT: endpoint, "NETSUM_CONTROLLER": "", "OTEL_TRACES_SAMPLER_ARG": "0.5"}
    run_ranks(body, RANKS, **half)
    traces: dict[str, int] = {}
    for span in spans(output):
        traces[span["Trace ID"]] = traces.get(span["Trace ID"], 0) + 1
    # 100 draws of 1/2: beyond these bounds once in some hundred million runs.
    assert 20 < len(traces) < 80 and set(traces.values()) == {RANKS}
