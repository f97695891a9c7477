"""`netsum plan …`: the planner's commands."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from netsum import plan as planner
from netsum.cli.output import console, errors, print_json
from netsum.cli.plan_proven import checked_words
from netsum.launch import Workers
from netsum.pictures import PictureError, png
from netsum.plan import PlanError, Selection, topology

SHOWN = 64
"""Trees that are printed."""

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
    """Show a topology: GPUs, switches, links and their rates."""
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


@app.command()
def pack(
    source: Source,
    gpus: Gpus = "",
    kinds: Kinds = "",
    format: Format = None,
    collective: Annotated[str, typer.Option(help=", ".join(planner.COLLECTIVES))] = "allreduce",
    root: Annotated[int, typer.Option(help="rank, for broadcast and reduce")] = 0,
    method: Annotated[
        str, typer.Option(help="exact, blink (multiplicative weights, integer programme), three-phase (servers), rings")
    ] = "exact",
    pieces: Annotated[int, typer.Option(min=0, help="shares as multiples of 1/PIECES; 0: exact")] = 0,
    size: Annotated[str, typer.Option(help="of the buffer, as 64MiB: use kinds of links side by side")] = "",
    setup: Annotated[
        list[str] | None, typer.Option(help="seconds before a kind of links carries anything, as pcie=0.0001")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.001, help="how long to search; if not given, 1.5 s of work up to 16 GPUs")
    ] = None,
    pareto: Annotated[bool, typer.Option("--pareto", help="list what fewer and lower trees cost")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="write the plan: .json, .mscclpp.json, .xml (MSCCL), .svg or .png"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the best trees for a collective.

    Prints rate, the bound with its proof, and the rates of other methods.
    """
    graph = topology(Selection(source, split(gpus), split(kinds), format))
    if pareto:
        _print_front(planner.front_by_size(graph, collective, root), as_json)
        return
    if setup and not size:
        raise PlanError("--setup is for a buffer of some size; give --size as well, as 1GiB")
    if size:
        found = planner.pack_kinds(graph, _setups(graph, setup or []), bytes_of(size), collective, root)
        if out is not None:
            _write(out, found["plan"], graph)
        _print_kinds(found, as_json)
        return
    report = _searched(graph, collective, root, method, pieces, seconds)
    if out is not None:
        _write(out, report["plan"], graph)
    if as_json:
        print_json(report)
    else:
        _print_report(report, collective)


@app.command()
def verify(
    plan: Annotated[Path, typer.Argument(help="a plan (.json), MSCCL XML (.xml) or MSCCL++ (.mscclpp.json)")],
    source: Annotated[str | None, typer.Argument(metavar="[TOPOLOGY]", help="of a plan; not for the others")] = None,
    gpus: Gpus = "",
    kinds: Kinds = "",
    format: Format = None,
    proof: Annotated[
        Path | None, typer.Option(help="what `pack --json` printed for an all-to-all: check its bound too")
    ] = None,
) -> None:
    """Check that a plan is correct and within its links' rates.

    It is checked in every order of its steps. Exit code 1 if it is wrong.
    """
    text = _text(plan)
    if plan.suffix == ".xml" or plan.name.endswith(".mscclpp.json"):
        graph = None
    elif source is None:
        raise PlanError(f"{plan}: a plan is checked on a topology; name it after the plan")
    else:
        graph = topology(Selection(source, split(gpus), split(kinds), format))
        words = checked_words(text, graph)
        if words is not None:
            console.print(words, highlight=False)
            return
    fault = planner.verify(text, graph)
    if fault is not None:
        raise PlanError(f"{plan}: {fault}")
    console.print("right: complete, every contribution once, no race, no deadlock", highlight=False)
    if proof is not None and graph is not None:
        try:
            bound = planner.proven(graph, json.loads(_text(proof))["certificate"])
        except (ValueError, KeyError, TypeError) as error:
            raise PlanError(f"{proof}: is no report of `netsum plan pack --json`") from error
        rate = Fraction(json.loads(text)["rate_bps"])
        words = "the best possible" if rate == bound else f"{_part(float(1 - rate / bound))} % below it"
        console.print(f"proven: no plan exceeds {_rate(float(bound) / 8e9)} GB/s; this one is {words}", highlight=False)


@app.command()
def replan(
    plan: Annotated[Path, typer.Argument(help="the plan in use; the new one is put in its place")],
    source: Source,
    lost: Annotated[list[str] | None, typer.Option(help="a link (gpu0-gpu4), GPU or switch; can be repeated")] = None,
    degraded: Annotated[list[str] | None, typer.Option(help="a link and its rate now: gpu0-gpu4=20Gbit/s")] = None,
    kinds: Kinds = "",
    format: Format = None,
    out: Annotated[Path | None, typer.Option(help="write the new plan here, and leave the old one")] = None,
    as_json: Json = False,
) -> None:
    """Make a new plan for the same ranks on what is left.

    A running job adopts it at its next step. Trees that lost nothing are kept, and others mended. The new plan is as
    good as one from `netsum plan pack`, with its bound. Without --lost and --degraded, the topology is read again.

    The job must have been started with the same plan file (`netsum run --plan`, NETSUM_PLAN): its rank 0 checks the
    file before every allreduce.
    """
    try:
        old = json.loads(plan.read_text())
        ranks = [old["vertices"][vertex] for vertex in old["gpus"]]
        old["collective"]["kind"], old["rate_bps"]
    except OSError as error:
        raise PlanError(f"{plan}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise PlanError(f"{plan}: is no tree plan; write one by `netsum plan pack`") from error
    rates = {}
    for word in degraded or []:
        link, equals, rate = word.partition("=")
        if not equals:
            raise PlanError(f"--degraded {word}: write LINK=RATE, as gpu0-gpu4=20Gbit/s")
        rates[link] = rate
    gone = [rank for rank in ranks if rank in (lost or [])]
    ranks = [rank for rank in ranks if rank not in gone]
    graph = topology(Selection(source, [*ranks, *gone], split(kinds), format))
    report = planner.replan(old, graph, planner.Losses(lost or [], rates))
    planner.put_in_place(report["plan"], out or plan)
    if as_json:
        print_json(report)
        return
    for words in report["lost"]:
        console.print(f"lost: {words}", highlight=False)
    console.print(
        f"{_rate(report['rate'])} GB/s in place of {_rate(report['before'])} GB/s, "
        f"{'the best possible' if report['optimal'] else 'bound ' + _rate(report['bound'])}; "
        f"{'mended' if report['mended'] else 'found anew'} in {report['seconds'] * 1e3:.1f} ms, "
        f"{100 * report['kept']:.0f} % of the buffer keeps its trees; written to {out or plan}",
        highlight=False,
        soft_wrap=True,
    )
    if gone:
        console.print("a job cannot lose ranks: start it anew on this plan", highlight=False)


@app.command()
def measure(
    plan: Annotated[Path, typer.Argument(help="the plan whose links are measured")],
    source: Source,
    out: Annotated[Path, typer.Option(help="the topology with measured rates and latencies (.json)")],
) -> None:
    """Measure a plan's links between processes of this machine.

    `netsum explain` can use these measurements. On several machines: `torchrun … -m netsum.plan.measuring TOPOLOGY OUT`
    with NETSUM_PLAN set, as the job is run.
    """
    try:
        ranks = len(json.loads(plan.read_text())["gpus"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(f"{plan}: is no tree plan; write one by `netsum plan pack`") from error
    topology(Selection(source))  # Refused here rather than by every rank.
    environment = {"NETSUM_PLAN": str(plan.resolve()), "NETSUM_CONTROLLER": ""}
    workers = Workers(["-m", "netsum.plan.measuring", source, str(out.resolve())], ranks, environment)
    try:
        code = workers.wait()
    finally:
        workers.stop()
    raise typer.Exit(code)


@app.command()
def classes(source: Source, kinds: Kinds = "", format: Format = None, as_json: Json = False) -> None:
    """List the classes of equivalent sets of GPUs, with rates.

    Sets have three GPUs or more; the rates are the best of each class.
    """
    graph = topology(Selection(source, [], split(kinds), format))
    rows = []
    for gpus, sets in planner.classes(graph):
        part = topology(Selection(source, [str(gpu) for gpu in gpus], split(kinds), format))
        rates = {name: planner.pack(part, name) for name in ("broadcast", "allgather", "allreduce")}
        rings = dict(rates["allreduce"]["others"])["rings"]
        rows.append({"gpus": gpus, "sets": sets, **{k: v["rate"] for k, v in rates.items()}, "rings": rings})
    if as_json:
        print_json(rows)
        return
    table = Table(title=f"{len(rows)} classes; algbw in GB/s", title_justify="left")
    for heading in ("GPUs", "sets", "broadcast", "allgather", "allreduce", "allreduce on rings"):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [_rate(row[key]) for key in ("broadcast", "allgather", "allreduce", "rings")]
        table.add_row(",".join(map(str, row["gpus"])), str(row["sets"]), *cells)
    console.print(table)


def _searched(
    graph: dict[str, Any], collective: str, root: int, method: str, pieces: int, seconds: float | None
) -> dict[str, Any]:
    """The report of `planner.pack`; on a terminal, a line shows how far a long search is."""
    if not errors.is_terminal:
        return planner.pack(graph, collective, root, method, pieces, seconds)
    with errors.status("searching") as status:

        def show(elapsed: float, reached: float) -> bool:
            status.update(f"searching for {elapsed:.0f} s: {_part(1 - reached)} % below the bound")
            return True

        return planner.pack(graph, collective, root, method, pieces, seconds, show)


def _print_report(report: dict[str, Any], collective: str) -> None:
    """Rate, bound, proof, trees and the comparison, as text."""
    sign, gap = ("=", "") if report["optimal"] else ("<", f", {_part(report['gap'])} % below it")
    lines = [
        f"{collective}: {_rate(report['rate'])} GB/s {sign} bound {_rate(report['bound'])} GB/s{gap}"
        f"  ({report['rate_units']} of {report['bound_units']} × {_rate(report['unit'])} GB/s)",
        f"proof: {report['proof']}",
    ]
    if report["limited"]:
        lines.append("the search ended at its limit, and there may be better trees: --seconds gives it more time")
    lines += [
        f"{report['trees']} trees, at most {report['height']} hops high",
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    names = report["plan"]["vertices"]
    table = Table()
    for heading in ("tree", "share", "root", "hops"):
        table.add_column(heading, overflow="fold")
    flows = report["plan"]["flows"]
    for index, flow in enumerate(flows[:SHOWN]):
        hops = " ".join("→".join(names[v] for v in way) for way in flow.get("down") or flow["up"])
        table.add_row(str(index), flow["share"], names[flow["root"]], hops)
    console.print(table)
    if len(flows) > SHOWN:
        console.print(f"and {len(flows) - SHOWN} more trees: --out writes all", highlight=False)
    for name, rate in report["others"]:
        text = (
            "no way on these links"
            if rate is None
            else f"{_rate(rate)} GB/s, the plan is {report['rate'] / rate:.3f} times as fast"
        )
        console.print(f"{name}: {text}", highlight=False, markup=False)


def _print_kinds(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    table = Table()
    for heading in ("links", "GB/s alone", "set-up µs", "bytes"):
        table.add_column(heading, justify="right")
    for part in found["parts"]:
        table.add_row(part["kind"], _rate(part["rate"]), f"{part['setup'] * 1e6:.1f}", f"{part['bytes']:.0f}")
    console.print(table)
    gain = found["alone_seconds"] / found["seconds"]
    console.print(
        f"all end after {found['seconds'] * 1e6:.1f} µs, {gain:.3f} times as fast as the best kind alone",
        highlight=False,
    )


def _setups(graph: dict[str, Any], given: list[str]) -> list[tuple[str, float]]:
    """Set-up times of the graph's kinds of links; 0 if not given."""
    setups = dict.fromkeys((link["kind"] for link in graph["link"]), 0.0)
    for text in given:
        kind, _, seconds = text.partition("=")
        if kind not in setups:
            raise PlanError(f"--setup {text}: no link here is of kind {kind!r}; there are {', '.join(setups)}")
        try:
            setups[kind] = float(seconds)
        except ValueError:
            raise PlanError(f"--setup {text}: write kind and seconds, as pcie=0.0001") from None
    return list(setups.items())


def _text(plan: Path) -> str:
    try:
        return plan.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{plan}: cannot be read: {getattr(error, 'strerror', error)}") from error


def _print_front(found: dict[str, Any], as_json: bool) -> None:
    """Rates beside heights, and which plan is the fastest at which size."""
    points, fastest = found["points"], found["fastest"]
    if as_json:
        print_json(points)
        return
    table = Table(title="none is worse in all three; only the first rate is proven best", title_justify="left")
    for heading in ("GB/s", "of the bound", "trees", "height", "fastest"):
        table.add_column(heading, justify="right")
    until = [span["from_bytes"] for span in fastest[1:]] + [None]
    spans = {span["point"]: (span["from_bytes"], end) for span, end in zip(fastest, until, strict=True)}
    for number, point in enumerate(points):
        share = f"{100 * point['rate'] / point['bound']:.1f} %"
        sizes = ""
        if number in spans:
            low, high = spans[number]
            sizes = f"from {_size(low)}" if high is None else f"{_size(low)} to {_size(high)}"
        table.add_row(_rate(point["rate"]), share, str(point["trees"]), str(point["height"]), sizes)
    console.print(table)
    for span in fastest:
        if span["point"] != 0:
            gain = span["of_first"] / span["seconds"]
            console.print(
                f"at {_size(span['from_bytes'])} the plan of height {points[span['point']]['height']} takes "
                f"{1e6 * span['seconds']:.4g} µs, the one with the best rate {gain:.3g} times as long",
                highlight=False,
                soft_wrap=True,
            )


def _size(size: int) -> str:
    """A power of two as 64 KiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def _write(out: Path, plan: dict[str, Any], graph: dict[str, Any]) -> None:
    forms = {".mscclpp.json": "mscclpp", ".json": None, ".xml": "msccl", ".svg": "svg", ".png": "svg"}
    suffix = next((suffix for suffix in forms if out.name.endswith(suffix)), None)
    if suffix is None:
        raise PlanError(f"{out}: plans are written as .json, .mscclpp.json, .xml (MSCCL), .svg or .png")
    form = forms[suffix]
    text, note = planner.exported(plan, graph, form) if form else (json.dumps(plan, indent=1), "")
    try:
        out.write_bytes(png(text) if suffix == ".png" else text.encode())
    except PictureError as error:
        raise PlanError(f"{out}: {error}") from None
    except OSError as error:
        raise PlanError(f"{out}: cannot be written: {error.strerror}") from error
    if note:
        errors.print(note, highlight=False, soft_wrap=True)


def _part(gap: float) -> str:
    """A part as a percentage with two digits that say something: 2.3, 0.0041, 2e-10."""
    return f"{100 * gap:.2g}"


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")


def bytes_of(text: str) -> float:
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9, "B": 1}
    unit = next((unit for unit in units if text.endswith(unit)), "")
    try:
        return float(text.removesuffix(unit)) * units[unit]
    except (KeyError, ValueError):
        raise PlanError(f"{text!r} is not a size; write it like 64MiB") from None


def split(text: str) -> list[str]:
    """The comma-separated items of a text."""
    return [word.strip() for word in text.split(",") if word.strip()]
