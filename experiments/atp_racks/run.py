"""Traffic saved by the two levels on the path into a server in another rack: `make fig FIG=atp_racks`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fabric_runs import Fabric, Job, Network, Slots, needs_root, rates, run
from figure import Chart, Claim, output_folder, page, write

RATE_BPS = 100_000_000
SECONDS = 6


def traffic(network: Network, slots: int) -> dict[str, float]:
    """Bytes into the server and over the racks' uplink per byte of the buffers summed, and the rate of these in
    bit/s."""
    server = network.hosts[3]
    with Fabric(network, slots=Slots(servers=(server,), slots=slots, policy="first-come")) as fabric:
        outcome = run(fabric, [Job(network.hosts[:3], "atp")], SECONDS)
    summed = outcome.lines[0][-1][1]
    return {
        "server": outcome.link_bytes[f"rack1>{server}"] / summed,
        "uplink": outcome.link_bytes["rack0>spine0"] / summed,
        "bps": rates(outcome)[0],
    }


def main() -> None:
    folder = output_folder("atp_racks")
    needs_root("atp_racks")
    with Network(2, 3, 1, RATE_BPS) as network:
        alone, added = traffic(network, 0), traffic(network, 4096)
    removed = {link: 1 - added[link] / alone[link] for link in ("server", "uplink")}
    claims = [
        Claim(
            "share of the traffic into the server that is removed, three workers in another rack",
            0.66,
            round(removed["server"], 3),
            abs(removed["server"] - 2 / 3) <= 0.03,
            "three contributions become one; headers, exponents and what is sent again go the same way",
        )
    ]
    lines = {link: [(0.0, alone[link]), (1.0, added[link])] for link in ("server", "uplink")}
    chart = Chart("bytes on the link per byte summed", "0: server alone, 1: slots at both levels", "bytes", lines)
    write(folder, claims, page([chart], 1), {"server_alone": alone, "with_slots": added, "removed": removed})


if __name__ == "__main__":
    main()
