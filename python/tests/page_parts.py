"""The parts of a self-contained page, and what is wrong with its HTML."""

from collections import Counter
from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "hr", "input"}


class PageParts(HTMLParser):
    """problems: tags that do not match. references: everything that a browser would load from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.references: list[str] = []
        self.count: Counter[str] = Counter()
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        if not text.startswith("<!doctype html>"):
            self.problems.append("no doctype")
        self.feed(text)
        self.close()
        self.problems += [f"<{tag}> is not closed" for tag in self._open]

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.count[tag] += 1
        self.references += [value or "" for name, value in attributes if name in ("src", "href")]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.count[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.problems.append(f"</{tag}> closes {self._open[-1:]}")
        else:
            self._open.pop()

    def handle_data(self, text: str) -> None:
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(text)
