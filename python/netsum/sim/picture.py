"""The fabric as SVG: a level of switches per row, every direction of a link coloured by its utilization."""

import math
from collections import defaultdict, deque
from html import escape
from typing import Any

from netsum.pages.curves import LETTER

WIDTH = 860
_ROW, _TOP = 120, 30
# More names than this would overlap.
_NAMES = 40
_SCALE_STEPS = 20
# Degrees.
_SLANT = 35
LEVELS = 64
"""Shares of time that a moving picture tells apart."""


def heat_map(links: list[dict[str, Any]], hosts: set[str], figures: bool = True) -> str:
    """SVG from the rows of links.csv, and the hosts' names. Each link is two lines: upward at the left, downward at the
    right. figures: while the mouse is over a line, its figures show beside its name."""
    neighbours = defaultdict(list)
    for link in links:
        neighbours[link["from"]].append(link["to"])
    level = _levels(neighbours, hosts)
    rows = defaultdict(list)
    for node in neighbours:
        rows[level[node]].append(node)
    top = max(rows)
    place: dict[str, tuple[float, float]] = {
        node: (WIDTH * (i + 0.5) / len(nodes), _TOP + _ROW * (top - row))
        for row, nodes in rows.items()
        for i, node in enumerate(nodes)
    }
    bottom = _TOP + _ROW * top
    named = place if len(place) <= _NAMES else {}
    ends = [_name_end(node, *at, below=at[1] == bottom) for node, at in named.items()]
    width = max([WIDTH, *(math.ceil(x) for x, _ in ends)])
    height = max([bottom + 90, *(math.ceil(y) + 40 for _, y in ends)])
    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="how busy the links were">']
    parts += [_link(link, place, figures) for link in sorted(links, key=lambda link: link["utilisation"])]
    for node, (x, y) in place.items():
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{2.5 if level[node] else 1.5}" class="node"/>')
    parts += [_name(node, x, y, below=y == bottom) for node, (x, y) in named.items()]
    return "\n".join([*parts, *_scale(height - 24), "</svg>"])


def _name_end(node: str, x: float, y: float, below: bool) -> tuple[float, float]:
    """Where the name of `_name` ends."""
    length = LETTER * len(node)
    if below:
        slant = math.radians(_SLANT)
        return x + length * math.cos(slant), y + 12 + length * math.sin(slant)
    return x + 7 + length, y - 6


def _name(node: str, x: float, y: float, below: bool) -> str:
    """A name beside a switch; slanted below a host, because hosts are close together."""
    if below:
        at = f'x="{x:.1f}" y="{y + 12:.1f}" transform="rotate({_SLANT} {x:.1f} {y + 12:.1f})"'
    else:
        at = f'x="{x + 7:.1f}" y="{y - 6:.1f}"'
    return f'<text {at} class="axis">{escape(node)}</text>'


def _scale(y: float) -> list[str]:
    """The colour scale."""
    width = 8
    left = WIDTH - width * _SCALE_STEPS - 50
    steps = [
        f'<rect x="{left + width * i}" y="{y}" width="{width}" height="10" fill="{colour(i / (_SCALE_STEPS - 1))}"/>'
        for i in range(_SCALE_STEPS)
    ]
    return [
        *steps,
        f'<text x="{left - 6}" y="{y + 10}" class="axis" text-anchor="end">busy: 0 %</text>',
        f'<text x="{left + width * _SCALE_STEPS + 4}" y="{y + 10}" class="axis">100 %</text>',
    ]


def _levels(neighbours: dict[str, list[str]], hosts: set[str]) -> dict[str, int]:
    """Distance in links from the nearest host."""
    lowest = [node for node in neighbours if node in hosts]
    level = dict.fromkeys(lowest, 0)
    queue = deque(lowest)
    while queue:
        node = queue.popleft()
        for other in neighbours[node]:
            if other not in level:
                level[other] = level[node] + 1
                queue.append(other)
    return level


def _link(link: dict[str, Any], place: dict[str, tuple[float, float]], figures: bool) -> str:
    (x1, y1), (x2, y2) = place[link["from"]], place[link["to"]]
    # To the left in its own direction, as the other direction is in its.
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    right, down = 1.2 * (y2 - y1) / length, 1.2 * (x1 - x2) / length
    busy = min(link["utilisation"], 1.0)
    title = f"{link['from']} → {link['to']}"
    if figures:
        title += f": {busy:.0%} busy, {link['dropped_packets']} dropped"
    return (
        f'<line x1="{x1 + right:.1f}" y1="{y1 + down:.1f}" x2="{x2 + right:.1f}" y2="{y2 + down:.1f}" '
        f'stroke="{colour(busy)}" stroke-opacity="{strength(busy)}" '
        f'stroke-width="{thickness(busy)}"><title>{escape(title)}</title></line>'
    )


def colour(busy: float) -> str:
    """From blue (idle) over yellow to red (fully utilized)."""
    return f"hsl({215 * (1 - busy) ** 1.5:.0f} 75% 50%)"


def strength(busy: float) -> str:
    """The opacity of a link's line."""
    return f"{0.15 + 0.85 * busy:.2f}"


def thickness(busy: float) -> str:
    """The width of a link's line."""
    return f"{0.6 + 1.8 * busy:.1f}"
