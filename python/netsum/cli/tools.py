"""`netsum tools`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from netsum import private
from netsum.cli.output import console, errors
from netsum.fabric.description import Description
from netsum.fabric.local import LocalFabric
from netsum.tools import dissector
from netsum.tools.keys import job_keys

app = typer.Typer(help="Look at packets of sums with other programs.", no_args_is_help=True)


@app.command("wireshark")
def wireshark(
    folder: Annotated[Path | None, typer.Option(help="of plugins; by default this user's")] = None,
    as_text: Annotated[bool, typer.Option("--print", help="print the dissector in place of installing it")] = False,
) -> None:
    """Install the dissector for Wireshark and tshark, a file in Lua."""
    if as_text:
        sys.stdout.write(dissector.SCRIPT.read_text())
        return
    console.print(f"{dissector.install(folder)} is installed; Wireshark reads it when it starts", soft_wrap=True)


@app.command("keys")
def keys(
    fabric: Annotated[Path, typer.Argument(help="fabric file", metavar="FABRIC.toml")],
    output: Annotated[Path, typer.Option("--output", "-o", help="the file of keys, for you alone")],
    store: Annotated[
        Path | None, typer.Option(help="the controller's store; by default that of a local fabric")
    ] = None,
) -> None:
    """Write the keys of jobs, by which the dissector verifies tags.

    Whoever has the file can forge packets of these jobs: delete it when you are done.
    """
    description = Description.read(fabric)
    lines = job_keys(store or LocalFabric(description).store, description)
    private.write_text(output, "".join(f"{line}\n" for line in lines))
    errors.print(f"keys of {len(lines)} jobs; tshark -o netsum.keys:{output} reads them", soft_wrap=True)
