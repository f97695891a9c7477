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
from netsum.doctor.machine import machine_checks
from netsum.doctor.selftest import selftest
from netsum.fabric.builtin import demo_description
from netsum.fabric.description import Description
from netsum.fabric.errors import FabricError
from netsum.fabric.local import LocalFabric, temporary

_COLOURS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}


def doctor(
    fabric: Annotated[Path | None, typer.Option(help="fabric file; without it, a local one is tried")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Check this machine and a fabric, and sum something through it. Exit code 1 if a check fails.

    A fabric of --fabric that is not running is started for the test and stopped afterwards.
    """
    stop_on_termination()
    description = Description.read(fabric) if fabric else demo_description()
    checks = machine_checks(description)
    given = os.environ.get("NETSUM_CONTROLLER")
    if fabric is None and given:
        checks += _through(given)
    else:
        checks += _fabric_checks(LocalFabric(description))
    if as_json:
        print_json({"checks": [check.as_dict() for check in checks]})
    else:
        console.print(_table(checks))
    if any(check.verdict is Verdict.FAIL for check in checks):
        raise typer.Exit(1)


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
    own = [credentials_valid(credentials)] if credentials else []
    checks, status = controller_and_switches(controller, credentials)
    return [*own, *checks, selftest(controller, credentials)] if status else [*own, *checks]


def _table(checks: list[Check]) -> Table:
    table = Table(show_lines=False)
    for heading in ("check", "", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        colour = _COLOURS[check.verdict]
        table.add_row(check.name, Text(check.verdict, style=colour), check.found, check.advice)
    return table
