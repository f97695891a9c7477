"""`netsum sim`."""

import signal
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from netsum.cli.output import console, errors, print_json, stop_on_termination
from netsum.sim import Result, Sweep, report
from netsum.sim import run as simulate
from netsum.sim import sweep as simulate_all
from netsum.sim.result import require_arrow

app = typer.Typer(help="Simulate fabrics, jobs and other traffic, packet by packet.", no_args_is_help=True)


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="TOML file: fabric, switches, flows, jobs, scheme")],
    out: Annotated[Path | None, typer.Option(help="folder for tables and report [out/sim/NAME of the file]")] = None,
    table_format: Annotated[
        str | None,
        typer.Option("--format", help="of the tables: csv, or parquet (needs pyarrow) [what the file says, or csv]"),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="of the run; the results are the same [what the file says, or 1]")
    ] = None,
    pcapng: Annotated[
        Path | None, typer.Option(help="also write the packets of aggregation here, for Wireshark; takes one thread")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON, the rest to stderr")] = False,
) -> None:
    """Run one configuration.

    Tables are written to the folder while it runs, the report at the end.
    """
    stop_on_termination()
    if (table_format or _format_of(config)) == "parquet":
        # The report reads the tables.
        require_arrow()
    folder = out or Path("out/sim") / config.stem
    columns = (BarColumn(), TextColumn("{task.percentage:3.0f} %"), TextColumn("{task.description}", markup=False))
    with _interruptible(), Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("starting", total=1.0)

        def on_progress(state: Any) -> None:
            text = (
                f"{state.simulated_ms:.2f} ms simulated, {state.hops_per_s / 1e6:.1f} M packet-hops/s, "
                f"{state.flows} flows, {state.steps} steps, {state.left_s:.0f} s left"
            )
            bar.update(task, completed=state.share, description=text)

        result = simulate(
            config,
            folder,
            format=table_format,
            threads=threads,
            pcapng=pcapng,
            progress=on_progress,
            notes=lambda note: errors.print(note, highlight=False),
        )
    page = report.write(result)
    screen = errors if as_json else console
    screen.print(_table(result))
    if result.unfinished_jobs:
        screen.print(f"{report.unfinished(result)} when the run ended", highlight=False)
    screen.print(f"report: {page}   tables: {folder}", highlight=False)
    if as_json:
        print_json(result.summary)


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help='TOML file: base = "run.toml", and [grid] with lists by dotted key')],
    out: Annotated[Path | None, typer.Option(help="folder for the runs [out/sim/NAME of the file]")] = None,
    engine: Annotated[str, typer.Option(help="local: the cores of this machine; ray: a Ray cluster")] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="runs at a time [as many as cores]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print all summaries as JSON")] = False,
) -> None:
    """Run every combination of a grid. Completed runs are skipped: after an interruption, repeat the command."""
    stop_on_termination()
    folder = out or Path("out/sim") / file.stem
    plan = Sweep.read(file)
    columns = (BarColumn(), TextColumn("{task.completed}/{task.total} {task.description}", markup=False))
    with _interruptible(), Progress(*columns, console=errors) as bar:
        task = bar.add_task("", total=len(plan.runs()))
        results = simulate_all(
            plan,
            folder,
            engine=engine,
            workers=workers,
            done=lambda name, count, _: bar.update(task, completed=count, description=name),
        )
        # Runs that were complete before are not announced.
        bar.update(task, completed=len(results), description="complete")
    if as_json:
        print_json({name: result.summary for name, result in results.items()})
        return
    console.print(_comparison(plan, results))
    console.print(f"all summaries: {folder / 'sweep.json'}", highlight=False)


def _format_of(config: Path) -> str | None:
    """The table format requested by the file; errors in the file are reported by the simulator."""
    try:
        return tomllib.loads(config.read_text(encoding="utf-8")).get("format")
    except (OSError, ValueError, RecursionError):
        return None


@contextmanager
def _interruptible() -> Iterator[None]:
    """Report an interruption with the message of the interrupted run; the exit code is a shell's for the signal."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        for note in getattr(interrupt, "__notes__", ["interrupted before the run began"]):
            errors.print(note, highlight=False, markup=False, soft_wrap=True)
        number = interrupt.args[0] if interrupt.args else signal.SIGINT
        raise typer.Exit(128 + number) from None


def _comparison(plan: Sweep, results: dict[str, Result]) -> Table:
    """One row per run, named by the grid values that differ."""
    keys = [key for key, values in plan.grid.items() if len(values) > 1]
    last = [key.rpartition(".")[2] for key in keys]
    table = Table()
    for key, short in zip(keys, last, strict=True):
        whole = max(len(str(value)) for value in plan.grid[key]) <= 24
        table.add_column(short if last.count(short) == 1 else key, overflow="fold", no_wrap=whole)
    for figure in ("p99 FCT, short flows, µs", "long flows, Gbit/s", "step, ms", "packet-hops"):
        table.add_column(figure, overflow="fold")
    for name, chosen in plan.chosen().items():
        table.add_row(*(str(chosen[key]) for key in keys), *_figures(results[name]))
    return table


def _figures(result: Result) -> list[str]:
    summary = result.summary

    def figure(distribution: dict[str, Any], key: str, scale: float = 1.0) -> str:
        return f"{distribution[key] * scale:,.2f}" if distribution["count"] else "–"

    return [
        figure(summary["short_flows"]["fct_us"], "p99"),
        figure(summary["long_flows"]["throughput_gbps"], "mean"),
        figure(summary["steps"]["duration_us"], "mean", 1e-3),
        f"{summary['packet_hops']:,}",
    ]


def _table(result: Result) -> Table:
    names = ["p99 FCT of flows below 40 MB, µs", "mean throughput of longer ones, Gbit/s", "mean step of jobs, ms"]
    table = Table("figure", "value", show_header=False)
    for name, value in zip([*names, "packet-hops"], _figures(result), strict=True):
        table.add_row(name, value)
    return table
