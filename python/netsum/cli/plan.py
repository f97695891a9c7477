"""`netsum plan …`: what the planner knows of a fabric."""

from typing import Annotated

import typer
from rich.table import Table

from netsum.cli.output import console, print_json
from netsum.plan import Selection, topology

app = typer.Typer(help="Find the best trees on a fabric, with a proof.", no_args_is_help=True, rich_markup_mode=None)

Source = Annotated[
    str, typer.Argument(metavar="TOPOLOGY", help="a file, or dgx1p, dgx1v, dgx2, a100x2, h100, mi250, torus:4x4, …")
]
Gpus = Annotated[str, typer.Option("--gpus", help="names or numbers, as 0,1,4; all if not given")]
Kinds = Annotated[str, typer.Option("--links", help="kinds to use, as nvlink,pcie; all if not given")]
Format = Annotated[str | None, typer.Option("--format", help="toml, json, fabric, nvidia-smi, nccl, lstopo, node-link")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.command()
def show(source: Source, gpus: Gpus = "", kinds: Kinds = "", format: Format = None, as_json: Json = False) -> None:
    """What is read from a topology: GPUs, switches, links and their rates."""
    graph = topology(Selection(source, split(gpus), split(kinds), format))
    if as_json:
        print_json(graph)
        return
    switches = graph.get("switch", [])
    console.print(
        f"{graph['name']}: {len(graph['gpu'])} GPUs, {len(switches)} switches, {len(graph['link'])} links",
        highlight=False,
    )
    table = Table()
    for heading in ("link", "kind", "rate", "latency"):
        table.add_column(heading)
    for link in graph["link"]:
        arrow = "→" if link["one_way"] else "–"
        table.add_row(arrow.join(link["ends"]), link["kind"], link["rate"], link["latency"])
    console.print(table)


def split(text: str) -> list[str]:
    """Words between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]
