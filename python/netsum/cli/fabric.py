"""`netsum fabric up|status|down`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from netsum.cli.output import console, print_json, stop_on_termination
from netsum.fabric.description import Description, parts
from netsum.fabric.local import CONTROLLER_NAME, LocalFabric, alive_switches

app = typer.Typer(help="Start, look at and stop a fabric on this machine.", no_args_is_help=True, rich_markup_mode=None)
File = Annotated[Path, typer.Argument(metavar="FABRIC.toml", help="the fabric file")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.command()
def up(file: File, as_json: Json = False) -> None:
    """Start the daemons of a fabric file on this machine.

    Ends once the controller, the switches and the servers serve.
    """
    stop_on_termination()
    fabric = LocalFabric(Description.read(file))
    fabric.up()
    if as_json:
        print_json(_report(fabric))
        return
    description = fabric.description
    console.print(f"fabric '{description.name}' is up: {parts(description)}", highlight=False)
    if description.trusted:
        console.print(
            "  trusted = true: no certificates, no encryption, no tags on packets; whoever reaches its network can "
            "start jobs, read gradients and change sums",
            highlight=False,
            soft_wrap=True,
        )
    for variable, value in fabric.environment().items():
        console.print(f"  export {variable}={value}", highlight=False, soft_wrap=True)
    console.print(f"  logs: {fabric.folder}", highlight=False, soft_wrap=True)


@app.command()
def status(file: File, as_json: Json = False) -> None:
    """Show the daemons of a fabric file, and its jobs.

    With the controller's view, and each job's protocol with its reason. Exit code 1 if a part is missing.
    """
    fabric = LocalFabric(Description.read(file))
    report = _report(fabric)
    if as_json:
        print_json(report)
    else:
        console.print(f"fabric {report['fabric']}, controller {report['address']}", style="italic", highlight=False)
        console.print(_table(report))
        if "controller" in report and report["controller"]["jobs"]:
            console.print(_jobs(report["controller"]["jobs"]))
    if not all(part["process"] and part["alive"] for part in report["parts"]):
        raise typer.Exit(1)


@app.command()
def down(file: File) -> None:
    """Stop the processes that `up` started and list them. No running process is not an error."""
    fabric = LocalFabric(Description.read(file))
    stopped = fabric.down()
    console.print(
        f"stopped: {', '.join(stopped)}" if stopped else f"fabric '{fabric.description.name}' was not running"
    )


def _report(fabric: LocalFabric) -> dict[str, Any]:
    """`parts`: per process, its id and whether the controller counts it as alive. `controller`: its status, or the
    error."""
    parts = [{"name": name, "process": fabric.process(name).pid(), "alive": False} for name in fabric.names()]
    report: dict[str, Any] = {
        "fabric": fabric.description.name,
        "address": fabric.description.controller,
        "credentials": fabric.environment()["NETSUM_CREDENTIALS"],
        "parts": parts,
    }
    if fabric.process(CONTROLLER_NAME).pid() is None:
        return report
    seen = fabric.status()
    alive = alive_switches(seen) | {CONTROLLER_NAME}
    for part in parts:
        part["alive"] = part["name"] in alive
    report["controller"] = seen
    return report


def _table(report: dict[str, Any]) -> Table:
    table = Table()
    for heading in ("part", "process", "state"):
        table.add_column(heading)
    for part in report["parts"]:
        state = "alive" if part["alive"] else "not seen by the controller" if part["process"] else "not running"
        table.add_row(part["name"], str(part["process"] or "-"), state)
    return table


def _jobs(jobs: list[dict[str, Any]]) -> Table:
    """The protocol of each job, with the reason if the controller chose it or could not provide the one requested."""
    table = Table(title="jobs", title_justify="left")
    for heading in ("job", "state", "protocol", "trees", "why"):
        table.add_column(heading)
    for job in jobs:
        why = "; ".join(word for word in (job["choice"], job["reason"]) if word) or "as asked for"
        table.add_row(str(job["job"]), job["state"], job["protocol"] or "-", str(len(job["trees"])), why)
    return table
