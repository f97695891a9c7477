"""A plan as SVG: workers on a circle round the devices, a colour for each tree and ring."""

import math
from collections import defaultdict
from fractions import Fraction
from html import escape
from typing import Any

FONTS = "Helvetica,Arial,Liberation Sans,DejaVu Sans,sans-serif"
"""Fonts by name: renderers may not support generic families."""
SIZE = 720
_OUTER, _INNER = 0.41 * SIZE, 0.2 * SIZE
_COLOURS = (
    "#d1495b",
    "#2a6f97",
    "#3a7d44",
    "#e09f3e",
    "#7b2cbf",
    "#00798c",
    "#8d5524",
    "#c9184a",
    "#5c677d",
    "#386641",
)
_MESH = "#9aa5b1"


def draw(plan: dict[str, Any]) -> str:
    """SVG of a plan's topology. Trees and rings have colours; the many small trees of a mesh are grey.

    A line represents both directions of a link; its title lists the lanes and the load. Rings are dashed.
    """
    spec, lanes = plan["spec"], plan["lanes"]
    places = _places(spec)
    users = _users(plan)
    colours = _colours(lanes)
    links = defaultdict(list)
    for index, circuit in enumerate(plan["circuits"]):
        ends = circuit["from"], circuit["to"]
        a, b = sorted((end["node"], end["port"]) for end in ends)
        links[a, b].append(index)
    beside: dict[tuple[int, int], int] = defaultdict(int)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE + 70}" font-family="{FONTS}">',
        f'<rect width="{SIZE}" height="{SIZE + 70}" fill="white"/>',
    ]
    for (a, b), circuits in links.items():
        pair = a[0], b[0]
        parts.append(_link(plan, places, pair, beside[pair], circuits, users, colours))
        beside[pair] += 1
    parts += [_node(spec, node, place) for node, place in places.items()]
    return "\n".join([*parts, *_legend(lanes, colours), "</svg>"]) + "\n"


def _places(spec: dict[str, Any]) -> dict[int, tuple[float, float]]:
    places = {}
    inner = _INNER if spec["devices"] > 1 else 0
    for first, count, radius in ((0, spec["workers"], _OUTER), (spec["workers"], spec["devices"], inner)):
        for index in range(count):
            angle = 2 * math.pi * (index + 0.5) / count - math.pi / 2
            middle = SIZE / 2
            places[first + index] = middle + radius * math.cos(angle), middle + radius * math.sin(angle)
    return places


def _users(plan: dict[str, Any]) -> dict[int, list[tuple[int, Fraction]]]:
    """The lanes of each circuit, each with its load."""
    users = defaultdict(list)
    workers = plan["spec"]["workers"]
    for index, lane in enumerate(plan["lanes"]):
        share = Fraction(lane["share"])
        ring = lane["kind"] == "ring"
        for circuit in lane["circuits"] if ring else lane["reduce"] + lane["broadcast"]:
            users[circuit].append((index, share * Fraction(2 * (workers - 1), workers) if ring else share))
    return users


def _is_mesh(lane: dict[str, Any]) -> bool:
    return lane["kind"] == "tree" and Fraction(lane["share"]) < 1


def _colours(lanes: list[dict[str, Any]]) -> dict[int, str]:
    """The colour of each tree and ring."""
    own = [index for index, lane in enumerate(lanes) if not _is_mesh(lane)]
    return {index: _COLOURS[at % len(_COLOURS)] for at, index in enumerate(own)}


def _link(
    plan: Any, places: Any, pair: Any, beside: int, circuits: list[int], users: Any, colours: dict[int, str]
) -> str:
    (x1, y1), (x2, y2) = places[pair[0]], places[pair[1]]
    used = sorted({lane for circuit in circuits for lane, _ in users[circuit]})
    lane = plan["lanes"][used[0]] if used else None
    colour = colours.get(used[0], _MESH) if used else _MESH
    load = max((sum(load for _, load in users[circuit]) for circuit in circuits), default=Fraction(0))
    named = f"lanes {used[0]} to {used[-1]}" if len(used) > 2 else "lane " + " and ".join(map(str, used))
    spec = plan["spec"]
    title = f"{_name(spec, pair[0])} – {_name(spec, pair[1])}: {named}, load {load}"
    bend = (beside + 1) // 2 * (1 if beside % 2 else -1) * 14
    # Chords bend towards the middle, so that links between neighbours on the circle stay apart.
    length = math.hypot(x2 - x1, y2 - y1) or 1
    mx, my = (x1 + x2) / 2 - (y2 - y1) / length * bend, (y1 + y2) / 2 + (x2 - x1) / length * bend
    dashes = ' stroke-dasharray="6 4"' if lane is not None and lane["kind"] == "ring" else ""
    width = 1.2 + 1.8 * float(load)
    return (
        f'<path d="M{x1:.1f} {y1:.1f}Q{mx:.1f} {my:.1f} {x2:.1f} {y2:.1f}" fill="none" stroke="{colour}"'
        f' stroke-width="{width:.1f}" opacity="0.8"{dashes}><title>{escape(title)}</title></path>'
    )


def _name(spec: dict[str, Any], node: int) -> str:
    return f"w{node}" if node < spec["workers"] else f"d{node - spec['workers']}"


def _node(spec: dict[str, Any], node: int, place: tuple[float, float]) -> str:
    x, y = place
    name = _name(spec, node)
    small_text = max(spec["workers"], 2 * spec["devices"]) > 40
    size = 8 if small_text else 15
    shape = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="#f2f4f7" stroke="#333"/>'
        if node < spec["workers"]
        else f'<rect x="{x - size:.1f}" y="{y - size:.1f}" width="{2 * size}" height="{2 * size}" rx="3" fill="#333"/>'
    )
    fill = "#333" if node < spec["workers"] else "white"
    font = 7 if small_text else 11
    return (
        f'{shape}<text x="{x:.1f}" y="{y + font * 0.35:.1f}" font-size="{font}" text-anchor="middle"'
        f' fill="{fill}">{name}</text>'
    )


def _legend(lanes: list[dict[str, Any]], colours: dict[int, str]) -> list[str]:
    entries = [
        (colour, f"{lanes[index]['kind']} {index}: {lanes[index]['share']}") for index, colour in colours.items()
    ]
    light = [Fraction(lane["share"]) for lane in lanes if _is_mesh(lane)]
    if light:
        entries.append((_MESH, f"{len(light)} light trees: {sum(light)}"))
    parts = []
    for at, (colour, text) in enumerate(entries[:15]):
        x, y = 20 + at % 5 * 140, SIZE + 10 + at // 5 * 20
        parts.append(f'<rect x="{x}" y="{y}" width="18" height="6" fill="{colour}"/>')
        parts.append(f'<text x="{x + 24}" y="{y + 8}" font-size="12" fill="#333">{escape(text)}</text>')
    return parts
