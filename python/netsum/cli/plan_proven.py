"""`netsum plan symmetric` and `netsum plan groups`: plans with their own proof, which `netsum plan verify` checks."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from netsum import plan as planner
from netsum.cli.output import console, print_json
from netsum.plan import Group, PlanError, Selection, topology

Source = Annotated[str, typer.Argument(metavar="TOPOLOGY", help="a file, or h100x128, torus:128x128, …")]
Kinds = Annotated[str, typer.Option("--links", help="kinds to use, as nvlink,nic; all if not given")]
Format = Annotated[str | None, typer.Option("--format", help="as of `netsum plan pack`")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="write the plan, .json")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
RANKS_MAX = 1 << 16
"""More than any fabric has."""


def register(app: typer.Typer) -> None:
    """Add the commands to `netsum plan`."""
    app.command("symmetric")(symmetric)
    app.command("groups")(groups)


def symmetric(
    source: Source,
    collective: Annotated[str, typer.Option(help="allgather, reduce-scatter, allreduce")] = "allgather",
    kinds: Kinds = "",
    format: Format = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Plan a large fabric that looks the same from every rank.

    Up to 16,384 GPUs: what one does, all do, moved.
    """
    graph = topology(Selection(source, [], _split(kinds), format))
    plan = planner.pack_symmetric(graph, collective)
    rate, bound = _checked(plan, graph)
    _write(out, plan)
    if as_json:
        print_json({"rate_bps": str(rate), "bound_bps": None if bound is None else str(bound), "plan": plan})
        return
    orders = " × ".join(str(automorphism["order"]) for automorphism in plan["automorphisms"])
    console.print(
        f"{collective}: {_gbytes(rate)} GB/s, {_against(rate, bound, 'GB/s', _gbytes)}\n"
        f"{len(plan['flows'])} trees of the first rank; {orders} automorphisms give those of all "
        f"{len(plan['gpus'])} ranks",
        highlight=False,
        soft_wrap=True,
    )


def groups(
    source: Source,
    group: Annotated[
        list[str],
        typer.Option(
            "--group",
            help="COLLECTIVE:BYTES:RANKS, as allreduce:64MiB:0-3; several groups with ';', every 4th rank as 0-12/4",
        ),
    ],
    kinds: Kinds = "",
    format: Format = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Plan process groups that communicate at the same time.

    All end together, as early as is possible.
    """
    graph = topology(Selection(source, [], _split(kinds), format))
    parts = [one for word in group for one in _groups(word)]
    plan = planner.pack_groups(graph, parts)
    rate, bound = _checked(plan, graph)
    _write(out, plan)
    if as_json:
        print_json({"rounds_per_s": str(rate), "bound": None if bound is None else str(bound), "plan": plan})
        return
    table = Table()
    for heading in ("group", "GPUs", "bytes", "GB/s", "alone GB/s", "trees"):
        table.add_column(heading, justify="left" if heading == "group" else "right")
    for planned, part in zip(plan["groups"], parts, strict=True):
        own = [graph["gpu"][rank]["name"] for rank in part.ranks]
        alone = planner.pack(topology(Selection(source, own, _split(kinds), format)), part.collective, part.root)
        together = _gbytes(Fraction(planned["plan"]["rate_bps"]))
        trees = len(planned["plan"]["flows"])
        table.add_row(part.name, str(len(own)), f"{part.bytes:,}", together, f"{alone['rate']:.6g}", str(trees))
    console.print(table)
    console.print(
        f"all {len(parts)} end after {_ms(1 / rate)} ms, {_against(1 / rate, bound and 1 / bound, 'ms', _ms)}",
        highlight=False,
        soft_wrap=True,
    )


def checked_words(text: str, graph: dict[str, Any]) -> str | None:
    """What the verifier says of a plan that has its own proof; None for other plans. PlanError if it is wrong."""
    found = planner.verify_proven(text, graph)
    if found is None:
        return None
    rate, bound = found
    if bound is None:
        return "right; nothing is proven about better plans"
    if rate == bound:
        return "right, and proven: no plan is faster"
    return f"right, and proven: no plan is more than {100 * float(bound / rate - 1):.2g} % faster"


def _checked(plan: dict[str, Any], graph: dict[str, Any]) -> tuple[Fraction, Fraction | None]:
    found = planner.verify_proven(json.dumps(plan), graph)
    if found is None:
        raise PlanError("the plan has no format that is verified")
    return found


def _against(value: Fraction, bound: Fraction | None, unit: str, words: Any) -> str:
    if bound is None:
        return "without a proof"
    return "which no plan exceeds" if value == bound else f"the bound is {words(bound)} {unit}"


def _groups(word: str) -> list[Group]:
    """The groups of COLLECTIVE:BYTES:RANKS;RANKS…"""
    from netsum.cli.plan import bytes_of

    collective, _, rest = word.partition(":")
    size, _, ranks = rest.partition(":")
    if not size or not ranks:
        raise PlanError(f"--group {word}: write COLLECTIVE:BYTES:RANKS, as allreduce:64MiB:0-3")
    lists = [_ranks(word, part) for part in ranks.split(";")]
    return [
        Group(f"{collective}:{part}", list_, collective, int(bytes_of(size)))
        for part, list_ in zip(ranks.split(";"), lists, strict=True)
    ]


def _ranks(word: str, text: str) -> list[int]:
    """Ranks as 0,1,4-7 or 0-12/4."""
    found: list[int] = []
    for part in text.split(","):
        ends, _, step = part.partition("/")
        first, dash, last = ends.partition("-")
        try:
            numbers = range(int(first), int(last if dash else first) + 1, int(step or 1))
        except ValueError as error:
            raise PlanError(f"--group {word}: {part!r} is no list of ranks; write 0,1,4-7 or 0-12/4") from error
        if len(found) + len(numbers) > RANKS_MAX:
            raise PlanError(f"--group {word}: {text!r} is more than {RANKS_MAX:,} ranks")
        found.extend(numbers)
    if len(set(found)) != len(found) or len(found) < 2:
        raise PlanError(f"--group {word}: {text!r} must be two different ranks or more")
    return found


def _gbytes(rate: Fraction) -> str:
    return f"{float(rate) / 8e9:.6g}"


def _ms(seconds: Fraction) -> str:
    return f"{1e3 * float(seconds):.6g}"


def _split(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _write(out: Path | None, plan: dict[str, Any]) -> None:
    if out is None:
        return
    try:
        out.write_text(json.dumps(plan))
    except OSError as error:
        raise PlanError(f"{out}: cannot be written: {error.strerror}") from error
