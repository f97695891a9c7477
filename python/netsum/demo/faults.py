"""Kills switches during a training and restarts them."""

import time
from dataclasses import dataclass

from netsum.fabric.local import LocalFabric, alive_switches
from netsum.reports import ControllerStatus

DOWN_S = 2.0
"""How long a killed switch stays down."""


@dataclass
class Kill:
    """One kill. progress: share of the steps completed before it. at_unix_s: when it happened, None before."""

    switch: str
    progress: float
    at_unix_s: float | None = None
    restarted: bool = False


class FaultScript:
    """A sequence of kills: each waits until the controller counts the previous switch as alive again."""

    def __init__(self, fabric: LocalFabric, kills: list[Kill]) -> None:
        self._fabric = fabric
        self.kills = kills

    def advance(self, progress: float, status: ControllerStatus) -> tuple[float, str] | None:
        """Execute the kill or restart that is due; returns its time and a line describing it, or None. Never blocks."""
        for kill in self.kills:
            if kill.at_unix_s is None:
                return self._kill(kill) if progress >= kill.progress else None
            if not kill.restarted:
                return self._restart(kill) if time.time() >= kill.at_unix_s + DOWN_S else None
            if kill.switch not in alive_switches(status):
                return None
        return None

    def unfinished(self) -> list[Kill]:
        """Kills that did not happen because the training ended before."""
        return [kill for kill in self.kills if kill.at_unix_s is None]

    def _kill(self, kill: Kill) -> tuple[float, str]:
        # Before it: `kill` waits until the process is gone, and ranks may have another plan by then.
        kill.at_unix_s = time.time()
        self._fabric.daemon(kill.switch).kill()
        return kill.at_unix_s, f"{kill.switch} killed (SIGKILL)"

    def _restart(self, kill: Kill) -> tuple[float, str]:
        self._fabric.daemon(kill.switch).start(tied=True)
        kill.restarted = True
        return time.time(), f"{kill.switch} started again"


def demo_kills() -> list[Kill]:
    """One spine, which leaves the other tree, then one rack switch, which leaves no tree."""
    return [Kill("spine1", 0.2), Kill("rack0", 0.55)]
