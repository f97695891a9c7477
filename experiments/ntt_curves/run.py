"""NTT slides 25 to 29: algbw over that of rings, over the number of devices, for six pairs of N and E."""

import sys
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from figure import Chart, Claim, output_folder, page, write
from netsum.ocs import Ocs, compare, curve

PORTS = 8
PAIRS = ((16, 8), (32, 8), (64, 8), (16, 16), (32, 16), (64, 16))
WAYS = ("rings", "baseline", "closed", "shared", "bound")
NAMES = ("rings", "full trees, or rings", "slides' method", "shared (ours)", "bound")


def main() -> None:
    folder = output_folder("ntt_curves")
    curves = {pair: _curve(*pair) for pair in PAIRS}
    charts = [_chart(*pair, rows) for pair, rows in curves.items()]
    data = {f"N={n} E={e}": [{way: str(row[way]) for way in WAYS} for row in rows] for (n, e), rows in curves.items()}
    write(folder, _claims(curves), page(charts, 3), data)


def _curve(n: int, e: int) -> list[dict[str, Fraction]]:
    """algbw of each method per number of devices, up to as many full trees as ports."""
    most = -(-(n - 2) // (e - 2)) * PORTS
    network = Ocs(n, PORTS, most, e)
    closed, shared = curve(network, "closed"), curve(network, "shared")
    rows = []
    for devices in range(most + 1):
        known = compare(Ocs(n, PORTS, devices, e))
        row = {"rings": known["rings"], "baseline": known["baseline"], "bound": known["bound"]["algbw"]}
        row |= {"closed": closed[devices], "shared": shared[devices], "whole": known["bound"]["whole_devices"]}
        rows.append({name: Fraction(rate) for name, rate in row.items()})
    return rows


def _chart(n: int, e: int, rows: list[dict[str, Fraction]]) -> Chart:
    lines = {
        name: [(devices, float(row[way] / row["rings"])) for devices, row in enumerate(rows)]
        for way, name in zip(WAYS, NAMES, strict=True)
    }
    return Chart(f"N = {n}, D = {PORTS}, E = {e}", "devices M", "algbw over rings", lines, True, dashed={"bound"})


def _claims(curves: dict[tuple[int, int], list[dict[str, Fraction]]]) -> list[Claim]:
    first = {pair: _first(rows, "baseline") for pair, rows in curves.items()}
    gains = {pair: _first(rows, "closed") for pair, rows in curves.items()}
    near = {pair: min(row["closed"] / row["whole"] for row in rows) for pair, rows in curves.items()}
    points = [row for rows in curves.values() for row in rows]
    room = [row for row in points if row["closed"] < row["bound"]]
    better = sum(row["shared"] > row["closed"] for row in room)
    optimal = sum(row["shared"] == row["bound"] for row in points)
    full = [next(m for m, row in enumerate(curves[16, 8]) if row[way] == PORTS) for way in ("closed", "shared")]
    return [
        Claim(
            "N=16, E=8: devices that full trees need to beat rings (slide 26)",
            15,
            first[16, 8],
            first[16, 8] == 15,
            "exact: 8 rings reach 64/15 of a port, so 5 trees of 3 devices are needed",
        ),
        Claim(
            "fewer devices than the baseline speed allreduce up (slides 25, 28, 29)",
            "by shape of the plots",
            {f"N={n} E={e}": f"{gains[n, e]} against {first[n, e]}" for n, e in curves},
            all(gains[pair] < first[pair] for pair in curves),
            "devices at which each first beats rings",
        ),
        Claim(
            "close to the upper bound with few devices (slide 27)",
            "by shape of the plots",
            {f"N={n} E={e}": f"at least {float(near[n, e]):.3f} of the bound" for n, e in curves},
            min(near.values()) > Fraction(4, 5),
            "the slides print neither bound nor ratio; the bound here is min(D, (ND+(E−2)M)/(2(N−1))), and 0.8 is near",
        ),
        Claim(
            "better than the slides' method wherever the bound leaves room",
            "not in the slides",
            f"{better} of {len(room)} such points; {optimal} of {len(points)} points at the bound",
            better == len(room),
            "near saturation trees are full, and too few links are left for clusters of devices to take turns",
        ),
        Claim(
            "N=16, E=8: devices with which every port receives at line rate",
            f"{full[0]} by the slides' method",
            full[1],
            full[1] < full[0],
            "a device serves two trees",
        ),
    ]


def _first(rows: list[dict[str, Fraction]], way: str) -> int:
    return next(devices for devices, row in enumerate(rows) if row[way] > row["rings"])


if __name__ == "__main__":
    main()
