"""`netsum ca init|issue|renew|revoke|token|serve|join`."""

import re
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from netsum import _core
from netsum.cli.output import console, print_json, stop_on_termination
from netsum.fabric.description import Description

app = typer.Typer(
    help="Certificates of a fabric's control plane: docs/security.md.", no_args_is_help=True, rich_markup_mode=None
)
Authority = Annotated[Path, typer.Option("--ca", metavar="FOLDER", help="the authority's folder")]
Days = Annotated[int, typer.Option(min=1, max=3650, help="how long the certificates are valid")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
AUTHORITY = Path("ca")
PORT = 7709
TURN_S = 0.2
QUIET = 10
"""Turns without an attempt before `serve` ends."""
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
    roles: Annotated[list[str] | None, typer.Argument(metavar="ROLE", help="as operator, tenant/NAME, host/h0")] = None,
    fabric: Annotated[
        Path | None, typer.Option(help="fabric file: also its controller, switches, servers and hosts")
    ] = None,
    ca: Authority = AUTHORITY,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="gets a folder for each role")] = Path("credentials"),
    days: Days = DAYS,
    as_json: Json = False,
) -> None:
    """Issue certificates.

    OUT/ROLE is the folder for --credentials and NETSUM_CREDENTIALS. Roles: controller, operator, viewer, switch/NAME
    (also of servers), host/NAME, tenant/NAME.
    """
    wanted = [*(roles or []), *(daemon_roles(Description.read(fabric)) if fabric else [])]
    if not wanted:
        raise typer.BadParameter("name a role, or a fabric file by --fabric")
    folders = [out / role for role in wanted]
    owners = [_core.ca_issue(ca, role, out / role, days) for role in wanted]
    _report(list(zip(folders, owners, strict=True)), as_json)


@app.command()
def renew(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER", help="of credentials")],
    ca: Authority = AUTHORITY,
    days: Days = DAYS,
    as_json: Json = False,
) -> None:
    """Replace certificates and keys by new ones of the same identity. Running processes use them from then on."""
    _report([(folder, _core.ca_renew(ca, folder, days)) for folder in folders], as_json)


@app.command()
def revoke(
    roles: Annotated[list[str] | None, typer.Argument(metavar="ROLE", help="as tenant/NAME")] = None,
    ca: Authority = AUTHORITY,
    to: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="credentials that get the list, or a folder of such folders; repeatable"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Revoke all certificates of some roles.

    Without a role, the revocation list is signed anew. The list is effective where it is among a process's credentials:
    --to copies it there. With the controller's, the sessions of a revoked switch, host or tenant end, and the jobs of a
    revoked switch get new keys without it.
    """
    told = [folder for place in to or [] for folder in _credentials_in(place)]
    revoked = {role: _core.ca_revoke(ca, role)[0] for role in roles or []}
    _, list_file = _core.ca_revoke(ca)
    for folder in told:
        _copy_list(list_file, folder)
    if as_json:
        print_json({"revoked": revoked, "list": str(list_file), "told": [str(folder) for folder in told]})
        return
    for role, count in revoked.items():
        console.print(f"revoked {role}: {count} certificate{'s' if count != 1 else ''}", highlight=False)
    for folder in told:
        console.print(f"{folder} has the list", highlight=False, soft_wrap=True)
    if not told:
        console.print(f"now copy {list_file} to the credentials of the controller", highlight=False, soft_wrap=True)


@app.command()
def token(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="as host/h0")],
    at: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="where `netsum ca serve` will listen; default: this machine")
    ] = None,
    valid: Annotated[str, typer.Option(metavar="TIME", help="how long it can be used, as 90s, 30m, 1h, 2d")] = "1h",
    ca: Authority = AUTHORITY,
) -> None:
    """Make a token by which one new machine gets its certificate.

    Then run `netsum ca serve` here, and `netsum ca join TOKEN` there. Whoever has the token gets the certificate: carry
    it over a channel that you trust.
    """
    print(_core.ca_token(ca, role, at or f"{socket.getfqdn()}:{PORT}", _seconds(valid)))


@app.command()
def serve(
    listen: Annotated[str, typer.Option(metavar="ADDRESS:PORT", help="where machines reach it")] = f"0.0.0.0:{PORT}",
    ca: Authority = AUTHORITY,
    days: Days = DAYS,
) -> None:
    """Serve the authority to machines that join by a token.

    Ends when no token is left.
    """
    stop_on_termination()
    server = _core.Enrolment(ca, listen, days)
    try:
        if not server.open_tokens():
            raise _core.CredentialsError(f"the authority in {ca} has no token that can be used; see `netsum ca token`")
        console.print(f"serving {ca} at {server.address()}; Ctrl-C ends", highlight=False, soft_wrap=True)
        _report_attempts(server)
    finally:
        server.close()


@app.command()
def join(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="from `netsum ca token`; - reads it from stdin")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="gets certificate and key; must have none")],
    as_json: Json = False,
) -> None:
    """Get this machine's certificate by a token. The private key is made here, and stays here."""
    text = sys.stdin.readline() if token == "-" else token
    _report([(out, _core.ca_join(text, out))], as_json)


def _credentials_in(place: Path) -> list[Path]:
    """The folders of credentials in a folder. Raises CredentialsError if there are none."""
    found = sorted(file.parent for file in place.rglob("identity.pem"))
    if not found:
        raise _core.CredentialsError(f"{place} has no credentials (identity.pem); see `netsum ca issue`")
    return found


def _copy_list(list_file: Path, folder: Path) -> None:
    """Replace the revocation list of a folder at once: its process may read it at any moment."""
    new = folder / "ca.crl.new"
    try:
        shutil.copyfile(list_file, new)
        new.replace(folder / "ca.crl")
    except OSError as error:
        raise _core.CredentialsError(f"{folder}: it cannot get the list: {error.strerror}") from error


def daemon_roles(description: Description) -> list[str]:
    """The roles of a fabric file: its controller, switches, servers and hosts."""
    aggregators = [f"switch/{part.name}" for part in description.aggregators]
    return ["controller", *aggregators, *(f"host/{host.name}" for host in description.hosts)]


def _report_attempts(server: _core.Enrolment) -> None:
    """Print who joins, until no token is left and nobody has come for a while: the last machine gets its answer."""
    quiet = 0
    while quiet < QUIET:
        attempt = server.next(TURN_S)
        if attempt is not None:
            machine, identity, reason = attempt
            text = f"{machine} is {identity}" if identity else f"refused {machine}: {reason}"
            console.print(text, highlight=False, soft_wrap=True)
        quiet = 0 if attempt is not None or server.open_tokens() else quiet + 1
    console.print("no token is left", highlight=False)


def _seconds(text: str) -> float:
    """A time as 90s, 30m, 1h or 2d."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if not found:
        raise typer.BadParameter(f"{text!r} is no time; write it as 90s, 30m, 1h or 2d")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


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
