"""The algorithms that the hosts of a job choose: `python -m netsum.explaining SIZES DTYPE OP [--json]` on every rank.

Start it as the job is started (torchrun, mpirun, `netsum run`): the links are those of the job, measured when the ranks
connect. SIZES are comma-separated bytes. With NETSUM_CONTROLLER, operations that switches do are also timed through
them. Rank 0 prints.
"""

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

from rich.table import Column, Table

from netsum import NetsumError
from netsum.bench.cases import COMBINING, Case
from netsum.bench.picture import words as size_words
from netsum.bench.ranks import Command, NetsumRunner, execute
from netsum.cli.output import console, errors, print_json
from netsum.communicator import Communicator, connect
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
SWITCHES = "switches"
"""Their name among the algorithms, where the core knows their costs."""
TIMED_BYTES = 16 << 20
"""Larger operations through switches are not timed."""
CALLS = 5


def found(
    link: dict[str, Any],
    sizes: list[int],
    ask: Callable[[str, int], str],
    switches: Callable[[str, int], float | None] = lambda _operation, _size: None,
) -> dict[str, Any]:
    """The choices for each operation and size, from the core's answers to (operation, bytes).

    switches: seconds of that operation if it goes through switches; None if it does not. With `switches_s` and without
    costs of switches, the choice is the hosts' one that remains while there are no trees.
    """
    choices = [
        {"operation": operation, "bytes": size, **json.loads(ask(operation, size)), "switches_s": seconds}
        for operation in OPERATIONS
        for size in sizes
        for seconds in [switches(operation, size)]
    ]
    return {"link": link, "choices": choices}


def timed(group: Communicator, operation: str, size: int, dtype: str, op: str) -> float | None:
    """The median of a few calls if the group does the operation by switches, at its slowest rank; else None.
    Collective.

    size: bytes per rank, as `explain` takes it.
    """
    # An all-gather's bytes are of one rank there, and of all ranks in a case.
    whole = size * group.size if operation == "allgather" else size
    if operation == "barrier" or whole > TIMED_BYTES:
        return None
    case = Case(operation, dtype if operation in COMBINING else "uint8", op, whole)
    before = _in_network(group)
    _, times = execute(NetsumRunner(group), Command(case, 1, CALLS, False))
    return statistics.median(times) if _in_network(group) >= before + CALLS else None


def _in_network(group: Communicator) -> int:
    operations: int = json.loads(group.core.stats())["network_operations"]
    return operations


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
        modelled = [_without_switches(row) for row in rows]
        switched = any(
            row["switches_s"] is not None or cost is not None for row, (_, cost) in zip(rows, modelled, strict=True)
        )
        timed = any(row["switches_s"] is not None for row in rows)
        reasons += ["switches do it; the hosts' times are computed, those of switches measured"] if timed else []
        words = f"{operation}: microseconds by bytes per rank; * chosen: {'; or '.join(reasons)}"
        console.print(words, highlight=False, soft_wrap=True)
        able = [cost["name"] for cost in modelled[0][0] if _at_any_size(cost["name"], modelled)]
        names = able + ([SWITCHES] if switched else [])
        table = Table("bytes", *(Column(name, justify="right", overflow="fold") for name in names))
        for row, (hosts, model) in zip(rows, modelled, strict=True):
            chosen = row["chosen"] if row["switches_s"] is None else SWITCHES
            seconds = model if row["switches_s"] is None else row["switches_s"]
            costs = [*hosts, *([{"name": SWITCHES, "seconds": seconds}] if switched else [])]
            table.add_row(size_words(row["bytes"]), *(_cell(cost, chosen) for cost in costs if cost["name"] in names))
        console.print(table)
        unable = [cost["name"] for cost in modelled[0][0] if cost["name"] not in able]
        if unable:
            console.print(f"not possible here: {', '.join(unable)}", highlight=False, soft_wrap=True)


def _at_any_size(name: str, modelled: list[tuple[list[dict[str, Any]], float | None]]) -> bool:
    return any(cost["name"] == name and cost["seconds"] is not None for hosts, _ in modelled for cost in hosts)


def _without_switches(choice: dict[str, Any]) -> tuple[list[dict[str, Any]], float | None]:
    """The costs of the hosts' algorithms, and that of switches if it is known."""
    hosts = [cost for cost in choice["costs"] if cost["name"] != SWITCHES]
    return hosts, next((cost["seconds"] for cost in choice["costs"] if cost["name"] == SWITCHES), None)


def _links(link: dict[str, Any]) -> str:
    ranks = f"{link['ranks']} rank{'s' if link['ranks'] != 1 else ''}"
    if link["shared_memory"]:
        return f"{ranks} that share memory"
    rate = f"{link['bytes_per_s'] / 1e9:.3g} GB/s each way"
    pairs = ", ".join(f"{each / 1e9:.3g}" for each in link.get("by_distance", ()))
    shared = f"; ranks share links: those that differ in bit 0, 1 … exchange at {pairs} GB/s" if pairs else ""
    return f"{ranks}; a small message takes {link['latency_s'] * 1e6:.1f} µs, each rank sends {rate}{shared}"


def _cell(cost: dict[str, Any], chosen: str) -> str:
    if cost["seconds"] is None:
        return "–"
    return f"{cost['seconds'] * 1e6:.1f}{' *' if cost['name'] == chosen else ''}"


def main() -> int:
    sizes, dtype, op, *rest = sys.argv[1:]
    try:
        group = connect(name="explain", timeout_s=60.0)
        link = json.loads(group.core.stats())["link"]

        def ask(operation: str, size: int) -> str:
            return group.core.explain(operation, size, dtype, op)

        def switches(operation: str, size: int) -> float | None:
            return timed(group, operation, size, dtype, op) if trees else None

        trees = json.loads(group.core.stats())["path"] == "trees"
        answer = found(link, [int(size) for size in sizes.split(",")], ask, switches)
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
