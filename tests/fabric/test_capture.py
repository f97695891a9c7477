"""What `netsum capture` at a rack switch costs the allreduces that pass it."""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
import time

import pytest

from fabric import Fabric, Workers
from network import Network
from test_throughput import write

TURNS = 5
TURN_S = 5.0
CAPTURE = "from netsum.cli import main; main()"


@pytest.mark.figures
@pytest.mark.skipif(shutil.which("dumpcap") is None, reason="needs dumpcap (make setup-wireshark)")
@pytest.mark.parametrize(("rate_mbps", "options"), [(100, ()), (1000, ("--bytes", "128")), (1000, ())])
def test_a_capture_costs_less_than_a_tenth_of_the_rate(rate_mbps, options, tmp_path):
    """In turns of one job: without a capture, with one. The rate of a turn is that of the hosts' links."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    lost = 0
    with Network(2, 2, 1, rate_mbps * 1_000_000) as network, Fabric(network) as fabric:
        # Until it is killed.
        arguments = {"sizes_mib": [max(rate_mbps // 100, 1)], "seconds": 3600}
        workers = Workers(fabric, network.hosts, "worker.py", json.dumps(arguments))
        try:
            workers.wait_for_step(0)
            for _ in range(TURNS):
                rates[False].append(_rate(network))
                file = tmp_path / "run.pcapng"
                command = [sys.executable, "-c", CAPTURE, "capture", str(file), "--json", *options]
                capture = subprocess.Popen(
                    [*network.inside("rack0"), *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
                assert "capturing into" in capture.stderr.readline()
                rates[True].append(_rate(network))
                capture.send_signal(signal.SIGINT)
                captured = json.loads(capture.communicate(timeout=60)[0])
                assert captured["packets"] > 0
                lost += captured["lost"]
                file.unlink()
        finally:
            for process in workers.processes:
                process.kill()
                process.wait(30)
    without, beside = (statistics.median(rates[on]) for on in (False, True))
    name = "capture-" + "-".join([str(rate_mbps), *(option.strip("-") for option in options)])
    result = {"without": rates[False], "with": rates[True], "ratio": beside / without, "lost": lost}
    write(name, {"unit": "bytes/s of all hosts' links", **result})
    assert beside >= 0.9 * without


def _rate(network: Network) -> float:
    """Bytes per second on all links of hosts, over a turn."""
    began, before = time.monotonic(), network.link_bytes()
    time.sleep(TURN_S)
    after, seconds = network.link_bytes(), time.monotonic() - began
    ends = [f"{host}>{network.rack_of[host]}" for host in network.hosts]
    return sum(after[end] - before[end] for end in ends) / seconds
