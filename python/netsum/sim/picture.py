"""The fabric as a picture: a level of switches per row, every direction of a link coloured by how busy it was."""

from collections import defaultdict, deque
from html import escape
from typing import Any

WIDTH = 860
_ROW, _TOP = 120, 30


def heat_map(links: list[dict[str, Any]]) -> str:
    """SVG from the rows of links.csv. Beside each other, left to right: the way up and the way down."""
    neighbours = defaultdict(list)
    for link in links:
        neighbours[link["from"]].append(link["to"])
    level = _levels(neighbours)
    rows = defaultdict(list)
    for node in neighbours:
        rows[level[node]].append(node)
    top = max(rows)
    place = {
        node: (WIDTH * (i + 0.5) / len(nodes), _TOP + _ROW * (top - row))
        for row, nodes in rows.items()
        for i, node in enumerate(nodes)
    }
    parts = [f'<svg viewBox="0 0 {WIDTH} {_TOP * 2 + _ROW * top}" role="img" aria-label="how busy the links were">']
    parts += [_link(link, place) for link in sorted(links, key=lambda link: link["utilisation"])]
    for node, (x, y) in place.items():
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{2.5 if level[node] else 1.5}" class="node"/>')
    return "\n".join([*parts, "</svg>"])


def _levels(neighbours: dict[str, list[str]]) -> dict[str, int]:
    """Links from the nearest host; hosts are those with one neighbour."""
    hosts = [node for node, others in neighbours.items() if len(others) == 1]
    level = dict.fromkeys(hosts, 0)
    queue = deque(hosts)
    while queue:
        node = queue.popleft()
        for other in neighbours[node]:
            if other not in level:
                level[other] = level[node] + 1
                queue.append(other)
    return level


def _link(link: dict[str, Any], place: dict[str, tuple[float, float]]) -> str:
    (x1, y1), (x2, y2) = place[link["from"]], place[link["to"]]
    shift = -1.2 if y1 > y2 else 1.2
    busy = min(link["utilisation"], 1.0)
    # From blue (idle) over yellow to red (busy all the time).
    hue = 215 * (1 - busy) ** 1.5
    title = f"{link['from']} → {link['to']}: {busy:.0%} busy, {link['dropped_packets']} dropped"
    return (
        f'<line x1="{x1 + shift:.1f}" y1="{y1:.1f}" x2="{x2 + shift:.1f}" y2="{y2:.1f}" '
        f'stroke="hsl({hue:.0f} 75% 50%)" stroke-opacity="{0.15 + 0.85 * busy:.2f}" '
        f'stroke-width="{0.6 + 1.8 * busy:.1f}"><title>{escape(title)}</title></line>'
    )
