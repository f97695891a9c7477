"""`netsum ca init|issue|renew|revoke`."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from netsum import _core
from netsum.cli.output import console, print_json
from netsum.fabric.description import Description

app = typer.Typer(
    help="Certificates of a fabric's control plane: docs/security.md.", no_args_is_help=True, rich_markup_mode=None
)
Authority = Annotated[Path, typer.Option("--ca", metavar="FOLDER", help="the authority's folder")]
Days = Annotated[int, typer.Option(min=1, max=3650, help="how long the certificates are valid")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
AUTHORITY = Path("ca")
DAYS = 365


@app.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="FABRIC.toml", help="the fabric file")], ca: Authority = AUTHORITY
) -> None:
    """Create the certificate authority of a fabric. An existing one of the same fabric stays as it is."""
    fabric = Description.read(file).name
    _core.ca_init(ca, fabric)
    console.print(f"{ca} is the authority of fabric '{fabric}'; keep it private", highlight=False, soft_wrap=True)


@app.command()
def issue(
    roles: Annotated[
        list[str] | None, typer.Argument(metavar="ROLE…", help="as operator, tenant/NAME, host/h0")
    ] = None,
    fabric: Annotated[
        Path | None, typer.Option(help="fabric file: also its controller, switches, servers and hosts")
    ] = None,
    ca: Authority = AUTHORITY,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="gets a folder for each role")] = Path("credentials"),
    days: Days = DAYS,
    as_json: Json = False,
) -> None:
    """Issue certificates: OUT/ROLE is the folder for --credentials and NETSUM_CREDENTIALS.

    Roles: controller, operator, viewer, switch/NAME (also of servers), host/NAME, tenant/NAME.
    """
    wanted = [*(roles or []), *(daemon_roles(Description.read(fabric)) if fabric else [])]
    if not wanted:
        raise typer.BadParameter("name a role, or a fabric file by --fabric")
    folders = [out / role for role in wanted]
    owners = [_core.ca_issue(ca, role, out / role, days) for role in wanted]
    _report(list(zip(folders, owners, strict=True)), as_json)


@app.command()
def renew(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER…", help="of credentials")],
    ca: Authority = AUTHORITY,
    days: Days = DAYS,
    as_json: Json = False,
) -> None:
    """Replace certificates and keys by new ones of the same identity. Running processes use them from then on."""
    _report([(folder, _core.ca_renew(ca, folder, days)) for folder in folders], as_json)


@app.command()
def revoke(
    roles: Annotated[list[str] | None, typer.Argument(metavar="ROLE…", help="as tenant/NAME")] = None,
    ca: Authority = AUTHORITY,
    as_json: Json = False,
) -> None:
    """Revoke all certificates of some roles; without a role, sign the revocation list anew.

    Copy the list to the credentials of the controller, and of other processes, to make it effective.
    """
    revoked = {role: _core.ca_revoke(ca, role)[0] for role in roles or []}
    _, list_file = _core.ca_revoke(ca)
    if as_json:
        print_json({"revoked": revoked, "list": str(list_file)})
        return
    for role, count in revoked.items():
        console.print(f"revoked {role}: {count} certificates", highlight=False)
    console.print(f"now copy {list_file} to the credentials of the controller", highlight=False, soft_wrap=True)


def daemon_roles(description: Description) -> list[str]:
    """The roles of a fabric file: its controller, switches, servers and hosts."""
    aggregators = [f"switch/{part.name}" for part in description.aggregators]
    return ["controller", *aggregators, *(f"host/{host.name}" for host in description.hosts)]


def _report(issued: list[tuple[Path, tuple[str, int]]], as_json: bool) -> None:
    if as_json:
        rows = [{"folder": str(folder), "identity": who, "expires": end} for folder, (who, end) in issued]
        print_json({"credentials": rows})
        return
    table = Table(title="credentials", title_justify="left")
    for heading in ("folder", "identity", "valid until"):
        table.add_column(heading, overflow="fold")
    for folder, (who, end) in issued:
        table.add_row(str(folder), who, time.strftime("%Y-%m-%d", time.gmtime(end)))
    console.print(table)
