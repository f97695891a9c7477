"""Network namespaces of this machine, named after the process that created them and removed with it."""

from __future__ import annotations

import abc
import os
import re
import subprocess
from pathlib import Path
from typing import Self

GUARD_S = 300.0
"""Time limit of every wait in tests: a guard against hanging, far above what a busy machine needs."""
_NAME = re.compile(r"netsum-(\d+)-\S+")


def namespace(node: str) -> str:
    """The machine-wide name of this process's namespace for `node`."""
    return f"netsum-{os.getpid()}-{node}"


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Namespaces(abc.ABC):
    """A namespace per node and the links between them; a context manager."""

    @abc.abstractmethod
    def _build(self) -> None:
        """Create namespaces, named by `namespace`, and links."""

    def __enter__(self) -> Self:
        remove_stale()
        self.remove()
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove this process's namespaces and end the processes in them; links are removed with them."""
        for name, maker in _existing():
            if maker == os.getpid():
                _remove(name)

    def inside(self, node: str) -> list[str]:
        """The command prefix that runs a command in a node."""
        return ["ip", "netns", "exec", namespace(node)]


def remove_stale() -> None:
    """Remove namespaces whose creators have ended, left behind by killed runs."""
    for name, maker in _existing():
        if not Path(f"/proc/{maker}").exists():
            _remove(name)


def _existing() -> list[tuple[str, int]]:
    """Namespaces of this and of other runs, each with the process that created it."""
    names = [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line]
    return [(name, int(match[1])) for name in names if (match := _NAME.fullmatch(name))]


def _remove(name: str) -> None:
    # Two runs may both find the same stale namespace: the second removal fails, which is harmless.
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
    for pid in pids:
        subprocess.run(["kill", "-9", pid], capture_output=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
