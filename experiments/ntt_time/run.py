"""NTT slide 30: time to find a topology, over the number of workers."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from figure import Chart, Claim, output_folder, page, write
from netsum.ocs import Ocs, answer, compare, curve

WORKERS = (16, 32, 64, 128, 256, 512, 1024, 2048)
RUNS = 5


def main() -> None:
    folder = output_folder("ntt_time")
    times: dict[str, list[tuple[float, float]]] = {"closed form and bound": [], "programme": [], "plan, checked": []}
    for workers in WORKERS:
        most = -(-(workers - 2) // 6) * 8
        network = Ocs(workers, 8, most // 2, 8)
        times["closed form and bound"].append((workers, _best(lambda network=network: compare(network))))
        all_devices = Ocs(workers, 8, most, 8)
        times["programme"].append((workers, _best(lambda network=all_devices: curve(network, "dp"))))
        times["plan, checked"].append((workers, _best(lambda network=network: answer(network))))
    last = {name: line[-1][1] for name, line in times.items()}
    claims = [
        Claim(
            "N=2,048: time to find the best composition for one number of devices",
            "under 5 minutes",
            f"{last['closed form and bound'] * 1e3:.3f} ms",
            last["closed form and bound"] <= 1e-3,
            "a closed form in place of a programme; with the bound, and as JSON to Python; at most 1 ms is asked for",
        ),
        Claim(
            "N=2,048: the same by dynamic programme, for every number of devices at once",
            "under 5 minutes",
            f"{last['programme']:.3f} s",
            last["programme"] <= 2,
            "one stage per tree in place of a table over worker ports; at most 2 s is asked for",
        ),
    ]
    chart = Chart("D = 8, E = 8, one core", "workers N", "seconds", times, logarithmic=True)
    write(folder, claims, page([chart], 1), {name: dict(line) for name, line in times.items()})


def _best(call) -> float:
    """Seconds of the fastest of some calls."""
    times = []
    for _ in range(RUNS):
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return min(times)


if __name__ == "__main__":
    main()
