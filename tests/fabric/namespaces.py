"""Network namespaces of this machine, that are there as long as something runs in them."""

from __future__ import annotations

import abc
import fcntl
import subprocess
from typing import Self

PREFIX = "netsum-"
LOCK = "/run/lock/netsum-fabric"


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Namespaces(abc.ABC):
    """A namespace per node and what joins them; a context manager."""

    @abc.abstractmethod
    def _build(self) -> None:
        """Makes namespaces, named with PREFIX, and links."""

    def __enter__(self) -> Self:
        # Names of namespaces are the machine's: another run waits for this one's end.
        self.lock = open(LOCK, "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.remove()
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
        self.lock.close()

    def remove(self) -> None:
        """Removes namespaces of this and of earlier runs; links go with them."""
        for line in run("ip", "netns", "list").splitlines():
            if line.startswith(PREFIX):
                name = line.split()[0]
                for pid in run("ip", "netns", "pids", name).split():
                    subprocess.run(["kill", "-9", pid], capture_output=True)
                run("ip", "netns", "del", name)

    def inside(self, node: str) -> list[str]:
        """The words that run a command in a node."""
        return ["ip", "netns", "exec", PREFIX + node]
