"""The fabric as SVG, with link width by bytes. Colours come from the page's CSS variables."""

from collections import deque
from html import escape
from typing import Any

from netsum.fabric.description import Description

WIDTH, HEIGHT = 760, 380
_HIGHEST, _LOWEST = 60.0, 320.0
_WIDEST = 12.0


def draw(fabric: Description, link_bytes: dict[str, dict[str, float]], placement: list[str], killed: set[str]) -> str:
    """SVG of the fabric. link_bytes: `netsum` and `ring` per link. placement: host of each rank.

    killed: switches that were killed during the run.
    """
    places = _places(fabric)
    most = max((count[kind] for count in link_bytes.values() for kind in ("netsum", "ring")), default=1) or 1
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="the fabric and the load of its links">']
    parts += [
        _link(link.name, places[link.ends[0]], places[link.ends[1]], link_bytes[link.name], most)
        for link in fabric.links
    ]
    parts += [_switch(switch.name, places[switch.name], switch.name in killed) for switch in fabric.switches]
    for host in fabric.hosts:
        ranks = [str(rank) for rank, name in enumerate(placement) if name == host.name]
        parts.append(_host(host.name, places[host.name], ranks))
    return "\n".join([*parts, "</svg>"])


def _places(fabric: Description) -> dict[str, tuple[float, float]]:
    """(x, y) of each name: hosts below, above them the switches by their distance from a host."""
    level = {host.name: 0 for host in fabric.hosts}
    queue = deque(level)
    while queue:
        name = queue.popleft()
        for other in fabric.neighbours(name):
            if other not in level:
                level[other] = level[name] + 1
                queue.append(other)
    top = max(max(level.values(), default=0), 1)
    places: dict[str, tuple[float, float]] = {}
    for row in range(top + 1):
        every = [*(host.name for host in fabric.hosts), *(switch.name for switch in fabric.switches)]
        names = [name for name in every if level.get(name, top) == row]
        for i, name in enumerate(names):
            places[name] = (WIDTH * (i + 0.5) / len(names), _LOWEST - row * (_LOWEST - _HIGHEST) / top)
    return places


def _link(name: str, one: tuple[Any, ...], other: tuple[Any, ...], count: dict[str, float], most: float) -> str:
    (x1, y1), (x2, y2) = one, other
    ends = f'x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}"'
    ring, netsum = (max(1.0, _WIDEST * count[kind] / most) for kind in ("ring", "netsum"))
    # Labels are off-centre, so that those of crossing links do not overlap.
    x, y = x1 + (x2 - x1) * 0.32, y1 + (y2 - y1) * 0.32
    text = f"{count['netsum'] / 1e6:.0f} MB"
    return (
        f"<g><title>{escape(name)}: netsum {count['netsum'] / 1e6:.1f} MB, ring {count['ring'] / 1e6:.1f} MB</title>"
        f'<line {ends} class="ring" stroke-width="{ring:.1f}"/><line {ends} class="ours" stroke-width="{netsum:.1f}"/>'
        f'<text x="{x:.0f}" y="{y:.0f}" class="load">{text}</text></g>'
    )


def _switch(name: str, place: tuple[float, float], killed: bool) -> str:
    x, y = place
    mark = f'<text x="{x:.0f}" y="{y - 27:.0f}" class="killed">killed, came back</text>' if killed else ""
    return (
        f'<rect x="{x - 46:.0f}" y="{y - 20:.0f}" width="92" height="40" rx="7" class="switch"/>'
        f'<text x="{x:.0f}" y="{y + 5:.0f}" class="name">{escape(name)}</text>{mark}'
    )


def _host(name: str, place: tuple[float, float], ranks: list[str]) -> str:
    x, y = place
    who = f"rank {', '.join(ranks)}" if ranks else "no rank"
    return (
        f'<rect x="{x - 40:.0f}" y="{y - 22:.0f}" width="80" height="46" rx="4" class="host"/>'
        f'<text x="{x:.0f}" y="{y - 2:.0f}" class="name">{escape(name)}</text>'
        f'<text x="{x:.0f}" y="{y + 15:.0f}" class="small">{who}</text>'
    )
