"""Terminal output of the demo: progress while it runs, and the table at the end."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from netsum.demo.session import Viewer
from netsum.demo.workloads import DIGITS, WORKLOADS, Workload


class Terminal(Viewer):
    """Draws a progress bar with the loss, and a line per epoch. Without a terminal, lines only."""

    def __init__(self, console: Console, workload: Workload = DIGITS) -> None:
        self._console = console
        self._workload = workload
        self._progress: Progress | None = None
        self._link_text = ""

    def phase(self, title: str) -> None:
        self.close()
        self._console.print(f"\n{title}", style="bold")
        self._link_text = ""
        self._progress = Progress(
            TextColumn("  {task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="cyan", markup=False),
            console=self._console,
            transient=True,
        )
        self._progress.add_task("starting workers", total=None, note="")
        if self._console.is_terminal:
            self._progress.start()

    def _update(self, **fields: Any) -> None:
        """Change the one task of the phase's progress bar."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], **fields)

    def event(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "start":
            self._update(total=event["steps"], description="training")
        elif kind == "step":
            note = f"loss {event['loss']:.3f} {self._link_text}"
            self._update(completed=event["step"] + 1, note=note)
        elif kind == "epoch":
            self._console.print(
                f"  epoch {event['epoch'] + 1:3d}   loss {event['loss']:.4f}   "
                f"{self._workload.score_name} {self._workload.words(event['score'])}   "
                f"{event['samples_per_s']:7.0f} {self._workload.samples}/s   {self._link_text}",
                highlight=False,
                soft_wrap=True,
            )

    def links(self, link_bytes: dict[str, int]) -> None:
        spines = sum(count for name, count in link_bytes.items() if "spine" in name)
        self._link_text = f"rack uplinks {megabytes(spines)}"

    def on_fault(self, text: str) -> None:
        self._console.print(f"  {text}", style="bold red")

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def megabytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB"


def tables(result: dict[str, Any]) -> list[Table]:
    """The final tables: netsum compared with Gloo, the ways of collectives, bytes per link, pauses if any."""
    pauses = [_pauses(result)] if result["pauses"] else []
    return [_against_gloo(result), _collectives(result), _links(result), *pauses]


def _against_gloo(result: dict[str, Any]) -> Table:
    table = Table(title="the same training, two ways", title_justify="left")
    for heading in ("", "netsum", "gloo"):
        table.add_column(heading, justify="left" if not heading else "right")
    workload = WORKLOADS[result["workload"]]
    score, step, samples = result[workload.score], result["step_time_s"], result[f"{workload.samples}_per_s"]
    table.add_row(workload.score_name, workload.words(score["netsum"]), workload.words(score["gloo"]))
    table.add_row("step time, median", f"{step['netsum'] * 1e3:.1f} ms", f"{step['gloo'] * 1e3:.1f} ms")
    table.add_row("throughput", *(f"{samples[side]:.0f} {workload.samples}/s" for side in ("netsum", "gloo")))
    uplink = result["uplink_bytes"]
    table.add_row(
        "bytes on rack uplinks",
        megabytes(uplink["netsum"]),
        f"{megabytes(uplink['ring'])} (a ring's)",
    )
    table.add_row("bytes past the switches", megabytes(result["host_path_bytes"]), "")
    table.add_row("ranks identical to the bit", "yes" if result["bit_identical"] else "NO", "")
    sums = result["control_sums"]
    table.add_row("control sums, exact", f"{sums['checked']}, {sums['wrong_elements']} elements wrong", "")
    if result["equals_run_without_kills"] is not None:
        table.add_row("equal to run without kills", "yes" if result["equals_run_without_kills"] else "NO", "")
    return table


def collectives(result: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """By kind and way: the name, the number among the last operations of a rank, the mean size, the way."""
    found: dict[tuple[str, str], list[int]] = {}
    for each in result["collectives"]:
        calls, size = found.setdefault((each["operation"], each["by"]), [0, 0])
        found[each["operation"], each["by"]] = [calls + each["calls"], size + each["calls"] * each["bytes"]]
    return [(name, str(calls), f"{size / calls / 1e3:.1f} kB", by) for (name, by), (calls, size) in found.items()]


def _collectives(result: dict[str, Any]) -> Table:
    table = Table(title="collectives of the last steps", title_justify="left")
    for heading in ("operation", "calls", "mean size", "by"):
        table.add_column(heading, justify="right" if heading in ("calls", "mean size") else "left")
    for row in collectives(result):
        table.add_row(*row)
    return table


def _links(result: dict[str, Any]) -> Table:
    table = Table(title="bytes per link, both directions", title_justify="left")
    for heading in ("link", "netsum, counted", "ring, computed", "ratio"):
        table.add_column(heading, justify="left" if heading == "link" else "right")
    for name, count in result["link_bytes"].items():
        ratio = f"{count['netsum'] / count['ring']:.2f}" if count["ring"] else "-"
        table.add_row(name, megabytes(count["netsum"]), megabytes(count["ring"]), ratio)
    table.caption = (
        f"and {megabytes(result['host_path_bytes'])} between hosts, which no switch counts: what hosts do according to "
        "the table above, and sums while trees were away. Before the first step it was "
        f"{megabytes(result['host_path_bytes_before'])}: ranks measure both ways when they connect"
    )
    return table


def _pauses(result: dict[str, Any]) -> Table:
    table = Table(title="what was killed", title_justify="left")
    table.add_column("what")
    table.add_column("longest step after it, beyond the usual", justify="right")
    for pause in result["pauses"]:
        table.add_row(pause["what"], f"{pause['seconds']:.2f} s")
    sums = result["control_sums"]
    table.caption = (
        "nothing was lost or counted twice: all control sums are exact, and the parameters are those of the run "
        "without kills, to the bit"
        if not sums["wrong_elements"] and result["equals_run_without_kills"]
        else "SOMETHING WAS LOST OR COUNTED TWICE: see the rows above"
    )
    return table
