"""`netsum doctor`."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from netsum.cli.output import console, print_json, stop_on_termination
from netsum.doctor.check import Check, Verdict, fail
from netsum.doctor.fabric import addresses_free, controller_and_switches, credentials_valid
from netsum.doctor.machine import Places, machine_checks
from netsum.doctor.selftest import selftest
from netsum.fabric.builtin import demo_description
from netsum.fabric.description import Description
from netsum.fabric.errors import FabricError
from netsum.fabric.local import LocalFabric, temporary
from netsum.reports import ControllerStatus

_COLOURS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}


def doctor(
    fabric: Annotated[Path | None, typer.Option(help="fabric file; without it, a local one is tried")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Check this machine and a fabric, and sum something through it. Exit code 1 if a check fails.

    A fabric of --fabric that is not running is started for the test and stopped afterwards.
    """
    stop_on_termination()
    given = os.environ.get("NETSUM_CONTROLLER")
    if fabric is None and given:
        checks = _running_checks(given)
    else:
        description = Description.read(fabric) if fabric else demo_description()
        checks = machine_checks(Places.described(description)) + _fabric_checks(LocalFabric(description))
    if as_json:
        print_json({"checks": [check.as_dict() for check in checks]})
    else:
        console.print(_table(checks))
    if any(check.verdict is Verdict.FAIL for check in checks):
        raise typer.Exit(1)


def _running_checks(controller: str) -> list[Check]:
    """Those of this machine in the fabric of a controller, and of that fabric."""
    seen, status = _seen(controller)
    machine = machine_checks(Places.reported(status) if status else None)
    summed = [selftest(controller, os.environ.get("NETSUM_CREDENTIALS"))] if status else []
    return [*machine, *seen, *summed]


def _fabric_checks(fabric: LocalFabric) -> list[Check]:
    if fabric.running():
        return _through(**_access(fabric))
    checks = addresses_free(fabric)
    if any(check.verdict is Verdict.FAIL for check in checks):
        return checks
    try:
        with temporary(fabric.description):
            return checks + _through(**_access(fabric))
    except FabricError as error:
        return [*checks, fail("fabric", str(error), "see the message; `netsum fabric up` says the same")]


def _access(fabric: LocalFabric) -> dict[str, str]:
    variables = fabric.environment()
    return {"controller": variables["NETSUM_CONTROLLER"], "credentials": variables["NETSUM_CREDENTIALS"]}


def _through(controller: str, credentials: str | None = None) -> list[Check]:
    credentials = credentials or os.environ.get("NETSUM_CREDENTIALS")
    checks, status = _seen(controller, credentials)
    return [*checks, selftest(controller, credentials)] if status else checks


def _seen(controller: str, credentials: str | None = None) -> tuple[list[Check], ControllerStatus | None]:
    """What the credentials are worth, and what the controller says, if it answers."""
    credentials = credentials or os.environ.get("NETSUM_CREDENTIALS")
    own = [credentials_valid(credentials)] if credentials else []
    checks, status = controller_and_switches(controller, credentials)
    return [*own, *checks], status


def _table(checks: list[Check]) -> Table:
    table = Table(show_lines=False)
    for heading in ("check", "", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        colour = _COLOURS[check.verdict]
        table.add_row(check.name, Text(check.verdict, style=colour), check.found, check.advice)
    return table
