"""Output of the command: results to stdout, everything else to stderr."""

import json
import signal
import sys
from typing import Any

from rich.console import Console

# Names of jobs, hosts and files are printed as they are: no text is read as markup. Colours are `Text` or `style=`.
console = Console(markup=False)
errors = Console(stderr=True, markup=False)


def print_json(value: Any) -> None:
    """One JSON document on stdout, for scripts."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def stop_on_termination() -> None:
    """Let SIGTERM and a closed terminal end the command as Ctrl-C does, so that started processes are stopped.

    The KeyboardInterrupt then has the signal's number as its argument.
    """

    def interrupt(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(number)

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
