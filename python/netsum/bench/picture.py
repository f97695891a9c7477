"""Chart of rows: busbw over bytes, both logarithmic, one line per library; times for operations without bytes."""

import math
from html import escape

from netsum.bench.measure import Row

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 800, 420, 70, 20, 40, 70
_COLOURS = ("#2a6f97", "#d1495b", "#e09f3e", "#5c677d", "#111111")


def picture(rows: list[Row]) -> str:
    """SVG with a chart per operation, one below the other."""
    operations = list(dict.fromkeys(row.case.operation for row in rows if row.seconds))
    height = _HEIGHT * len(operations)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    libraries = list(dict.fromkeys(row.library for row in rows))
    for at, operation in enumerate(operations):
        chosen = [row for row in rows if row.case.operation == operation and row.seconds]
        parts.append(f'<g transform="translate(0 {_HEIGHT * at})">{_chart(operation, chosen, libraries)}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _chart(operation: str, rows: list[Row], libraries: list[str]) -> str:
    rates = operation != "barrier"

    def value(row: Row) -> float:
        return row.case.busbw(row.median, row.ranks) / 1e9 if rates else row.median * 1e6

    xs = [max(row.case.nbytes, 1) for row in rows]
    ys = [value(row) for row in rows]
    low_x, high_x = math.log2(min(xs)), max(math.log2(max(xs)), math.log2(min(xs)) + 1)
    low_y, high_y = math.floor(math.log10(min(ys))), math.floor(math.log10(max(ys))) + 1
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x(nbytes: int) -> float:
        return _LEFT + (math.log2(max(nbytes, 1)) - low_x) / (high_x - low_x) * (right - _LEFT)

    def y(number: float) -> float:
        return bottom - (math.log10(number) - low_y) / (high_y - low_y) * (bottom - _TOP)

    unit = "busbw, GB/s" if rates else "time, µs"
    title = f"{operation}, {rows[0].ranks} ranks, {rows[0].case.dtype}: {unit} (median)"
    parts = [f'<text x="{_LEFT}" y="24" font-size="15">{escape(title)}</text>']
    for power in range(low_y, high_y + 1):
        parts.append(f'<path d="M{_LEFT} {y(10.0**power):.1f}H{right}" stroke="#e4e7eb"/>')
        label = f'<text x="{_LEFT - 6}" y="{y(10.0**power) + 4:.1f}" font-size="11" text-anchor="end">'
        parts.append(f"{label}{10.0**power:g}</text>")
    ticks = sorted(set(xs))
    for nbytes in ticks[:: len(ticks) // 12 + 1]:
        parts.append(
            f'<text x="{x(nbytes):.1f}" y="{bottom + 18}" font-size="11" text-anchor="middle">{words(nbytes)}</text>'
        )
    for at, library in enumerate(libraries):
        colour = _COLOURS[at % len(_COLOURS)]
        points = [(x(row.case.nbytes), y(value(row))) for row in rows if row.library == library]
        line = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.5" fill="{colour}"/>' for px, py in points]
        start = _LEFT + at * 140
        parts.append(f'<path d="M{start} {_HEIGHT - 24}h24" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{start + 30}" y="{_HEIGHT - 20}" font-size="12">{escape(library)}</text>')
    return "".join(parts)


def words(nbytes: int) -> str:
    """8 B, 64 KiB, 1.5 MiB."""
    number, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.4g} {unit}"
