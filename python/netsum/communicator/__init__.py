"""Collectives on arrays of any framework that supports NumPy's interface, DLPack or the buffer protocol.

    from netsum.communicator import connect

    with connect() as world:            # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; or NETSUM_MEETING=host:port
        world.allreduce(gradients)      # a NumPy array, a torch tensor, an array.array …, in place

Start reading at `Communicator`; `memory` defines the accepted arrays, `connecting` how ranks find each other.
"""

from netsum.communicator.communicator import OPERATIONS, Communicator
from netsum.communicator.connecting import Place, connect
from netsum.communicator.memory import Memory, memory
from netsum.communicator.pending import Pending

__all__ = ["OPERATIONS", "Communicator", "Memory", "Pending", "Place", "connect", "memory"]
