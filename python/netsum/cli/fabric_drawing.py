"""`netsum fabric discover|probe|import-slurm`: fabric files from what is there, and from Slurm's files."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from netsum.cli.output import console, print_json
from netsum.discovery import collect, compare, paths, probe, survey
from netsum.discovery.facts import Trace
from netsum.discovery.survey import Finding
from netsum.fabric.description import Description
from netsum.fabric.drawing import MEMORY, Drawing
from netsum.fabric.errors import FabricError
from netsum.fabric.slurm import import_slurm

Out = Annotated[Path, typer.Option("--out", help="the fabric file")]
Name = Annotated[str, typer.Option(help="of the fabric")]
Controller = Annotated[str, typer.Option(metavar="HOST:PORT", help="of the controller; several with commas")]


def register(app: typer.Typer) -> None:
    """Add the commands to `netsum fabric`."""
    app.command("discover")(discover)
    app.command("probe")(look)
    app.command("import-slurm")(from_slurm)


def discover(
    machines: Annotated[list[str], typer.Argument(help="machines to begin with; LLDP leads to the others")],
    controller: Controller,
    out: Out = Path("fabric.toml"),
    name: Name = "fabric",
    via: Annotated[str, typer.Option(help="runs a command on machine {}")] = collect.Way.via,
    agent: Annotated[str, typer.Option(help="what looks at a machine; {} is its name")] = collect.Way.agent,
    switch: Annotated[list[str] | None, typer.Option(help="names of switches, as rack*; else: who forwards")] = None,
    host: Annotated[list[str] | None, typer.Option(help="names of hosts, whatever else speaks for a switch")] = None,
    update: Annotated[bool, typer.Option("--update", help="write the file anew if it differs")] = False,
    probes: Annotated[bool, typer.Option(help="send probes between hosts: paths, ECN")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Make the fabric file from what is there, or name faults.

    If the file exists, it is compared with what is there. Each machine needs this package and lldpd. Exit code 1 if
    there are findings.
    """
    way = collect.Way(via, agent)
    known, silent = collect.machines(way, machines)
    found = survey.survey(known, switch or (), host or ())
    findings = [*found.findings, *(Finding("machine", text) for text in silent)]
    drawing = found.drawing(name, controller)
    is_new = not out.exists()
    if not is_new:
        description = Description.read(out)
        drawing = found.drawing(description.name, description.controller)
        differences = compare.compare(description, found, drawing)
        findings += differences
    if probes:
        before = len(found.findings)
        survey.look_at_paths(found, collect.traces(way, found))
        findings += found.findings[before:]
    written = is_new or (update and bool(differences))
    if written:
        out.write_text(drawing.toml("Made by `netsum fabric discover`."), encoding="utf-8")
    _report(drawing, findings, out, written, as_json)
    if findings:
        raise typer.Exit(1)


def _report(drawing: Drawing, findings: list[Finding], out: Path, written: bool, as_json: bool) -> None:
    kinds = [node.kind for node in drawing.nodes]
    counts = {"hosts": kinds.count("host"), "switches": kinds.count("switch"), "links": len(drawing.links)}
    if as_json:
        print_json({"file": str(out), "written": written, **counts, "findings": [asdict(each) for each in findings]})
        return
    parts = ", ".join(f"{count} {what}" for what, count in counts.items())
    state = "written" if written else "unchanged"
    console.print(f"{out}: {parts}; {state}", highlight=False, markup=False, soft_wrap=True)
    for each in findings:
        console.print(f"  {each.kind}: {each.text}", highlight=False, markup=False, soft_wrap=True)


def look(
    name: Annotated[str | None, typer.Option(help="of this machine, in place of its host name")] = None,
    lldp_socket: Annotated[str | None, typer.Option(help="of lldpd, if not the usual one")] = None,
    trace: Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help="send probes there instead")] = None,
    source: Annotated[str | None, typer.Option(metavar="ADDRESS", help="of the probes")] = None,
    flows: Annotated[int, typer.Option(min=1, max=64, help="flows of probes to each address")] = 1,
) -> None:
    """Print as JSON what this machine sees of the network.

    Its interfaces and its neighbours by LLDP, or the way of probes.
    """
    if trace:
        traces: list[Trace] = [paths.trace(each, source, flow) for each in trace for flow in range(flows)]
        print_json({"traces": [asdict(each) for each in traces]})
    else:
        print_json(asdict(probe.look(name, lldp_socket)))


def from_slurm(
    controller: Controller,
    topology: Annotated[Path, typer.Option(help="Slurm's topology.conf")] = Path("/etc/slurm/topology.conf"),
    configuration: Annotated[Path, typer.Option(help="slurm.conf")] = Path("/etc/slurm/slurm.conf"),
    address: Annotated[list[str] | None, typer.Option(metavar="NAME=IP", help="of a node or switch")] = None,
    rate: Annotated[str, typer.Option(help="of every link: Slurm knows no rates")] = "10Gbit/s",
    memory: Annotated[str, typer.Option(help="of every switch")] = MEMORY,
    out: Out = Path("fabric.toml"),
    name: Name = "fabric",
) -> None:
    """Make a fabric file from Slurm's nodes and switches. A name without an address is looked up by DNS."""
    pairs = [each.partition("=") for each in address or []]
    wrong = [key for key, equals, value in pairs if not (key and equals and value)]
    if wrong:
        raise FabricError(f"--address {wrong[0]}: use NAME=IP")
    addresses = {key: value for key, _, value in pairs}
    drawing = import_slurm(name, controller, configuration, topology, addresses, rate, memory)
    out.write_text(drawing.toml(f"Made by `netsum fabric import-slurm` from {topology}."), encoding="utf-8")
    _report(drawing, [], out, True, as_json=False)
