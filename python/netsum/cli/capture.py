"""`netsum capture`."""

from pathlib import Path
from typing import Annotated

import typer

from netsum.cli.output import console, errors, print_json, stop_on_termination
from netsum.fabric.description import Description
from netsum.fabric.errors import FabricError
from netsum.tools.capturing import Capture, Captured, packet_filter

_ALL = ["7701", "7801"]
"""The usual ports of switches and servers."""


def capture(
    output: Annotated[Path, typer.Argument(help="pcapng file", metavar="FILE.pcapng")],
    fabric: Annotated[Path | None, typer.Option(help="fabric file; without it, ports 7701 and 7801")] = None,
    at: Annotated[list[str] | None, typer.Option(help="switch or server of the fabric; may be repeated")] = None,
    job: Annotated[list[int] | None, typer.Option(min=0, max=2**32 - 1, help="number; may be repeated")] = None,
    seconds: Annotated[int | None, typer.Option(min=1, help="end after this time; by default Ctrl-C ends it")] = None,
    keep: Annotated[int | None, typer.Option("--bytes", min=128, help="keep so much of a packet or train")] = None,
    interface: Annotated[str, typer.Option(help="network interface")] = "any",
    as_json: Annotated[bool, typer.Option("--json", help="what was captured as JSON")] = False,
) -> None:
    """Write packets of sums that pass here to a file for Wireshark.

    Run it where a switch, a server or a rank runs. `netsum tools wireshark` installs what explains the packets. It
    needs dumpcap, and the right to capture, as Wireshark does.
    """
    chosen = packet_filter(_addresses(fabric, at or []), job or [])
    limits = ["-a", f"duration:{seconds}"] if seconds else []
    limits += ["-s", str(keep)] if keep else []
    stop_on_termination()
    running = Capture(output, chosen, interface, limits)
    errors.print(f"capturing into {output}" + ("" if seconds else "; Ctrl-C ends it"), soft_wrap=True)
    try:
        captured = running.wait()
    except KeyboardInterrupt:
        captured = running.stop()
    _report(captured, as_json)


def _addresses(fabric: Path | None, names: list[str]) -> list[str]:
    """The data addresses of the parts that were asked for. Raises FabricError for a name that is not in the file."""
    if fabric is None:
        if names:
            raise FabricError(f"--at {names[0]} needs --fabric, which has its address")
        return _ALL
    known = {part.name: part.address for part in Description.read(fabric).aggregators}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise FabricError(f"{fabric} has no switch or server '{unknown[0]}'; it has {', '.join(known)}")
    return [known[name] for name in names or known]


def _report(captured: Captured, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(captured.file), "packets": captured.packets, "lost": captured.lost})
        return
    lost = f", {captured.lost} were lost: this machine cannot write so fast; try --bytes 128" if captured.lost else ""
    console.print(f"{captured.packets} packets and trains in {captured.file}{lost}", soft_wrap=True)
