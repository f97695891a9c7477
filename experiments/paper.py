"""One page of what the five papers claim and what we find: `make paper`.

Joins `claims.toml` with the result.json that each experiment left, by the rules of `verdict`, and writes
out/paper/{index.html,paper.pdf,result.json}. No number on the page is typed.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import statistics
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

HERE = Path(__file__).resolve().parent
CLAIMS = HERE / "claims.toml"
HOLDS, DIRECTION, FAILS = "holds", "holds in direction", "does not hold"
NOT_HERE, NOT_RUN = "cannot be tried here", "not run"
VERDICTS = (HOLDS, DIRECTION, FAILS, NOT_HERE, NOT_RUN)


class PaperError(Exception):
    """claims.toml and the results do not fit together."""


@dataclass(frozen=True)
class Entry:
    """One statement of a paper, as claims.toml has it; the head of that file says what each field means."""

    paper: str
    where: str
    text: str
    figure: str = ""
    results: list[str] = field(default_factory=list)
    readings: list[str] = field(default_factory=list)
    neutral: float | None = None
    needs: str = ""
    tests: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Finding:
    """One claim of a result.json. `ours` and `paper` are numbers or texts, `samples` are ours by seed."""

    figure: str
    claim: str
    paper: Any
    ours: Any
    holds: bool
    why: str
    samples: list[float] = field(default_factory=list)

    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the mean over seeds (Student's t), or None for fewer than two seeds."""
        if len(self.samples) < 2:
            return None
        from scipy.stats import t

        mean, count = statistics.mean(self.samples), len(self.samples)
        half = t.ppf(0.975, count - 1) * statistics.stdev(self.samples) / count**0.5
        return mean - half, mean + half


@dataclass(frozen=True)
class Row:
    """One entry with its verdict and what decided it."""

    entry: Entry
    verdict: str
    results: list[Finding]
    readings: list[Finding]
    scale: str


def load(path: Path = CLAIMS) -> list[Entry]:
    """The statements of claims.toml. Raises PaperError for a key, a figure or a test that does not exist."""
    entries = []
    for at, table in enumerate(tomllib.loads(path.read_text())["claim"], 1):
        try:
            entry = Entry(**table)
        except TypeError as error:
            raise PaperError(f"{path.name}: claim {at}: {error}") from None
        if bool(entry.needs) == bool(entry.results):
            raise PaperError(f"{path.name}: claim {at} ({entry.where}) needs either `results` or `needs`")
        if entry.figure and not (HERE / entry.figure / "run.py").exists():
            raise PaperError(f"{path.name}: claim {at} ({entry.where}): there is no experiment {entry.figure}")
        for test in entry.tests:
            file, _, name = test.partition("::")
            source = HERE.parent / file
            if not source.exists() or f"def {name}" not in source.read_text():
                raise PaperError(f"{path.name}: claim {at} ({entry.where}): there is no test {test}")
        entries.append(entry)
    return entries


def verdict(entry: Entry, found: list[Finding]) -> str:
    """The rule, one for all claims; figures change nothing about it.

    *Holds*: every finding holds by the tolerance that its experiment states. *Holds in direction*: the entry names the
    ratio that means "no effect", and each finding that does not hold is on the paper's side of it, with its whole
    confidence interval if there is one. Else it *does not hold*. *Not run*: a figure is missing, or has no value at its
    scale, as percentiles of flows that are too few.
    """
    if entry.needs:
        return NOT_HERE
    if not found or any(finding.ours is None for finding in found):
        return NOT_RUN
    if all(finding.holds for finding in found):
        return HOLDS
    if entry.neutral is not None and all(f.holds or _same_side(f, entry.neutral) for f in found):
        return DIRECTION
    return FAILS


def _same_side(finding: Finding, neutral: float) -> bool:
    if not isinstance(finding.paper, int | float) or not isinstance(finding.ours, int | float):
        return False
    return all((finding.paper - neutral) * (ours - neutral) > 0 for ours in finding.interval() or (finding.ours,))


def collect(entries: list[Entry], out: Path) -> list[Row]:
    """Every entry with what the experiments left under `out`.

    Raises PaperError if an experiment ran and left nothing that one of its `results` begins.
    """
    rows = []
    for entry in entries:
        results = [f for text in entry.results for f in _find(out, entry.figure, text, required=True)]
        readings = [f for text in entry.readings for f in _find(out, *_place(entry.figure, text), required=False)]
        # "a / b" also begins "a / b, windows coupled", which is a reading of its own.
        decided = {finding.claim for finding in results}
        readings = list({(f.figure, f.claim): f for f in readings if f.claim not in decided}.values())
        scale = _result(out, entry.figure).get("scale", "") if results else ""
        rows.append(Row(entry, verdict(entry, results), results, readings, scale))
    return rows


def _place(figure: str, text: str) -> tuple[str, str]:
    """A reading of another experiment begins with its name and a colon."""
    other, _, rest = text.partition(": ")
    return (other, rest) if (HERE / other / "run.py").exists() else (figure, text)


def _result(out: Path, figure: str) -> dict[str, Any]:
    path = out / figure / "result.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _find(out: Path, figure: str, text: str, required: bool) -> list[Finding]:
    claims = _result(out, figure).get("claims")
    if claims is None:
        return []
    exact = [claim for claim in claims if claim["claim"] == text]
    found = exact or [claim for claim in claims if claim["claim"].startswith(text)]
    if required and not found:
        raise PaperError(f"{out}/{figure}/result.json has no claim that begins with {text!r}")
    return [Finding(figure, **claim) for claim in found]


def main() -> None:
    """Write the page from the command line's arguments, and print the verdicts."""
    parser = argparse.ArgumentParser(description="Writes the page of all claims of the papers.")
    parser.add_argument("--fig", type=Path, default=Path("out/fig"), help="folder with the experiments' results")
    parser.add_argument("--out", type=Path, default=Path("out/paper"), help="folder for index.html, paper.pdf")
    parser.add_argument("--json", action="store_true", help="print the content of result.json")
    arguments = parser.parse_args()
    console = Console(stderr=arguments.json)
    try:
        rows = collect(load(), arguments.fig)
    except PaperError as error:
        sys.exit(f"make paper: {error}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    result = json.dumps({"commit": _commit(), "claims": [asdict(row) for row in rows]}, indent=1, ensure_ascii=False)
    (arguments.out / "result.json").write_text(result + "\n")
    text = page(rows, arguments.fig)
    (arguments.out / "index.html").write_text(text)
    if arguments.json:
        print(result)
    else:
        console.print(_table(rows))
    console.print(_counts(rows), highlight=False)
    if missing := sorted({row.entry.figure for row in rows if row.verdict == NOT_RUN}):
        console.print(
            f"not run, or no value at this scale: {', '.join(missing)}; make fig FIG=NAME SCALE=medium", highlight=False
        )
    console.print(f"{arguments.out}/index.html", highlight=False)
    try:
        from weasyprint import HTML
    except (ImportError, OSError) as error:
        console.print(
            f"no PDF: {error}; make setup-docs installs weasyprint, which needs pango", highlight=False, soft_wrap=True
        )
        return
    HTML(string=text).write_pdf(arguments.out / "paper.pdf")
    console.print(f"{arguments.out}/paper.pdf", highlight=False)


def _commit() -> str:
    ended = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True, check=False
    )
    return ended.stdout.strip() or "unknown"


def _counts(rows: list[Row]) -> str:
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])


def _table(rows: list[Row]) -> Table:
    claim = Column("claim", no_wrap=True, overflow="ellipsis", ratio=1)
    table = Table(Column("paper", no_wrap=True), Column("where", no_wrap=True), claim, "verdict", expand=True)
    for row in rows:
        table.add_row(row.entry.paper, row.entry.where, row.entry.text, row.verdict)
    return table


def page(rows: list[Row], out: Path) -> str:
    """The whole page as one HTML file, pictures included."""
    papers = list(dict.fromkeys(row.entry.paper for row in rows))
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *VERDICTS))
    counts = {paper: Counter(row.verdict for row in rows if row.entry.paper == paper) for paper in papers}
    cells = {paper: "".join(f"<td>{counts[paper][name]}</td>" for name in VERDICTS) for paper in papers}
    summary = "".join(f"<tr><td>{escape(paper)}</td>{cells[paper]}</tr>" for paper in papers)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Claims of the papers</title>',
        f"<style>{(HERE / 'paper.css').read_text()}</style></head><body><main>",
        f"<h1>Claims of the papers</h1><p>{escape(_counts(rows))}. Commit {escape(_commit())}.</p>",
        f"<p>{escape(_RULE)}</p><table><tr>{head}</tr>{summary}</table>",
    ]
    for paper in papers:
        parts.append(f"<h2>{escape(paper)}</h2>")
        shown: set[str] = set()
        for row in (row for row in rows if row.entry.paper == paper):
            parts.append(_section(row))
            figure = row.entry.figure
            if row.results and figure not in shown:
                parts.append(_figure(out, figure))
                shown.add(figure)
    return "\n".join([*parts, "</main></body></html>"]) + "\n"


_RULE = (
    "Holds: all deciding figures are within the tolerance that the experiment states. Holds in direction: what misses "
    "it is on the paper's side of “no effect”, with its whole 95 % confidence interval where there are several seeds. "
    "The same rules serve all claims."
)


def _section(row: Row) -> str:
    entry = row.entry
    kind = VERDICTS.index(row.verdict)
    lines = [
        f'<section><h3><span class="verdict v{kind}">{escape(row.verdict)}</span> {escape(entry.where)}</h3>',
        f"<p>{escape(entry.text)}</p>",
    ]
    if entry.needs:
        lines.append(f"<p>It needs {escape(entry.needs)}.</p>")
    if row.results:
        lines.append("<table><tr><th>measured</th><th>paper</th><th>ours</th><th></th></tr>")
        lines += [_line(finding, "result") for finding in row.results]
        lines += [_line(finding, "reading") for finding in row.readings]
        lines.append("</table>")
        lines += [f"<p>{escape(why)}.</p>" for why in dict.fromkeys(f.why.rstrip(".") for f in row.results)]
    if entry.tests:
        lines.append(f"<p>Tested by {', '.join(f'<code>{escape(test)}</code>' for test in entry.tests)}.</p>")
    if entry.figure:
        scale = f" SCALE={row.scale}" if row.scale else ""
        lines.append(f"<p><code>make fig FIG={escape(entry.figure)}{escape(scale)}</code></p>")
    return "\n".join([*lines, "</section>"])


def _line(finding: Finding, kind: str) -> str:
    interval = finding.interval()
    spread = f" ({interval[0]:.2f} to {interval[1]:.2f}, {len(finding.samples)} seeds)" if interval else ""
    said = "no value" if finding.ours is None else HOLDS if finding.holds else "differs"
    cells = (finding.claim, _text(finding.paper), _text(finding.ours) + spread, said)
    return f'<tr class="{kind}">{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {each}" for key, each in value.items())
    return "–" if value is None else str(value)


def _figure(out: Path, figure: str) -> str:
    """The picture as the experiment left it. A paper's own picture is not copied; the claim describes it."""
    picture = base64.b64encode(_plain((out / figure / "figure.svg").read_text()).encode()).decode()
    return (
        f'<figure><img alt="{escape(figure)}" src="data:image/svg+xml;base64,{picture}">'
        f"<figcaption>{escape(figure)}</figcaption></figure>"
    )


def _plain(svg: str) -> str:
    """The picture in its light colours, without variables, which not every renderer of SVG knows."""
    svg = re.sub(r"@media[^{]*\{\s*:root\s*\{[^}]*\}\s*\}", "", svg)
    colours = dict(re.findall(r"(--[\w-]+):\s*([^;}]+);", svg))
    return re.sub(r"var\((--[\w-]+)\)", lambda match: colours.get(match[1], "#000000").strip(), svg)


if __name__ == "__main__":
    main()
