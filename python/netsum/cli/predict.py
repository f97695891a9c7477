"""`netsum predict`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from netsum.cli.output import console, print_json
from netsum.fabric.description import counted
from netsum.sim import toml
from netsum.sim.predict import predict as replay

SCHEMES = ["ring", "shares", "panama"]
"""As other libraries sum between hosts, as netsum does within a rack, and through switches."""


def predict(
    folder: Annotated[
        Path, typer.Argument(help="of NETSUM_RECORDER or torch.profiler, with the files of all ranks of a job")
    ],
    fabric: Annotated[Path, typer.Argument(help="fabric file of the other cluster; host N has rank N")],
    scheme: Annotated[
        list[str] | None,
        typer.Option("--scheme", help="how allreduces are done; may be repeated [ring, shares and panama]"),
    ] = None,
    group: Annotated[str | None, typer.Option(help="whose files, if the folder has several groups")] = None,
    per_host: Annotated[int, typer.Option(min=1, help="ranks of a host; they follow each other")] = 1,
    local_rate: Annotated[str, typer.Option(help="at which a rank sends to others of its host")] = "3600Gbit/s",
    compute_scale: Annotated[float, typer.Option(min=0.0, help="computing takes so many times as long")] = 1.0,
    settings: Annotated[
        Path | None,
        typer.Option(help="file (TOML) with tables switch, host and tcp, as `netsum sim` reads them"),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="of the simulation; the results are the same")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="print the predictions as JSON")] = False,
) -> None:
    """Predict the step time of a recorded job on another cluster.

    Its operations are replayed packet by packet.
    """
    ranks = {"per_host": per_host, "local_rate": local_rate}
    found = [
        replay(
            folder,
            fabric,
            scheme=kind,
            group=group,
            ranks=ranks,
            compute_scale=compute_scale,
            threads=threads,
            settings=None if settings is None else toml.read(settings),
        )
        for kind in scheme or SCHEMES
    ]
    if as_json:
        print_json([asdict(each) for each in found])
        return
    figures = (Column(name, justify="right") for name in ("step, ms", "of it computing, ms", "recorded, ms"))
    table = Table("scheme", *figures)
    for each in found:
        times = (each.predicted_s, each.computing_s, each.recorded_s)
        table.add_row(each.scheme, *(f"{seconds * 1e3:,.3f}" for seconds in times))
    console.print(table)
    first = found[0]
    console.print(
        f"{counted(first.ranks, 'rank')}, {counted(first.steps, 'step')} of {counted(first.operations, 'operation')} "
        "replayed",
        highlight=False,
    )
