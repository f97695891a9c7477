"""`netsum bench`."""

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from netsum._core import PROTOCOLS
from netsum.bench import OPERATIONS, BenchError, Plan, Row, measure, sizes
from netsum.bench.cases import POINT, REDUCTIONS, WIDTHS, Case, cases
from netsum.bench.libraries import PEERS, Library, Missing, starter
from netsum.bench.measure import machine, take_turn
from netsum.bench.picture import picture, words
from netsum.bench.ranks import ROOT, Command, NetsumRunner, execute
from netsum.cli.output import errors, print_json, stop_on_termination
from netsum.cli.run import on_fabric
from netsum.pictures import PictureError, png

_HEADER = ("operation", "bytes", "library", "median µs", "best", "p99", "algbw GB/s", "busbw GB/s", "#wrong", "ahead")
_WIDTHS = (14, 10, 13, 11, 11, 11, 10, 10, 7, 6)


def bench(
    operations: Annotated[list[str] | None, typer.Argument(help=f"{', '.join(OPERATIONS)}; all; [allreduce]")] = None,
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, max=64, help="processes on this machine")] = 2,
    begin: Annotated[str, typer.Option("-b", "--begin", help="smallest size; K, M, G are powers of 1024")] = "8",
    end: Annotated[str, typer.Option("-e", "--end", help="largest size")] = "16M",
    factor: Annotated[float, typer.Option("-f", "--factor", help="from one size to the next")] = 4.0,
    dtype: Annotated[str, typer.Option("-d", "--dtype", help=", ".join(WIDTHS))] = "float32",
    reduction: Annotated[str, typer.Option("-o", "--op", help=", ".join(REDUCTIONS))] = "sum",
    iterations: Annotated[
        int | None, typer.Option("-i", "--iterations", min=1, help="of a round; as fit 0.2 s")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="turns that libraries take at every size")] = 3,
    warmup: Annotated[int, typer.Option("-w", "--warmup", min=0, help="calls before each round")] = 5,
    check: Annotated[bool, typer.Option("--check/--no-check", help="compare results with what they must be")] = True,
    peers: Annotated[str, typer.Option(help=f"libraries beside: {', '.join(PEERS)}")] = "",
    fabric: Annotated[Path | None, typer.Option(help="fabric file: netsum's sums go through its switches")] = None,
    protocol: Annotated[str | None, typer.Option(help=f"{', '.join(PROTOCOLS)}: on a local fabric")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="rows as JSON on standard output")] = False,
    plot: Annotated[Path | None, typer.Option(help="busbw over size, as .svg or .png")] = None,
) -> None:
    """Time collectives between ranks, as nccl-tests and OSU do.

    Other libraries take turns. An iteration: all ranks leave a barrier, call once, and the slowest rank's time counts.
    Started by a launcher (RANK and WORLD_SIZE are set, as by `netsum run`), this process is one of the ranks, and rank
    0 prints.
    """
    plan = Plan(rounds, iterations, warmup=warmup, check=check)
    launched = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    size = int(os.environ["WORLD_SIZE"]) if launched else ranks
    wanted = _cases(operations or ["allreduce"], dtype, reduction, sizes(begin, end, factor), size)
    if plot is not None and plot.suffix not in (".svg", ".png"):
        raise BenchError(f"{plot}: a picture is an .svg or a .png")
    if protocol not in (None, *PROTOCOLS):
        raise BenchError(f"--protocol {protocol}: use one of {', '.join(PROTOCOLS)}")
    stop_on_termination()
    if launched:
        if peers or fabric or protocol:
            raise BenchError("a launcher has started this rank: leave out --peers, --fabric and --protocol")
        groups = _as_rank(wanted, plan)
    else:
        groups = _with_worlds(wanted, size, plan, _names(peers), fabric, protocol)
    rows = _report(groups, as_json)
    if rows is None:
        return
    if plot is not None:
        _draw(rows, plot)
    if any(row.wrong for row in rows):
        raise typer.Exit(1)


def _cases(operations: list[str], dtype: str, reduction: str, wanted: list[int], size: int) -> list[Case]:
    chosen = operations
    if operations == ["all"]:
        chosen = [each for each in OPERATIONS if size > 1 or each not in POINT]
    for name, value, known in (
        *(("operation", each, OPERATIONS) for each in chosen),
        ("--dtype", dtype, tuple(WIDTHS)),
        ("--op", reduction, REDUCTIONS),
    ):
        if value not in known:
            raise BenchError(f"{name} {value}: use one of {', '.join(known)}")
    if reduction == "avg" and "int" in dtype:
        raise BenchError(f"--op avg of {dtype}: averages are checked for floats only")
    return [case for each in chosen for case in cases(each, dtype, reduction, wanted, size)]


def _names(peers: str) -> list[str]:
    names = [name.strip() for name in peers.split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            raise BenchError(f"--peers {name}: use some of {', '.join(PEERS)}")
    return list(dict.fromkeys(names))


def _with_worlds(
    wanted: list[Case], size: int, plan: Plan, peers: list[str], fabric: Path | None, protocol: str | None
) -> Iterator[list[Row]]:
    """Rows from ranks that are started here and stopped when the block ends, also after an error."""
    with contextlib.ExitStack() as stack:
        environment: dict[str, str] = {}
        if fabric is not None or protocol is not None:
            _, environment = stack.enter_context(on_fabric(fabric, {"NETSUM_PROTOCOL": protocol or "panama"}, size))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="netsum-bench-")))
        worlds: list[Library] = []
        for name in ["netsum", *peers]:
            start = starter(name, size, folder, environment)
            if isinstance(start, Missing):
                errors.print(f"left out: {start.name}: {start.why}", highlight=False, soft_wrap=True, markup=False)
                continue
            world = start()
            stack.callback(world.stop)
            world.wait_ready()
            worlds.append(world)
        yield from measure(worlds, wanted, size, plan)


def _as_rank(wanted: list[Case], plan: Plan) -> Iterator[list[Row]] | None:
    """This process as one rank: rank 0 leads and returns the rows, the others follow and return none."""
    runner = NetsumRunner()
    if runner.rank == ROOT:
        return _leading(runner, wanted, plan)
    while line := runner.broadcast_line(""):
        execute(runner, Command.parse(line))
    runner.world.close()
    return None


def _leading(runner: NetsumRunner, wanted: list[Case], plan: Plan) -> Iterator[list[Row]]:
    def ask(command: Command) -> tuple[int, list[float]]:
        runner.broadcast_line(command.line())
        return execute(runner, command)

    for case in wanted:
        row = Row(case, "netsum", runner.size)
        known: dict[str, int] = {}
        for _ in range(plan.rounds):
            take_turn(row, ask, plan, known)
        yield [row]
    runner.broadcast_line("")
    runner.world.close()


def _report(groups: Iterable[list[Row]] | None, as_json: bool) -> list[Row] | None:
    """Print all rows as they are measured, or as JSON at the end."""
    if groups is None:
        return None
    rows: list[Row] = []
    if not as_json:
        _line(_HEADER)
    for group in groups:
        rows += group
        for row in group if not as_json else ():
            _line(_cells(row, group[0]))
    if as_json:
        print_json({"machine": machine(), "rows": [row.to_json() for row in rows]})
    return rows


def _cells(row: Row, ours: Row) -> tuple[str, ...]:
    case = row.case
    name = (case.operation, words(case.nbytes), row.library)
    if row.problem:
        return (*name, row.problem)
    times = [f"{each * 1e6:.2f}" for each in (row.median, row.best, row.p99)]
    rates = [f"{each / 1e9:.3f}" for each in (case.algbw(row.median), case.busbw(row.median, row.ranks))]
    wrong = "-" if row.wrong is None else str(row.wrong)
    ahead = f"{row.median / ours.median:.2f}" if row is not ours and ours.seconds else ""
    return (*name, *times, *rates, wrong, ahead)


def _line(cells: tuple[str, ...]) -> None:
    left = [
        cell.ljust(width) if at in (0, 2) else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=False))
    ]
    print("  ".join(left).rstrip(), flush=True)


def _draw(rows: list[Row], plot: Path) -> None:
    svg = picture(rows)
    try:
        plot.parent.mkdir(parents=True, exist_ok=True)
        if plot.suffix == ".png":
            plot.write_bytes(png(svg))
        else:
            plot.write_text(svg)
    except (OSError, PictureError) as error:
        raise BenchError(f"{plot}: {error}") from error
    errors.print(f"wrote {plot}", highlight=False)
