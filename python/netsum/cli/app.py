"""The `netsum` command and its sub-commands."""

import sys
from collections.abc import Callable
from typing import Any

import typer
import typer.core
from rich.text import Text

from netsum._core import CredentialsError
from netsum.bench.cases import BenchError
from netsum.cli import (
    bench,
    ca,
    capture,
    dashboard,
    demo,
    doctor,
    explain,
    fabric,
    fabric_drawing,
    job,
    metrics,
    plan,
    plan_ocs,
    plan_proven,
    predict,
    recorder,
    report,
    run,
    sim,
    tools,
    top,
    version,
    why,
)
from netsum.cli.output import errors
from netsum.dashboard.errors import DashboardError
from netsum.demo.errors import DemoError
from netsum.diagnosis.asking import WhyError
from netsum.fabric.errors import FabricError
from netsum.metrics.errors import MetricsError
from netsum.ocs import OcsError
from netsum.plan import PlanError
from netsum.recorder import RecorderError
from netsum.report.files import ReportError
from netsum.sim.errors import SimError
from netsum.tools.errors import ToolError


class Interrupted(Exception):
    """Ctrl-C, or a signal that `stop_on_termination` takes for it."""


class _Root(typer.core.TyperGroup):
    """Typer makes an exit code of a KeyboardInterrupt, without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise Interrupted from interrupt


app = typer.Typer(
    cls=_Root,
    help="Gradient sums computed inside the network.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
app.command("demo")(demo.demo)
fabric_drawing.register(fabric.app)
app.add_typer(fabric.app, name="fabric")
app.add_typer(ca.app, name="ca")
app.add_typer(job.app, name="job")
app.add_typer(sim.app, name="sim")
app.command("predict")(predict.predict)
app.command("run", context_settings={"allow_interspersed_args": False})(run.run)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)
plan_ocs.register(plan.app)
plan_proven.register(plan.app)
app.add_typer(plan.app, name="plan")
app.command("explain")(explain.explain)
app.command("recorder")(recorder.recorder)
app.command("report")(report.report)
app.command("top")(top.top)
app.command("why")(why.why)
app.command("capture")(capture.capture)
app.command("dashboard")(dashboard.dashboard)
app.command("metrics")(metrics.metrics)
app.add_typer(tools.app, name="tools")
app.command("version")(version.version)


REPORTED = (
    BenchError,
    CredentialsError,
    DashboardError,
    DemoError,
    FabricError,
    MetricsError,
    OcsError,
    PlanError,
    RecorderError,
    ReportError,
    SimError,
    ToolError,
    WhyError,
)
"""Errors that are reported in one message."""


def main() -> None:
    """Entry point. Errors are reported as one message with exit code 1; Ctrl-C gives 130."""
    sys.exit(_guarded(app))


def _guarded(command: Callable[..., int | None]) -> int:
    try:
        return command(standalone_mode=False) or 0
    except REPORTED as error:
        errors.print(Text.assemble(("error:", "bold red"), f" {error}"), highlight=False, soft_wrap=True)
        return 1
    except typer.Exit as ended:
        return ended.exit_code
    except (Interrupted, typer.Abort, KeyboardInterrupt):
        errors.print("stopped; nothing is left running")
        return 130
    except Exception as error:
        # Usage errors: typer's own parser reports them with usage and exit code.
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            error.show()
            found: int = error.exit_code
            return found
        raise
