"""Shared code of the simulated figures: resumable runs, scales, claims, pictures."""

import argparse
import importlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from figure import Claim
from netsum import sim
from netsum.pages import STYLE
from netsum.pages.curves import chart

HERE = Path(__file__).parent
SCALES = ("small", "medium", "full")


@dataclass(frozen=True)
class Plot:
    """Lines of (x, y) by name."""

    title: str
    unit: str
    x_name: str
    series: dict[str, list[tuple[float, float]]]


class Figure:
    """The folder of a figure's runs and results, and its scale."""

    def __init__(self, name: str, scale: str, out: Path) -> None:
        self.name, self.scale, self.out = name, scale, out

    def run(self, configs: dict[str, dict], tell: Callable[[str], None] = lambda _: None) -> dict[str, sim.Result]:
        """Simulate the configurations that are not complete yet."""
        return sim.sweep(configs, self.out / "runs" / self.scale, done=lambda name, i, n: tell(f"{i}/{n} {name}"))

    def write(self, claims: list[Claim], plots: list[Plot], data: Any) -> dict:
        """Write result.json and figure.svg; returns the former."""
        result = {
            "figure": self.name,
            "scale": self.scale,
            "command": f"make fig FIG={self.name} SCALE={self.scale}",
            "claims": [asdict(claim) for claim in claims],
            "data": data,
        }
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
        (self.out / "figure.svg").write_text(_picture(plots), encoding="utf-8")
        return result


def make(name: str, scale: str, out: Path, tell: Callable[[str], None] = lambda _: None) -> dict:
    """Make one figure into `out`; returns the content of its result.json."""
    module = importlib.import_module(f"{name}.figure")
    return module.make(Figure(name, scale, out), tell)


def names() -> list[str]:
    """All figures."""
    return sorted(path.parent.name for path in HERE.glob("*/figure.py"))


def _picture(plots: list[Plot]) -> str:
    """The plots below each other, each with its own colours."""
    height = 270
    style = STYLE.read_text().replace("svg text", "text")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height * len(plots)}">',
        f'<style>{style}</style><rect width="100%" height="100%" style="fill: var(--card)"/>',
    ]
    for i, plot in enumerate(plots):
        # Without its own <svg>, whose height would be that of the whole picture.
        _, *inner, _ = chart(plot.title, plot.unit, plot.x_name, plot.series).split("\n")
        parts.append("\n".join([f'<g transform="translate(0 {i * height})">', *inner, "</g>"]))
    return "\n".join([*parts, "</svg>", ""])


def main(name: str) -> None:
    """Make one figure from the command line's arguments, and print its claims."""
    parser = argparse.ArgumentParser(description=f"Makes the figure {name}.")
    parser.add_argument("--scale", choices=SCALES, default=os.environ.get("SCALE", "small"), help="[$SCALE, or small]")
    parser.add_argument("--out", type=Path, default=Path("out/fig") / name, help="folder for result.json, figure.svg")
    arguments = parser.parse_args()
    console = Console()
    console.print(f"[bold]{name}[/bold] ({arguments.scale})")
    result = make(name, arguments.scale, arguments.out, lambda text: console.print(f"  {text}", highlight=False))
    for claim in result["claims"]:
        sign = "holds" if claim["holds"] else "DIFFERS"
        words = f"{sign}: {claim['claim']}: paper {claim['paper']}, ours {claim['ours']}"
        console.print(words, highlight=False, soft_wrap=True)
