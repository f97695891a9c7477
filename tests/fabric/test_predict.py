"""`netsum predict` against the emulated fabric: jobs recorded on links of one rate, replayed for links of another, and
run there."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from fabric import Fabric, Workers
from netsum.sim.predict import predict
from network import QUEUE_BYTES, Network
from test_throughput import write

STEPS = 10
JOB = {"steps": STEPS, "width": 1024, "layers": 4, "layer_s": 0.05}
RECORDED_BPS = 1_000_000_000
RATES_BPS = (50_000_000, 100_000_000)
BETWEEN_HOSTS = {"NETSUM_MIN_BYTES": "1073741824", "NETSUM_ALGORITHMS": "allreduce=shares"}
WAYS = {"shares": BETWEEN_HOSTS, "panama": {}}
"""By the simulator's name of the scheme: the environment of a job that sums so."""
SETTINGS = {"switch": {"queue_packets": QUEUE_BYTES // 1514, "mark_packets": QUEUE_BYTES}, "tcp": {"ecn": False}}
"""The emulated cluster: deep queues that do not mark."""


def measured(network: Network, recorder: Path | None, **environment: str) -> float:
    """Seconds of a step, the median over steps of the slowest rank."""
    arguments = json.dumps(JOB | ({} if recorder is None else {"folder": str(recorder)}))
    with Fabric(network) as fabric:
        found = Workers(fabric, network.hosts, "predict_worker.py", arguments, **environment).wait()
    return max(statistics.median(each["seconds"]) for each in found)


@pytest.mark.figures
def test_steps_take_as_long_as_predicted(tmp_path: Path) -> None:
    result = {"job": JOB, "recorded_bps": RECORDED_BPS, "predictions": []}
    fast = Network(2, 2, 1, RECORDED_BPS)
    with fast:
        recorded = {way: measured(fast, tmp_path / way, **given) for way, given in WAYS.items()}
    for rate in RATES_BPS:
        with Network(2, 2, 1, rate) as network:
            file = tmp_path / f"{rate}.toml"
            with Fabric(network) as fabric:
                file.write_text(fabric.file.read_text())
            for way, given in WAYS.items():
                found = predict(tmp_path / way, file, scheme=way, settings=SETTINGS)
                result["predictions"].append(
                    {
                        "scheme": way,
                        "rate_bps": rate,
                        "recorded_s": recorded[way],
                        "predicted_s": found.predicted_s,
                        "measured_s": measured(network, None, **given),
                    }
                )
    write("predict", result)
    for each in result["predictions"]:
        assert abs(each["predicted_s"] / each["measured_s"] - 1) < 0.1, each
