"""Training with integers in the slots reaches the same accuracy in the same epochs as with Gloo: `make fig
FIG=atp_training`."""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from figure import Chart, Claim, output_folder, page, write
from netsum.fabric.builtin import demo_description
from netsum.fabric.local import temporary
from netsum.launch import Workers

RANKS = 4
CLOSE = 0.01
TASKS = ("digits", "pairs")
SIDES = {
    "gloo": ("gloo", {}),
    "atp, shared exponents": ("netsum", {"NETSUM_SCALE": "0"}),
    "atp, scale 10⁸": ("netsum", {"NETSUM_SCALE": "1e8"}),
}


def train(backend: str, task: str, environment: dict[str, str]) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        script = str(Path(__file__).with_name("train.py"))
        workers = Workers([script, backend, task, str(out)], RANKS, environment)
        try:
            code = workers.wait()
        finally:
            workers.stop()
        if code:
            raise RuntimeError(f"training {task} on {backend} ended with {code}")
        return json.loads(out.read_text())


def main() -> None:
    folder = output_folder("atp_training")
    results: dict[str, dict[str, dict]] = {task: {} for task in TASKS}
    with temporary(demo_description()) as fabric:
        there = fabric.environment() | {"NETSUM_HOST": ""}
        there |= {"NETSUM_PROTOCOL": "atp", "NETSUM_MIN_BYTES": "0"}
        for task in TASKS:
            for side, (backend, environment) in SIDES.items():
                results[task][side] = train(backend, task, there | environment)
                print(f"{task}, {side}: accuracy {results[task][side]['accuracy'][-1]:.3f}", flush=True)
    claims, charts = [], []
    for task, sides in results.items():
        gloo = sides["gloo"]["accuracy"][-1]
        for side in list(sides)[1:]:
            ours = sides[side]["accuracy"][-1]
            claims.append(
                Claim(
                    f"{task}: accuracy after as many epochs, {side} against Gloo",
                    "the same",
                    f"{ours:.3f} against {gloo:.3f}",
                    abs(ours - gloo) <= CLOSE and sides[side]["same_bits"],
                    "30 bits for the largest gradient of a fragment, or steps of 10⁻⁸, lose less than one batch does",
                )
            )
        lines = {side: [(float(e + 1), a) for e, a in enumerate(r["accuracy"])] for side, r in sides.items()}
        charts.append(Chart(task, "epoch", "accuracy", lines))
    write(folder, claims, page(charts, 2), {"results": results})


if __name__ == "__main__":
    main()
