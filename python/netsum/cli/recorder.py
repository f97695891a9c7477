"""`netsum recorder`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from netsum import private
from netsum.cli.output import console, errors, print_json
from netsum.recorder import judge, read
from netsum.recorder.timeline import timeline
from netsum.recorder.torch_format import PREFIX, write


def recorder(
    folder: Annotated[Path, typer.Argument(help="of NETSUM_RECORDER, with the files of all ranks")],
    as_json: Annotated[bool, typer.Option("--json", help="findings as JSON on standard output")] = False,
    timeline_file: Annotated[
        Path | None, typer.Option("--timeline", help="also write all operations as a timeline for Perfetto here")
    ] = None,
    torch_format: Annotated[Path | None, typer.Option("--torch", help="also write files for torchfrtrace here")] = None,
) -> None:
    """Say from the last operations of ranks who waited for whom.

    It names ranks that wait, ranks that are missing, and calls that diverged. Exit code 1 if a problem is found.
    """
    groups = read(folder)
    found = {name: judge(dumps) for name, dumps in groups.items()}
    if as_json:
        print_json({name: [asdict(finding) for finding in findings] for name, findings in found.items()})
    for name, findings in found.items() if not as_json else ():
        dumps = groups[name]
        size = next(iter(dumps.values())).size
        console.print(f"group {name}: {len(dumps)} of {size} ranks", highlight=False, markup=False)
        for finding in findings:
            console.print(f"  {finding.kind}: {finding.text}", highlight=False, markup=False, soft_wrap=True)
        for why in dict.fromkeys(dump.why for dump in dumps.values()):
            console.print(f"  written because: {why}", highlight=False, markup=False, soft_wrap=True)
    if torch_format:
        for name, dumps in groups.items():
            into = torch_format if len(groups) == 1 else torch_format / name.replace("/", "-")
            write(dumps, into)
            errors.print(f"torchfrtrace {into} --prefix {PREFIX}", highlight=False, markup=False, soft_wrap=True)
    if timeline_file:
        private.write_text(timeline_file, json.dumps(timeline(groups)))
        errors.print(
            f"{timeline_file}: open it in https://ui.perfetto.dev", highlight=False, markup=False, soft_wrap=True
        )
    if any(finding.kind != "well" for findings in found.values() for finding in findings):
        raise typer.Exit(1)
