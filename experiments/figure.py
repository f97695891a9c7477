"""Shared code of all experiments: claims, their files, and line charts as SVG."""

import argparse
import json
import math
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

COLOURS = ("#5c677d", "#e09f3e", "#2a6f97", "#d1495b", "#111111")


@dataclass(frozen=True)
class Claim:
    """One claim of the paper: its number, ours, whether ours supports it, and why they differ or agree.

    `samples` is ours for each seed, where there are several.
    """

    claim: str
    paper: Any
    ours: Any
    holds: bool
    why: str
    samples: list[float] = field(default_factory=list)


def output_folder(name: str) -> Path:
    """The folder of this run's files: `--out`, or out/fig/NAME."""
    parser = argparse.ArgumentParser(description=f"Makes the figure {name}.")
    parser.add_argument("--out", type=Path, default=Path("out/fig") / name, help="folder for result.json, figure.svg")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write(folder: Path, claims: list[Claim], svg: str, data: dict[str, Any]) -> None:
    """Write result.json and figure.svg, and print the claims."""
    result = {"figure": folder.name, "claims": [asdict(claim) for claim in claims], "data": data}
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder / "figure.svg").write_text(svg)
    for claim in claims:
        print(f"{'holds' if claim.holds else 'DIFFERS'}: {claim.claim}: paper {claim.paper}, ours {claim.ours}")
    print(f"{folder}/figure.svg")


@dataclass
class Chart:
    """Lines in one coordinate system. lines: name → points; a name has the same colour in all charts by its
    position."""

    title: str
    x_label: str
    y_label: str
    lines: dict[str, list[tuple[float, float]]]
    steps: bool = False
    logarithmic: bool = False
    dashed: set[str] = field(default_factory=set)


WIDTH, HEIGHT, LEFT, TOP = 400, 300, 56, 34


def page(charts: list[Chart], columns: int) -> str:
    """All charts in a grid, with one legend."""
    rows = math.ceil(len(charts) / columns)
    width, height = columns * WIDTH, rows * HEIGHT + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for at, chart in enumerate(charts):
        x, y = at % columns * WIDTH, at // columns * HEIGHT
        parts.append(f'<g transform="translate({x} {y})">{_chart(chart)}</g>')
    for at, name in enumerate(charts[0].lines):
        x = 20 + at * (width - 20) / len(charts[0].lines)
        stroke = f'stroke="{COLOURS[at]}" stroke-width="2.4"{_dashes(charts[0], name)}'
        parts.append(f'<path d="M{x:.0f} {height - 16}h26" {stroke}/>')
        parts.append(f'<text x="{x + 32:.0f}" y="{height - 11}" font-size="13">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _chart(chart: Chart) -> str:
    right, bottom = WIDTH - 14, HEIGHT - 44
    points = [point for line in chart.lines.values() for point in line]
    scale = math.log10 if chart.logarithmic else float
    low_x, high_x = (scale(pick(point[0] for point in points)) for pick in (min, max))
    low_y, high_y = (scale(pick(point[1] for point in points)) for pick in (min, max))
    if chart.logarithmic:
        low_y, high_y = math.floor(low_y), math.ceil(high_y)
    else:
        high_y += 0.05 * (high_y - low_y)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (scale(x) - low_x) / ((high_x - low_x) or 1)
        up = (scale(y) - low_y) / ((high_y - low_y) or 1)
        return LEFT + across * (right - LEFT), bottom - up * (bottom - TOP)

    parts = [
        f'<text x="{WIDTH / 2}" y="20" font-size="14" text-anchor="middle">{escape(chart.title)}</text>',
        f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#333"/>',
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" font-size="12" text-anchor="middle">{chart.x_label}</text>',
        f'<text transform="translate(14 {(TOP + bottom) / 2}) rotate(-90)" font-size="12" text-anchor="middle">'
        f"{chart.y_label}</text>",
    ]
    for value in _ticks(low_x, high_x, chart.logarithmic, sorted({x for x, _ in points})):
        x, _ = place(value, 10**low_y if chart.logarithmic else low_y)
        parts.append(f'<path d="M{x:.1f} {bottom}v4" stroke="#333"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 17}" font-size="11" text-anchor="middle">{value:g}</text>')
    for value in _ticks(low_y, high_y, chart.logarithmic, None):
        _, y = place(10**low_x if chart.logarithmic else low_x, value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#e4e7eb"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" font-size="11" text-anchor="end">{value:g}</text>')
    for at, (name, line) in enumerate(chart.lines.items()):
        places = [place(*point) for point in line]
        path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
        for x, y in places[1:]:
            path += f"H{x:.1f}V{y:.1f}" if chart.steps else f"L{x:.1f} {y:.1f}"
        parts.append(f'<path d="{path}" fill="none" stroke="{COLOURS[at]}" stroke-width="1.8"{_dashes(chart, name)}/>')
    return "".join(parts)


def _dashes(chart: Chart, name: str) -> str:
    return ' stroke-dasharray="5 4"' if name in chart.dashed else ""


def _ticks(low: float, high: float, logarithmic: bool, given: list[float] | None) -> list[float]:
    """Round values between low and high; on a logarithmic axis the given ones, or powers of ten."""
    if logarithmic:
        return given or [10.0**power for power in range(int(low), int(high) + 1)]
    rough = (high - low) / 6 or 1
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [round(step * count, 10) for count in range(math.ceil(low / step), math.floor(high / step) + 1)]
