"""Groups of the compiled core, whose ranks meet over another group."""

from __future__ import annotations

import array
import os

from netsum import _core
from netsum.communicator import Communicator

TIMEOUT_S = 120.0


def connected(meeting: Communicator, name: str, controller: str | None, options: dict[str, str]) -> _core.Group:
    """This rank's group; without a controller, one of the hosts."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host = os.environ["NETSUM_HOST"] if controller else None
    group = _core.Group(rank, size, name, controller, host, TIMEOUT_S, options)
    mine = group.address()
    lengths = array.array("q", bytes(8 * size))
    meeting.allgather(array.array("q", [len(mine)]), out=lengths)
    longest = max(lengths)
    everybody = bytearray(longest * size)
    meeting.allgather(bytearray(mine.ljust(longest, b"\0")), out=everybody)
    group.connect([bytes(everybody[r * longest : r * longest + lengths[r]]) for r in range(size)])
    return group
