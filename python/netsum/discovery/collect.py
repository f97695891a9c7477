"""Asks all machines what they see, by ssh or whatever else runs a command there."""

import json
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from netsum.discovery.facts import Machine, Trace, machine_of, traces_of
from netsum.discovery.survey import Survey
from netsum.fabric.errors import FabricError

ANSWER_S = 120.0
AT_ONCE = 32
MACHINES_MAX = 4096
PEERS = 4
"""Other hosts to which a host sends probes: with 4 flows each they see most links of a fabric of common size."""
FLOWS = 4

T = TypeVar("T")


@dataclass(frozen=True)
class Way:
    """How to run `netsum fabric probe` on a machine: {} in `via` and `agent` is its name."""

    via: str = "ssh {}"
    agent: str = "netsum fabric probe"

    def command(self, machine: str, *words: str) -> list[str]:
        return [part.replace("{}", machine) for part in [*shlex.split(self.via), *shlex.split(self.agent), *words]]

    def ask(self, machine: str, *words: str) -> object:
        """The JSON that the machine prints. Raises FabricError, which names it."""
        command = self.command(machine, *words)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise FabricError(f"{machine}: {error}") from error
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise FabricError(f"{machine}: `{shlex.join(command)}` failed: {said[-1] if said else 'it said nothing'}")
        try:
            return json.loads(done.stdout)
        except ValueError as error:
            raise FabricError(f"{machine}: the answer is not JSON: {error}") from error


def machines(way: Way, first: Sequence[str]) -> tuple[dict[str, Machine], list[str]]:
    """The machines that were named, and those that LLDP leads to; and, as sentences, neighbours that did not answer.

    Raises FabricError if one that was named does not answer.
    """
    found: dict[str, Machine] = {}
    silent: list[str] = []
    tried: set[str] = set()
    waiting = list(dict.fromkeys(first))
    while waiting:
        if len(tried) + len(waiting) > MACHINES_MAX:
            raise FabricError(f"the cables lead to more than {MACHINES_MAX} machines; name those of the fabric")
        tried.update(waiting)
        answers = _at_once(lambda name: _look(way, name), waiting)
        for name, answer in zip(waiting, answers, strict=True):
            if isinstance(answer, Machine):
                found[answer.name] = answer
            elif name in first:
                raise answer
            else:
                silent.append(str(answer))
        heard = (port.neighbour.machine for each in found.values() for port in each.interfaces if port.neighbour)
        waiting = sorted(set(heard) - tried - found.keys())
    return found, silent


def traces(way: Way, found: Survey) -> dict[str, list[Trace]]:
    """What the probes of each host see on their way to some others."""
    hosts = sorted(name for name in found.machines if name not in found.switches)
    targets = {
        host: [hosts[(place + step) % len(hosts)] for step in _steps(len(hosts))] for place, host in enumerate(hosts)
    }

    def ask(host: str) -> list[Trace]:
        words = ["--source", found.address(host), "--flows", str(FLOWS)]
        words += [word for target in targets[host] for word in ("--trace", found.address(target))]
        return traces_of(way.ask(host, *words), host)

    asked = [host for host in hosts if targets[host]]
    answers: Mapping[str, list[Trace] | FabricError] = dict(
        zip(asked, _at_once(lambda host: _caught(ask, host), asked), strict=True)
    )
    for answer in answers.values():
        if isinstance(answer, FabricError):
            raise answer
    return {host: answer for host, answer in answers.items() if not isinstance(answer, FabricError)}


def _steps(count: int) -> list[int]:
    """Distances around the ring of hosts at which a host's targets are: all if there are few, else spread."""
    if count - 1 <= PEERS:
        return list(range(1, count))
    return sorted({1 + (count - 2) * step // (PEERS - 1) for step in range(PEERS)})


def _look(way: Way, name: str) -> Machine | FabricError:
    return _caught(lambda each: machine_of(way.ask(each), each), name)


def _caught(function: Callable[[str], T], name: str) -> T | FabricError:
    try:
        return function(name)
    except FabricError as error:
        return error


def _at_once(function: Callable[[str], T], names: Iterable[str]) -> list[T]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(function, names))
