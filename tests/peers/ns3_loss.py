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

    for name in ("ns3_flows.cc", "ns3_recovery.cc", "ns3_loss.cc"):
        cppyy.cppdef(Path(__file__).with_name(name).read_text())
    results = [run(cppyy.gbl, scenario) for scenario in json.load(sys.stdin)]
    print(json.dumps({"flows": results, "version": version("ns3")}))


def run(gbl: Any, scenario: dict[str, Any]) -> list[dict[str, int]]:
    """One scenario: the parameters of `Run`; `ecn` for DCTCP, or else Reno; with `released` the recovery of ns-3 as it
    is, and not that of the RFCs."""
    numbers = gbl.std.vector["uint32_t"]
    sockets = ("ns3::TcpDctcp", "ns3::TcpLinuxReno") if scenario["released"] else ("peer::Dctcp", "peer::Reno")
    times = gbl.peer.Run(
        sockets[not scenario["ecn"]],
        "ns3::TcpPrrRecovery" if scenario["released"] else "peer::ProportionalReduction",
        scenario["senders"],
        scenario["bytes"],
        scenario["mark"],
        scenario["queue"],
        scenario["latency_ns"],
        numbers(scenario["starts_ns"]),
        numbers(scenario["data"]),
        numbers(scenario["acks"]),
    )
    return [{"start_ps": int(a), "end_ps": int(b)} for a, b in zip(times[0::2], times[1::2], strict=True)]


if __name__ == "__main__":
    main()
