"""Speed of training over batch sizes, as a light collective library reports it: Figures 4 and 5 of Wang and Dong.

make fig FIG=light_collectives_training
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from figure import Chart, Claim, output_folder, page, write
from netsum.launch import Workers

RANKS = 2
SCALES = {
    "small": {"lenet5": ([16, 64, 256], 10), "resnet18": ([16], 2)},
    "medium": {"lenet5": ([16, 32, 64, 128, 256, 512], 20), "resnet18": ([16, 32], 4)},
    "full": {"lenet5": ([16, 32, 64, 128, 256, 512], 40), "resnet18": ([16, 32, 64, 128, 256, 512], 6)},
}
ROUNDS = {"small": 1, "medium": 2, "full": 3}
FIGURES = {"lenet5": "Fig. 4, LeNet-5 on digits", "resnet18": "Fig. 5, ResNet-18 on CIFAR-10's shape"}


def libraries() -> list[str]:
    """The libraries; Open MPI only if it is installed, with a message if not."""
    if shutil.which("mpirun.openmpi"):
        return ["gloo", "openmpi", "netsum"]
    print("left out: openmpi; mpirun.openmpi is not installed (Debian: openmpi-bin)")
    return ["gloo", "netsum"]


def train(library: str, model: str, batches: list[int], steps: int) -> dict[int, dict]:
    """Seconds of every step and the last loss, by batch size."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        script = str(Path(__file__).with_name("train.py"))
        arguments = [script, library, model, ",".join(map(str, batches)), str(steps), f"{folder}/store", str(out)]
        if library == "openmpi":
            settings = {"OMP_NUM_THREADS": "1", **os.environ}
            command = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", str(RANKS), sys.executable]
            code = subprocess.run([*command, *arguments], env=settings, stderr=subprocess.DEVNULL).returncode
        else:
            workers = Workers(arguments, RANKS, {"NETSUM_CONTROLLER": ""}, Path(folder) / "log", plain=True)
            try:
                code = workers.wait()
            finally:
                workers.stop()
        if code:
            raise RuntimeError(f"training {model} on {library} ended with {code}")
        return {int(batch): result for batch, result in json.loads(out.read_text()).items()}


def main() -> None:
    folder, scale = output_folder("light_collectives_training"), os.environ.get("SCALE", "small")
    names, claims, charts, data = libraries(), [], [], {}
    for model, (batches, steps) in SCALES[scale].items():
        times = {name: {batch: [] for batch in batches} for name in names}
        losses: dict[str, dict[int, float]] = {name: {} for name in names}
        for turn in range(ROUNDS[scale]):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                for batch, result in train(name, model, batches, steps).items():
                    times[name][batch] += result["seconds"]
                    losses[name][batch] = result["loss"]
                print(f"{model}, round {turn + 1}: {name}", flush=True)
        step = {name: {b: statistics.median(each) for b, each in times[name].items()} for name in names}
        speed = {name: [(float(b), b * RANKS / s) for b, s in step[name].items()] for name in names}
        best = {name: {b: min(each) for b, each in times[name].items()} for name in names}
        data[model] = {"step_s": step, "best_step_s": best, "images_per_s": speed, "loss": losses}
        charts.append(Chart(FIGURES[model], "images per rank and step", "images/s", speed, logarithmic=True))
        for peer in names[:-1]:
            ratio = {b: step[peer][b] / step["netsum"][b] for b in batches}
            ahead = sum(each > 1 for each in ratio.values())
            claims.append(
                Claim(
                    f"{FIGURES[model]}: netsum against {peer}, step time by batch size",
                    "close, ahead of Open MPI in most cases" if peer == "openmpi" else "close",
                    ", ".join(f"{b}: {each:.2f}×" for b, each in ratio.items()),
                    2 * ahead > len(batches),
                    f"ahead at {ahead} of {len(batches)} sizes; the smaller the batch, the larger the share of sums",
                )
            )
        spread = max(abs(losses[name][b] - losses["gloo"][b]) for name in names for b in batches)
        same = "one training: only the order of additions differs"
        claims.append(Claim(f"{model}: the last losses are alike", "-", f"differ by {spread:.1e}", spread < 0.05, same))
    write(folder, claims, page(charts, 2), {"scale": scale, "ranks": RANKS, "results": data})


if __name__ == "__main__":
    main()
