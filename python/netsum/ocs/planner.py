"""Calls to the planner, with results as plain dictionaries."""

import json
from dataclasses import dataclass
from typing import Any

METHODS = ("closed", "dp", "shared")

_MOST = 65_536
"""Above the core's limit for each of N, D, M, E, and within the range of its arguments."""


class OcsError(Exception):
    """An impossible request, or an invalid plan; the message names the part and the reason."""


@dataclass(frozen=True)
class Ocs:
    """OCS(N, D, M, E): workers with their ports, devices with their ports.

    paired: the circuit switch connects both directions of two ports, or neither.
    """

    workers: int
    worker_ports: int
    devices: int
    device_ports: int
    paired: bool = False

    def __post_init__(self) -> None:
        for name, value in zip("NDME", self.numbers, strict=True):
            if not 0 <= value <= _MOST:
                raise OcsError(f"cannot build {self}: {name} must be from 0 to {_MOST}, not {value}")

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        return self.workers, self.worker_ports, self.devices, self.device_ports

    def __str__(self) -> str:
        return "OCS(N={}, D={}, M={}, E={})".format(*self.numbers)


def answer(ocs: Ocs, method: str = "closed") -> dict[str, Any]:
    """A checked plan: `method`, `compared` (rings, baseline, closed, bound), `report` (the replay), `plan`."""
    found: dict[str, Any] = json.loads(_ask("ocs_answer", ocs.numbers, ocs.paired, method))
    return found


def compare(ocs: Ocs) -> dict[str, Any]:
    """The achievable rates, without a plan: `rings`, `baseline`, `closed`, `bound` with its prices."""
    found: dict[str, Any] = json.loads(_ask("ocs_compare", ocs.numbers, ocs.paired))
    return found


def curve(ocs: Ocs, method: str = "closed") -> list[str]:
    """algbw for 0 to `ocs.devices` devices. Plans of "shared" are built and replayed for each."""
    found: list[str] = _ask("ocs_curve", ocs.numbers, ocs.paired, method)
    return found


def check(plan: str) -> dict[str, Any]:
    """Replay a plan in JSON, and return its report. OcsError says what is wrong and where."""
    found: dict[str, Any] = json.loads(_ask("ocs_check", plan))
    return found


def share(
    jobs: list[tuple[int, int]], pool: int, device_ports: int, *, paired: bool = False, method: str = "closed"
) -> list[dict[str, Any]]:
    """Share `pool` devices among jobs of (N, D), max-min fair in the gain over no devices: devices, algbw, gain of
    each."""
    if not 0 <= pool <= _MOST:
        raise OcsError(f"no pool has {pool} devices; name a number from 0 to {_MOST}")
    jobs = [Ocs(workers, ports, pool, device_ports, paired).numbers[:2] for workers, ports in jobs]
    found: list[dict[str, Any]] = json.loads(_ask("ocs_share", jobs, pool, device_ports, paired, method))
    return found


def _ask(function: str, *arguments: Any) -> Any:
    from netsum import _core

    try:
        return getattr(_core, function)(*arguments)
    except (ValueError, OverflowError) as error:
        raise OcsError(str(error)) from None
