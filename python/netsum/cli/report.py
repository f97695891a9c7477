"""`netsum report`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from netsum import private
from netsum.cli.output import console, errors, print_json
from netsum.report import compare, page, words
from netsum.report.files import ReportError, read
from netsum.report.summary import summarize


def report(
    folder: Annotated[Path, typer.Argument(help="of NETSUM_REPORT, with the files of all ranks")],
    other: Annotated[Path | None, typer.Argument(help="the folder of a later job: says what changed")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="also write a page (HTML) here")] = None,
    group: Annotated[str | None, typer.Option(help="of several groups this one; without it, the largest")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="all figures as JSON on standard output")] = False,
) -> None:
    """Say where the time of steps went, and what would help.

    Each advice has its predicted gain. The ranks write the files with NETSUM_REPORT=FOLDER. With two folders: what
    changed between the jobs.
    """
    job = read(folder, group)
    summary = summarize(job)
    if other is None:
        _show(summary, as_json)
        _write(out, lambda: page.render(job, summary))
        return
    later = summarize(read(other, group))
    found = compare.compare(summary, later)
    if as_json:
        print_json(found)
    else:
        for line in found["words"]:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        console.print(_table(("", "A", "B", "change"), compare.figure_rows(found)))
    _write(out, lambda: compare.render(found, summary, later))


def _show(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(summary)
        return
    for line in words.lines(summary):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if summary["advice"]:
        rows = [row[:1] + row[3:] for row in words.advice_rows(summary)]
        console.print(_table(("predicted, each alone", "step", "saves"), rows))


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    first, *others = headings
    table = Table(first, *(Column(heading, justify="right") for heading in others))
    for row in rows:
        table.add_row(*row)
    return table


def _write(out: Path | None, render: Callable[[], str]) -> None:
    if out is None:
        return
    try:
        private.write_text(out, render())
    except OSError as error:
        raise ReportError(f"{out}: cannot be written: {error.strerror}") from error
    errors.print(f"report: {out}", highlight=False, markup=False, soft_wrap=True)
