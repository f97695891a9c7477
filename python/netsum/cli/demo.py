"""`netsum demo`."""

import contextlib
import importlib.util
import json
import webbrowser
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from netsum import private
from netsum._core import PROTOCOLS
from netsum.cli.dashboard import page_of
from netsum.cli.output import console, errors, print_json, stop_on_termination
from netsum.demo import report, session
from netsum.demo.errors import DemoError
from netsum.demo.result import complaints, summarize
from netsum.demo.show import Terminal, tables
from netsum.demo.workloads import CHARACTERS, DIGITS
from netsum.fabric.local import LocalFabric


def demo(
    kill_switch: Annotated[
        bool, typer.Option("--kill-switch", help="kill a spine and a rack switch during the training")
    ] = False,
    fsdp: Annotated[bool, typer.Option("--fsdp", help="train a GPT that is sharded over the workers")] = False,
    protocol: Annotated[str, typer.Option(help=f"{', '.join(PROTOCOLS)}: the controller chooses")] = "panama",
    epochs: Annotated[
        int | None, typer.Option(min=3, max=200, help="parts of the training [12; 20 with kills; with --fsdp 8; 12]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON, the rest to stderr")] = False,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="show the fabric in the browser meanwhile")] = False,
    out: Annotated[Path, typer.Option(help="folder for report.html, result.json and logs")] = Path("out/demo"),
) -> None:
    """Train a model through a local fabric, and on Gloo beside it.

    LeNet-5 by data parallelism, or a sharded GPT, with four workers and four switches.
    """
    for module, package in (("torch", "torch"), ("sklearn", "scikit-learn")):
        if importlib.util.find_spec(module) is None:
            raise DemoError(f"the demo needs {package}; run `make demo`, or `pip install 'netsum[demo]'`")
    if protocol not in PROTOCOLS:
        raise DemoError(f"--protocol {protocol}: use one of {', '.join(PROTOCOLS)}")
    stop_on_termination()
    workload = CHARACTERS if fsdp else DIGITS
    passes = epochs or workload.epochs[kill_switch]
    screen = errors if as_json else console
    terminal = Terminal(screen, workload)
    try:
        shown = partial(_show, screen) if dashboard else session.unseen
        outcome = session.run(out, passes, kill_switch, terminal, protocol, workload, shown)
    finally:
        terminal.close()
    result = summarize(outcome)
    broken = complaints(result)
    private.write_text(out / "result.json", json.dumps(result, indent=2) + "\n")
    private.write_text(out / "report.html", report.render(outcome, result, broken))
    for table in tables(result):
        screen.print()
        screen.print(table)
    screen.print(f"\nreport: {out / 'report.html'}   numbers: {out / 'result.json'}", highlight=False, soft_wrap=True)
    if as_json:
        print_json(result)
    if broken:
        raise DemoError("; ".join(broken))


@contextlib.contextmanager
def _show(screen: Console, fabric: LocalFabric) -> Iterator[None]:
    """The page of `netsum dashboard` for a fabric, as long as it runs."""
    settings = fabric.environment()
    page = page_of(settings["NETSUM_CONTROLLER"], Path(settings["NETSUM_CREDENTIALS"]))
    page.start()
    screen.print(f"dashboard: {page.url}", highlight=False, soft_wrap=True)
    webbrowser.open(page.url)
    try:
        yield
    finally:
        page.stop()
