"""NTT slides 11, 20 and 21: small topologies, their degrees, and the gain of their composition."""

import sys
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from figure import Claim, output_folder, write
from netsum.ocs import Ocs, answer, compare, draw

CASES = ((6, Fraction(3, 5), "0.60"), (2, Fraction(9, 11), "0.82"), (1, Fraction(9, 10), "0.90"))
"""Devices, time relative to three rings, and the value printed on slide 20."""


def main() -> None:
    folder = output_folder("ntt_examples")
    claims, pictures = [], []
    for devices, time, printed in CASES:
        found = answer(Ocs(6, 3, devices, 4))
        ours = Fraction(found["compared"]["rings"]) / Fraction(found["report"]["algbw"])
        text = f"N=6, D=3, E=4: time with {devices} devices over that of three rings"
        claims.append(Claim(text, printed, f"{float(ours):.4f} ({ours})", ours == time, "exact; replayed"))
        pictures.append((f"{devices} devices: {ours}", draw(found["plan"])))
    claims.append(_degrees())
    claims.append(_full_tree())
    write(folder, claims, _beside(pictures), {"times": {str(devices): str(time) for devices, time, _ in CASES}})


def _degrees() -> Claim:
    plan = answer(Ocs(6, 3, 1, 4))["plan"]
    per_lane = []
    for lane in plan["lanes"]:
        senders = [plan["circuits"][circuit]["from"]["node"] for circuit in lane["reduce"] + lane["broadcast"]]
        per_lane.append([senders.count(worker) for worker in range(6)])
    total = [sum(column) for column in zip(*per_lane, strict=True)]
    found = sorted(sorted(degrees) for degrees in per_lane)
    return Claim(
        "a partial tree and a line that balance the workers' ports",
        "(1,1,1,1,2,2) + (2,2,2,2,1,1) = (3,3,3,3,3,3)",
        f"{per_lane[0]} + {per_lane[1]} = {total}",
        found == [[1, 1, 1, 1, 2, 2], [1, 1, 2, 2, 2, 2]] and total == [3] * 6,
        "second ports are dealt round robin",
    )


def _full_tree() -> Claim:
    rate = {devices: Fraction(compare(Ocs(128, 1, devices, 4))["closed"]) for devices in (62, 63)}
    least = 63 if rate[62] < 1 == rate[63] else None
    why = "(N−2)/(E−2) exactly; the slide writes “about (N−1)/(E−2)”"
    return Claim("devices of a full tree for N=128, E=4", 63, least, least == 63, why)


def _beside(pictures: list[tuple[str, str]]) -> str:
    size = 420
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size * len(pictures)} {size + 70}">']
    for at, (title, picture) in enumerate(pictures):
        placed = picture.replace("<svg ", f'<svg x="{at * size}" y="24" width="{size}" height="{size + 46}" ', 1)
        parts.append(
            f'<text x="{(at + 0.5) * size}" y="18" font-family="sans-serif" font-size="15" text-anchor="middle">'
            f"{title}</text>{placed}"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    main()
