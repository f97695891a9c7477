"""What all figures have in common: runs that resume, claims, a picture. `python experiments/figures.py NAME`."""

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from netsum import sim
from netsum.demo.curves import chart
from netsum.sim import report

HERE = Path(__file__).parent
SCALES = ("small", "medium", "full")


@dataclass(frozen=True)
class Claim:
    """One statement of a paper beside ours."""

    claim: str
    paper: Any
    ours: Any
    holds: bool
    why: str


@dataclass(frozen=True)
class Plot:
    """Lines of (x, y) by name."""

    title: str
    unit: str
    x_name: str
    series: dict[str, list[tuple[float, float]]]


class Figure:
    """Where a figure's runs and results go, and at which scale it is made."""

    def __init__(self, name: str, scale: str, out: Path) -> None:
        self.name, self.scale, self.out = name, scale, out

    def run(self, configs: dict[str, dict], tell: Callable[[str], None] = lambda _: None) -> dict[str, sim.Result]:
        """Simulates what has not been simulated yet."""
        return sim.sweep(configs, self.out / "runs" / self.scale, done=lambda name, i, n: tell(f"{i}/{n} {name}"))

    def write(self, claims: list[Claim], plots: list[Plot], data: Any) -> dict:
        """result.json and figure.svg; returns the former."""
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
    """Makes one figure into `out`/NAME; returns what its result.json says."""
    module = importlib.import_module(f"{name}.figure")
    return module.make(Figure(name, scale, out / name), tell)


def names() -> list[str]:
    """All figures."""
    return sorted(path.parent.name for path in HERE.glob("*/figure.py"))


def _picture(plots: list[Plot]) -> str:
    """The plots below each other, with colours of their own."""
    height = 270
    style = report.STYLE.read_text().replace("svg text", "text")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height * len(plots)}">',
        f'<style>{style}</style><rect width="100%" height="100%" style="fill: var(--card)"/>',
    ]
    for i, plot in enumerate(plots):
        inner = chart(plot.title, plot.unit, plot.x_name, plot.series)
        parts.append(f'<g transform="translate(0 {i * height})">{inner}</g>')
    return "\n".join([*parts, "</svg>", ""])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make the papers' figures.")
    parser.add_argument("figures", nargs="*", help=f"of {', '.join(names())} [all]")
    parser.add_argument("--scale", choices=SCALES, default="small")
    parser.add_argument("--out", type=Path, default=Path("out/fig"))
    return parser.parse_args()


def main() -> None:
    """Makes figures and prints their claims."""
    arguments = _arguments()
    console = Console()
    for name in arguments.figures or names():
        if name not in names():
            sys.exit(f"no figure is named {name!r}; use one of {', '.join(names())}")
        console.print(f"[bold]{name}[/bold] ({arguments.scale})")
        result = make(name, arguments.scale, arguments.out, lambda text: console.print(f"  {text}", highlight=False))
        for claim in result["claims"]:
            sign = "[green]holds[/green]" if claim["holds"] else "[red]does not hold[/red]"
            console.print(f"  {sign}: {claim['claim']}: paper {claim['paper']}, ours {claim['ours']}", highlight=False)
            if not claim["holds"]:
                console.print(f"    {claim['why']}", highlight=False)
        console.print(f"  {arguments.out / name / 'result.json'}", highlight=False)


if __name__ == "__main__":
    main()
