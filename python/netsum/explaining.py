"""The algorithms that the hosts of a job choose: `python -m netsum.explaining SIZES DTYPE OP [--json]` on every rank.

Start it as the job is started (torchrun, mpirun, `netsum run`): the links are those of the job, measured when the ranks
connect. SIZES are comma-separated bytes. Rank 0 prints.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from rich.table import Column, Table

from netsum import NetsumError
from netsum.cli.output import console, errors, print_json
from netsum.communicator import connect
from netsum.config import SettingError

OPERATIONS = (
    "allreduce",
    "allgather",
    "broadcast",
    "reduce",
    "reduce_scatter",
    "gather",
    "scatter",
    "alltoall",
    "barrier",
)
"""Operations with several algorithms."""


def found(link: dict[str, Any], sizes: list[int], ask: Callable[[str, int], str]) -> dict[str, Any]:
    """The choices for each operation and size, from the core's answers to (operation, bytes)."""
    choices = [
        {"operation": operation, "bytes": size, **json.loads(ask(operation, size))}
        for operation in OPERATIONS
        for size in sizes
    ]
    return {"link": link, "choices": choices}


def show(answer: dict[str, Any], as_json: bool) -> None:
    """Print what `found` gives."""
    if as_json:
        print_json(answer)
        return
    link = answer["link"]
    console.print(_links(link), highlight=False, soft_wrap=True)
    for operation in OPERATIONS:
        rows = [choice for choice in answer["choices"] if choice["operation"] == operation]
        if not rows:
            continue
        reasons = list(dict.fromkeys(row["why"] for row in rows))
        words = f"{operation}: microseconds by bytes per rank; * chosen: {'; or '.join(reasons)}"
        console.print(words, highlight=False, soft_wrap=True)
        table = Table("bytes", *(Column(cost["name"], justify="right") for cost in rows[0]["costs"]))
        for row in rows:
            table.add_row(str(row["bytes"]), *(_cell(cost, row["chosen"]) for cost in row["costs"]))
        console.print(table)


def _links(link: dict[str, Any]) -> str:
    ranks = f"{link['ranks']} rank{'s' if link['ranks'] != 1 else ''}"
    if link["shared_memory"]:
        return f"{ranks} that share memory"
    rate = f"{link['bytes_per_s'] / 1e9:.3g} GB/s each way"
    return f"{ranks}; a small message takes {link['latency_s'] * 1e6:.1f} µs, each rank sends {rate}"


def _cell(cost: dict[str, Any], chosen: str) -> str:
    if cost["seconds"] is None:
        return "–"
    return f"{cost['seconds'] * 1e6:.1f}{' *' if cost['name'] == chosen else ''}"


def main() -> int:
    sizes, dtype, op, *rest = sys.argv[1:]
    try:
        group = connect(name="explain", timeout_s=60.0, in_network=False)
        link = json.loads(group.core.stats())["link"]

        def ask(operation: str, size: int) -> str:
            return group.core.explain(operation, size, dtype, op)

        answer = found(link, [int(size) for size in sizes.split(",")], ask)
        if group.rank == 0:
            show(answer, "--json" in rest)
        group.barrier()
        group.close()
    except (NetsumError, SettingError) as error:
        errors.print(f"error: {error}", highlight=False, soft_wrap=True, markup=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
