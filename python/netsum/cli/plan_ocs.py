"""`netsum plan ocs…`: topologies behind an optical circuit switch."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from netsum.cli.output import console, print_json
from netsum.ocs import METHODS, Ocs, OcsError, answer, check, compare, curve, draw, share
from netsum.pictures import PictureError, png

Workers = Annotated[int, typer.Argument(metavar="N", help="workers")]
WorkerPorts = Annotated[int, typer.Argument(metavar="D", help="ports of each worker")]
Devices = Annotated[int, typer.Argument(metavar="M", help="aggregation devices")]
DevicePorts = Annotated[int, typer.Argument(metavar="E", help="ports of each device")]
MethodName = Annotated[str, typer.Option("--method", metavar="|".join(METHODS), help="how the topology is found")]
Paired = Annotated[bool, typer.Option("--paired", help="the switch joins both directions of two ports, or neither")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Svg = Annotated[
    Path | None, typer.Option("--svg", metavar="FILE", help="write a picture of the topology, .svg or .png")
]
PlanFile = Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="write the plan")]


def register(app: typer.Typer) -> None:
    """Add the commands to `netsum plan`."""
    app.command("ocs")(ocs)
    app.command("ocs-table")(table)
    app.command("ocs-check")(check_file)
    app.command("ocs-share")(share_pool)


def ocs(
    workers: Workers,
    worker_ports: WorkerPorts,
    devices: Devices,
    device_ports: DevicePorts,
    method: MethodName = "closed",
    paired: Paired = False,
    as_json: Json = False,
    svg: Svg = None,
    plan: PlanFile = None,
) -> None:
    """Plan a topology behind an optical circuit switch.

    Circuits, trees and shares for OCS(N, D, M, E), with the rate reached and the upper bound. closed: the best
    composition of trees and rings, computed directly; dp: the same by dynamic programming; shared: faster, a device may
    serve several trees.
    """
    network = Ocs(workers, worker_ports, devices, device_ports, paired)
    found = answer(network, method)
    if svg is not None:
        _write(svg, draw(found["plan"]))
    if plan is not None:
        _write(plan, json.dumps(found["plan"]) + "\n")
    if as_json:
        print_json(found)
        return
    _describe(network, found)


def table(
    workers: Workers,
    worker_ports: WorkerPorts,
    devices: Devices,
    device_ports: DevicePorts,
    paired: Paired = False,
    as_json: Json = False,
) -> None:
    """Print algbw over the number of devices, 0 to M.

    By the baseline, the published method and netsum's, and the bound.
    """
    network = Ocs(workers, worker_ports, devices, device_ports, paired)
    closed, shared = curve(network, "closed"), curve(network, "shared")
    rows = []
    for count in range(devices + 1):
        known = compare(Ocs(workers, worker_ports, count, device_ports, paired))
        row = {"devices": count, "baseline": known["baseline"], "closed": closed[count], "shared": shared[count]}
        rows.append(row | {"bound": known["bound"]["algbw"], "rings": known["rings"]})
    if as_json:
        print_json({"network": str(network), "paired": paired, "rows": rows})
        return
    shown = Table(title=f"{network}: algbw, and over rings", title_justify="left")
    for heading in ("devices", "baseline", "closed", "shared", "bound"):
        shown.add_column(heading, justify="right")
    for row in rows:
        rates = [_over(row[name], row["rings"]) for name in ("baseline", "closed", "shared", "bound")]
        shown.add_row(str(row["devices"]), *rates)
    console.print(shown)


def check_file(
    file: Annotated[Path, typer.Argument(metavar="PLAN.json", help="a plan that `--plan` wrote")], as_json: Json = False
) -> None:
    """Replay a plan: ports, every contribution, every circuit's load. Exit code 1 if the plan is invalid."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OcsError(f"cannot read the plan {file}: {getattr(error, 'strerror', error)}") from None
    report = check(text)
    if as_json:
        print_json(report)
        return
    console.print(f"sound: algbw {_number(report['algbw'])}", highlight=False)
    console.print(f"  {_report(report)}", highlight=False)


def share_pool(
    jobs: Annotated[list[str], typer.Argument(metavar="N,D…", help="workers and their ports of each job, as 16,8")],
    pool: Annotated[int, typer.Option("--pool", metavar="M", help="devices there are")],
    device_ports: Annotated[int, typer.Option("--device-ports", metavar="E", help="ports of each device")],
    method: MethodName = "closed",
    paired: Paired = False,
    as_json: Json = False,
) -> None:
    """Divide the devices of one pool among jobs.

    Max-min fair in the gain of each job.
    """
    grants = share([_job(text) for text in jobs], pool, device_ports, paired=paired, method=method)
    if as_json:
        print_json([{"job": job, **grant} for job, grant in zip(jobs, grants, strict=True)])
        return
    shown = Table(title=f"{pool} devices with {device_ports} ports", title_justify="left")
    for heading in ("job N,D", "devices", "algbw", "gain over none"):
        shown.add_column(heading, justify="right")
    for job, grant in zip(jobs, grants, strict=True):
        shown.add_row(job, str(grant["devices"]), _number(grant["algbw"]), f"{float(Fraction(grant['gain'])):.3f}×")
    console.print(shown)
    console.print(f"{pool - sum(grant['devices'] for grant in grants)} devices are left over", highlight=False)


def _describe(network: Ocs, found: dict[str, Any]) -> None:
    compared, report = found["compared"], found["report"]
    bound = compared["bound"]
    share_of_bound = Fraction(report["algbw"]) / Fraction(bound["algbw"])
    reached = "the most possible" if share_of_bound == 1 else f"{float(share_of_bound):.1%} of the bound"
    console.print(f"{network}, method {found['method']}: algbw {_number(report['algbw'])}, {reached}", highlight=False)
    shown = Table()
    for heading in ("way", "algbw", "over rings"):
        shown.add_column(heading, justify="left" if heading == "way" else "right")
    rows = (
        ("rings only", compared["rings"]),
        ("full trees, or rings", compared["baseline"]),
        ("whole devices, as in the slides", compared["closed"]),
        ("this plan", report["algbw"]),
        ("bound", bound["algbw"]),
    )
    for name, rate in rows:
        shown.add_row(name, _number(rate), f"{float(Fraction(rate) / Fraction(compared['rings'])):.3f}")
    console.print(shown)
    console.print(
        f"proof: at {bound['worker_price']} per worker port and {bound['device_price']} per device port no tree costs"
        f" less than 1, and all ports together cost {bound['algbw']}",
        highlight=False,
        soft_wrap=True,
    )
    if bound["any_circuits"] != bound["algbw"]:
        console.print(
            f"with devices joined to some peers one way only, at most {_number(bound['any_circuits'])}", highlight=False
        )
    console.print(f"plan: {_lanes(found['plan'])}; {_report(report)}", highlight=False, soft_wrap=True)


def _lanes(plan: dict[str, Any]) -> str:
    trees = [lane for lane in plan["lanes"] if lane["kind"] == "tree"]
    light = [lane for lane in trees if Fraction(lane["share"]) < 1]
    rings = len(plan["lanes"]) - len(trees)
    parts = [(len(trees) - len(light), "tree"), (len(light), "light tree"), (rings, "ring")]
    named = [f"{count} {name}{'s' if count > 1 else ''}" for count, name in parts if count]
    return ", ".join(named) if named else "no lanes"


def _report(report: dict[str, Any]) -> str:
    low, high = report["worker_degrees"]
    ports = f"{low}" if low == high else f"{low} to {high}"
    return (
        f"{ports} ports of each worker and {report['devices_used']} devices in use, highest load {report['load_max']},"
        f" height {report['height']}"
    )


def _number(rate: str) -> str:
    value = Fraction(rate)
    return str(value) if value.denominator == 1 else f"{float(value):.4f} ({value})"


def _over(rate: str, rings: str) -> str:
    ratio = Fraction(rate) / Fraction(rings) if Fraction(rings) else Fraction(0)
    return f"{float(Fraction(rate)):.4f}  {float(ratio):.3f}"


def _job(text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdigit() for part in parts):
        raise OcsError(f"{text!r} is no job; write workers and ports of each as 16,8")
    return int(parts[0]), int(parts[1])


def _write(path: Path, text: str) -> None:
    try:
        path.write_bytes(png(text) if path.suffix == ".png" else text.encode())
    except PictureError as error:
        raise OcsError(f"{path}: {error}") from None
    except OSError as error:
        raise OcsError(f"cannot write {path}: {error.strerror}") from None
