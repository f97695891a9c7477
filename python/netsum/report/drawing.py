"""Pictures of a report as SVG. Colours come from the page's style."""

from collections.abc import Sequence
from html import escape

from netsum.dashboard.words import milliseconds
from netsum.pages.curves import round_step
from netsum.report.steps import Rhythm

WIDTH = 760
_LEFT, _RIGHT, _ROW = 150, 90, 24
RANKS_MAX = 16
"""Ranks that the picture of a step shows."""


def bars(title: str, rows: Sequence[tuple[str, float, str]], left: int = _LEFT) -> str:
    """Horizontal bars of durations. rows: name, seconds, and the class of the bar's colour. left: room for names."""
    most = max((seconds for _, seconds, _ in rows), default=0.0) or 1.0
    height = 28 + _ROW * len(rows)
    parts = [_begin(height, title)]
    for at, (name, seconds, colour) in enumerate(rows):
        y = 28 + _ROW * at
        width = max((WIDTH - left - _RIGHT) * seconds / most, 1.0)
        parts += [
            f'<text x="{left - 8}" y="{y + 14}" class="axis" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{left}" y="{y + 2}" width="{width:.1f}" height="{_ROW - 8}" rx="3" class="{colour}"/>',
            f'<text x="{left + width + 6:.1f}" y="{y + 14}" class="axis">{escape(milliseconds(seconds))}</text>',
        ]
    return "\n".join([*parts, "</svg>"])


def step(rhythm: Rhythm) -> str:
    """The step of the sample that is nearest to the median, with a row for each rank: how long it waits for the last
    rank in each operation, and how long the network takes then."""
    shown = min(rhythm.steps, key=lambda each: abs(each.together.seconds - rhythm.seconds))
    begin, seconds = shown.together.operations[0].called_s, shown.together.seconds
    ranks = sorted(shown.ranks)
    if len(ranks) > RANKS_MAX:
        # Those that wait least and most.
        ordered = sorted(ranks, key=rhythm.exposed)
        ranks = sorted(ordered[: RANKS_MAX // 2] + ordered[-RANKS_MAX // 2 :])
    early = min(shown.ranks[rank].operations[0].called_s for rank in ranks)
    first, last = min(early, begin), begin + seconds
    scale = (WIDTH - _LEFT - 14) / (last - first or 1.0)
    height = 28 + _ROW * len(ranks) + 22
    parts = [_begin(height, f"one step, {milliseconds(seconds)}")]

    def bar(y: float, one: float, other: float, colour: str, words: str) -> str:
        x = _LEFT + (one - first) * scale
        width = max((min(other, last) - one) * scale, 0.8)
        place = f'x="{x:.1f}" y="{y + 3:.1f}" width="{width:.1f}" height="{_ROW - 8}"'
        return f'<g><title>{escape(words)}</title><rect {place} class="{colour}"/></g>'

    for at, rank in enumerate(ranks):
        y = 28 + _ROW * at
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 14}" class="axis" text-anchor="end">rank {rank}</text>')
        parts.append(bar(y, first, last, "bar-soft", f"rank {rank} computes"))
        for own, all_ in zip(shown.ranks[rank].operations, shown.together.operations, strict=True):
            what = f"rank {rank}, operation {own.number}"
            called = min(max(own.called_s, all_.called_s), own.ended_s)
            if called > own.called_s:
                waits = f"{what}: waits {milliseconds(called - own.called_s)} for the last rank"
                parts.append(bar(y, own.called_s, called, "bar-other", waits))
            takes = f"{what}: takes {milliseconds(own.ended_s - called)}"
            parts.append(bar(y, called, own.ended_s, "bar-ours", takes))
    tick = round_step((last - first) / 6)
    for n in range(int((last - first) / tick) + 1):
        x = _LEFT + n * tick * scale
        text = f"{n * tick * 1e3:g}"
        parts.append(f'<text x="{x:.1f}" y="{height - 6}" class="axis" text-anchor="middle">{text}</text>')
    parts.append(f'<text x="{_LEFT - 8}" y="{height - 6}" class="axis" text-anchor="end">milliseconds</text>')
    return "\n".join([*parts, "</svg>"])


def _begin(height: float, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f'<text x="0" y="16" class="title">{escape(title)}</text>'
    )
