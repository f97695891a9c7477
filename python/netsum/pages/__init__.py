"""Self-contained HTML pages for light and dark screens: of the demo, of simulations, of jobs.

`curves` draws lines, `fabric` a fabric with the load of its links.
"""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

STYLE = Path(__file__).with_name("style.css")


def page(title: str, parts: Iterable[str]) -> str:
    """A page of parts in HTML. title: plain text."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE.read_text()}</style></head><body>",
            *parts,
            "</body></html>",
        ]
    )


def cards(pairs: Iterable[tuple[str, str]]) -> str:
    """Figures in large type, each with its explanation below; plain text."""
    each = (f'<div class="card"><b>{escape(b)}</b><span>{escape(s)}</span></div>' for b, s in pairs)
    return f'<div class="cards">{"".join(each)}</div>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1) -> str:
    """A table of plain text. text: how many of the first columns are not figures."""

    def row(cells: Sequence[str], tag: str) -> str:
        each = (f"<{tag}{' class=text' if at < text else ''}>{escape(c)}</{tag}>" for at, c in enumerate(cells))
        return f"<tr>{''.join(each)}</tr>"

    return scrolling(f"<table>{row(headings, 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>")


def scrolling(html: str) -> str:
    """HTML that may be wider than a phone: it scrolls, and not the page."""
    return f'<div class="scroll" tabindex="0">{html}</div>'


def figure(svg: str, caption: str = "") -> str:
    """A picture. caption: plain text."""
    return f"<figure>{svg}{f'<figcaption>{escape(caption)}</figcaption>' if caption else ''}</figure>"
