"""Runs ns3_loss.cc on scenarios from standard input: start and completion time of each flow in ps, as JSON."""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def main() -> None:
    """Reads a list of scenarios, objects with the parameters of `run`; prints their flows."""
    import cppyy
    from ns import ns  # noqa: F401  Loads ns-3's libraries and headers into cling.

    for name in ("ns3_flows.cc", "ns3_loss.cc"):
        cppyy.cppdef(Path(__file__).with_name(name).read_text())
    results = [run(cppyy.gbl, scenario) for scenario in json.load(sys.stdin)]
    print(json.dumps({"flows": results, "version": version("ns3")}))


def run(gbl: Any, scenario: dict[str, Any]) -> list[dict[str, int]]:
    """One scenario: `ecn` (DCTCP, or else Reno), `senders`, `bytes`, `mark`, `queue`, `latency_ns`, `data`, `acks`."""
    numbers = gbl.std.vector["uint32_t"]
    times = gbl.peer.Run(
        "ns3::TcpDctcp" if scenario["ecn"] else "ns3::TcpLinuxReno",
        scenario["senders"],
        scenario["bytes"],
        scenario["mark"],
        scenario["queue"],
        scenario["latency_ns"],
        numbers(scenario["data"]),
        numbers(scenario["acks"]),
    )
    return [{"start_ps": int(a), "end_ps": int(b)} for a, b in zip(times[0::2], times[1::2], strict=True)]


if __name__ == "__main__":
    main()
