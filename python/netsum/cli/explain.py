"""`netsum explain`: the algorithm an operation uses, and why."""

from typing import Annotated

import typer
from rich.table import Table

from netsum import NetsumError, _core, explaining
from netsum import plan as planner
from netsum.bench.picture import words
from netsum.cli.output import console, print_json
from netsum.cli.plan import Format, Gpus, Json, Kinds, bytes_of, split
from netsum.launch import Workers
from netsum.plan import PlanError, Selection, topology


def explain(
    source: Annotated[
        str | None, typer.Argument(help="a topology, as for `netsum plan`; without one, the algorithms of the hosts")
    ] = None,
    gpus: Gpus = "",
    kinds: Kinds = "",
    format: Format = None,
    sizes: Annotated[str, typer.Option(help="bytes, as 4KiB,64MiB")] = "4KiB,64KiB,1MiB,16MiB,256MiB,1GiB",
    ranks: Annotated[int, typer.Option(help="without a topology: so many", min=1)] = 2,
    latency: Annotated[float | None, typer.Option(help="seconds of a small message; measured if not given")] = None,
    rate: Annotated[float | None, typer.Option(help="bytes per second of a rank; measured if not given")] = None,
    dtype: Annotated[str, typer.Option(help="of the elements of an allreduce")] = "float32",
    op: Annotated[str, typer.Option(help="of an allreduce: sum, min, …")] = "sum",
    as_json: Json = False,
) -> None:
    """Say which path an operation takes by size, and why.

    It is what the cost model says. With a topology: when aggregation in the network speeds up an allreduce, and when it
    does not. Without one: the algorithm that the hosts choose, with the costs of all; latency and rate are measured
    between processes of this machine.
    """
    wanted = [bytes_of(size) for size in split(sizes)]
    if source is None:
        _hosts(ranks, latency, rate, [int(size) for size in wanted], dtype, op, as_json)
        return
    graph = topology(Selection(source, split(gpus), split(kinds), format))
    found = planner.explain(graph, wanted)
    if as_json:
        print_json(found)
        return
    names = list(dict.fromkeys(name for choice in found["choices"] for name, _ in choice["times"]))
    table = Table(title="microseconds by size; * fastest", title_justify="left")
    for heading in ("bytes", *names):
        table.add_column(heading, justify="right")
    for choice in found["choices"]:
        times = dict(choice["times"])
        cells = [f"{times[n]['seconds'] * 1e6:.1f}{' *' if n == choice['best'] else ''}" for n in names]
        table.add_row(words(int(choice["bytes"])), *cells)
    console.print(table)
    for sentence in found["words"]:
        console.print(sentence, highlight=False, soft_wrap=True)


def _hosts(
    ranks: int, latency: float | None, rate: float | None, sizes: list[int], dtype: str, op: str, as_json: bool
) -> None:
    for name, value in (("latency", latency), ("rate", rate)):
        if value is not None and not 0 < value < float("inf"):
            raise PlanError(f"--{name} {value}: expected a number above 0")
    if latency is None or rate is None:
        given = {"NETSUM_LINK_LATENCY_S": latency, "NETSUM_LINK_BYTES_PER_S": rate}
        environment = {name: str(value) for name, value in given.items() if value is not None}
        words = [",".join(map(str, sizes)), dtype, op, *(["--json"] if as_json else [])]
        workers = Workers(["-m", "netsum.explaining", *words], ranks, environment, plain=True)
        try:
            code = workers.wait()
        finally:
            workers.stop()
        raise typer.Exit(code)
    link = {"ranks": ranks, "shared_memory": False, "latency_s": latency, "bytes_per_s": rate}

    def ask(operation: str, size: int) -> str:
        return _core.explain_hosts(ranks, latency, rate, operation, size, dtype, op)

    try:
        answer = explaining.found(link, sizes, ask)
    except NetsumError as error:
        raise PlanError(str(error)) from error
    explaining.show(answer, as_json)
