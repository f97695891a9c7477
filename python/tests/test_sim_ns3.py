"""The simulator compared with ns-3, in one run. Skipped if ns-3 is not installed.

ns-3's Python package may be in a separate environment: NETSUM_NS3_PYTHON names its interpreter.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from netsum import sim

SCRIPT = Path(__file__).parents[2] / "tests" / "peers" / "ns3_permutation.py"
# The permutation of docs/simulator.md: host i sends to RECEIVERS[i].
RECEIVERS = [5, 13, 3, 10, 8, 9, 1, 2, 6, 4, 12, 14, 0, 15, 7, 11]
K, BYTES, MARK = 4, 1_000_000, 85


def _interpreter() -> str:
    given = os.environ.get("NETSUM_NS3_PYTHON")
    if given:
        return given
    if importlib.util.find_spec("ns") is None:
        pytest.skip("ns-3 is not installed: pip install ns3, or NETSUM_NS3_PYTHON=PYTHON of an environment that has it")
    return sys.executable


def test_a_permutation_takes_as_long_as_in_ns3(tmp_path: Path) -> None:
    command = [_interpreter(), str(SCRIPT), str(K), str(BYTES), str(MARK), *map(str, RECEIVERS)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    theirs = sorted(json.loads(finished.stdout.splitlines()[-1])["fct_us"])
    result = sim.run(_config(), tmp_path)
    ours = sorted(row["fct_us"] for row in result.rows("flows"))
    assert len(ours) == len(theirs) == 16 and theirs[0] > 0
    for place, name in ((8, "median"), (15, "last")):
        ratio = ours[place] / theirs[place]
        print(f"{name}: {ours[place]:.1f} µs, ns-3 {theirs[place]:.1f} µs, ratio {ratio:.3f}")
        assert abs(ratio - 1) <= 0.05, name


def _config() -> dict:
    flows = [{"kind": "one", "src": src, "dst": dst, "bytes": BYTES} for src, dst in enumerate(RECEIVERS)]
    return {
        "duration": "1ms",
        "drain": "1s",
        "fabric": {"kind": "fat-tree", "k": K, "latency": "1us"},
        # One more than ns-3, which does not count the packet in the device's own queue.
        "switch": {"mark_packets": MARK + 1, "queue_packets": 1000, "paths": "destination"},
        "flows": flows,
    }
