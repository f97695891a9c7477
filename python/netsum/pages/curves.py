"""Line charts as SVG. Colours come from the page's CSS variables: series n has class `series-n`, up to `COLOURS`."""

import math
from html import escape
from typing import Any

WIDTH, HEIGHT = 760, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 30, 38
_ROW = 18
_GAP = 6
LETTER = 7
"""No letter of an axis label is wider, on average over the label."""
COLOURS = 8
"""More series than this share colours."""


def chart(title: str, unit: str, x_name: str, series: dict[str, list[tuple[float, float]]], marks: Any = ()) -> str:
    """SVG of several series of (x, y). marks: (x, text) drawn as vertical lines."""
    points = [point for line in series.values() for point in line]
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_high = max(y for _, y in points) or 1.0
    y_low = min(0.0, *(y for _, y in points))
    step = round_step((y_high - y_low) / 4)
    y_high = math.ceil(y_high / step) * step
    rows = [y_low + i * step for i in range(round((y_high - y_low) / step) + 1)]
    labels = [f"{value:g}{unit}" for value in rows]
    left = max(_LEFT, LETTER * max(map(len, labels)) + _GAP)
    legend, below = _legend(list(series), 8 * len(title), left)
    scale = _Scale(x_low, x_high, y_low, y_high, _TOP + below * _ROW, left)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text x="{left}" y="16" class="title">{escape(title)}</text>',
        *_grid(scale, dict(zip(rows, labels, strict=True))),
        *[_mark(scale, x, text) for x, text in marks],
        *[_line(scale, line, n) for n, line in enumerate(series.values())],
        *legend,
        f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 4}" class="axis" text-anchor="end">{escape(x_name)}</text>',
        "</svg>",
    ]
    return "\n".join(parts)


class _Scale:
    def __init__(self, x_low: float, x_high: float, y_low: float, y_high: float, top: int, left: int) -> None:
        self.x_low, self.x_high, self.y_low, self.y_high = x_low, x_high, y_low, y_high
        self.top, self.left = top, left

    def x(self, value: float) -> float:
        return self.left + (value - self.x_low) / ((self.x_high - self.x_low) or 1) * (WIDTH - self.left - _RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - (value - self.y_low) / (self.y_high - self.y_low) * (HEIGHT - self.top - _BOTTOM)


def round_step(rough: float) -> float:
    """The next number of the form 1, 2, 5 x 10^n."""
    size = 10 ** math.floor(math.log10(rough))
    found: float = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999)
    return found


def _grid(scale: _Scale, rows: dict[float, str]) -> list[str]:
    parts = []
    for value, label in rows.items():
        y = scale.y(value)
        parts.append(f'<line x1="{scale.left}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        at = f'x="{scale.left - _GAP}" y="{y + 4:.1f}"'
        parts.append(f'<text {at} class="axis" text-anchor="end">{escape(label)}</text>')
    x_step = max(round_step((scale.x_high - scale.x_low) / 6 or 1.0), 1.0)
    first = math.ceil(scale.x_low / x_step)
    for i in range(first, int(scale.x_high / x_step) + 1):
        value = i * x_step
        x = scale.x(value)
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}" class="axis" text-anchor="middle">{value:g}</text>'
        )
    return parts


def _line(scale: _Scale, line: list[tuple[float, float]], index: int) -> str:
    path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in line)
    return f'<polyline points="{path}" class="line series-{index % COLOURS}"/>'


def _mark(scale: _Scale, x: float, text: str) -> str:
    at = scale.x(x)
    return (
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{scale.top}" y2="{HEIGHT - _BOTTOM}" class="mark"/>'
        f'<text x="{at + 4:.1f}" y="{scale.top + 10}" class="killed-note">{escape(text)}</text>'
    )


def _name_width(name: str) -> int:
    return LETTER * len(name) + 30


def _legend(names: list[str], title_width: int, left: int) -> tuple[list[str], int]:
    """The legend, at the right of the title if there is room, else in lines below it; and the number of these lines."""
    room = WIDTH - left - _RIGHT
    rows: list[list[int]] = [[]]
    for index in range(len(names)):
        if sum(_name_width(names[i]) for i in [*rows[-1], index]) > room:
            rows.append([])
        rows[-1].append(index)
    below = len(rows) > 1 or sum(map(_name_width, names)) + title_width > room
    parts = []
    for at, row in enumerate(rows):
        x, y = WIDTH - _RIGHT, 16 + (at + below) * _ROW
        for index in reversed(row):
            x -= _name_width(names[index])
            mark = f'class="line series-{index % COLOURS}"'
            parts.append(f'<line x1="{x}" x2="{x + 18}" y1="{y - 4}" y2="{y - 4}" {mark}/>')
            parts.append(f'<text x="{x + 22}" y="{y}" class="axis">{escape(names[index])}</text>')
    return parts, len(rows) if below else 0
