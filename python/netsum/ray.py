"""Ray: the groups of `ray.util.collective` on netsum.

    import netsum.ray
    from ray.util import collective

    netsum.ray.register()                    # in the driver and in every actor
    collective.init_collective_group(world_size, rank, backend="netsum", group_name="default")
    collective.allreduce(array)

Ray Train needs nothing of this module: `TorchConfig(backend="netsum")`. docs/recipes.md has both.
"""

import secrets
import time
from typing import Any

import ray
from ray.experimental import internal_kv
from ray.util import collective
from ray.util.collective import types
from ray.util.collective.collective_group.base_collective_group import BaseGroup

from netsum import NetsumError, OperationTimeout
from netsum.communicator import connect
from netsum.fabric.reservations import free_port

BACKEND = "NETSUM"
TIMEOUT_S = 300.0
"""Until all ranks of a group must have come, and of its operations."""
_LOOK_S = 0.05
_OPERATIONS = {
    types.ReduceOp.SUM: "sum",
    types.ReduceOp.PRODUCT: "product",
    types.ReduceOp.MIN: "min",
    types.ReduceOp.MAX: "max",
}


def register() -> None:
    """Make backend "netsum" known to `ray.util.collective` in this process; once more does nothing."""
    if not hasattr(types.Backend, BACKEND):
        collective.register_collective_backend(BACKEND, NetsumGroup)


class NetsumGroup(BaseGroup):  # type: ignore[misc, unused-ignore]
    """A group of actors or tasks: arrays in host memory that `netsum.communicator.memory` takes, such as NumPy's and
    torch's.

    Rank 0 leaves the address where ranks meet, and a secret of this group, in Ray's key-value store; who may read that
    store may run code in the cluster anyway. With NETSUM_CONTROLLER in the actors' environment, sums go through
    switches, in a job named after Ray's job and the group. Raises OperationTimeout if ranks do not come in `TIMEOUT_S`.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        key = f"netsum_collective_{group_name}".encode()
        if rank == 0:
            at, token = f"{ray.util.get_node_ip_address()}:{free_port()}", secrets.token_hex(16)
            internal_kv._internal_kv_put(key, f"{at} {token}".encode())
        else:
            at, token = _meeting(key, group_name)
        try:
            self.communicator = connect(
                rank, world_size, at, name=group_name, timeout_s=TIMEOUT_S, token=bytes.fromhex(token)
            )
        finally:
            # A later group of this name must not find the address of this one.
            if rank == 0:
                internal_kv._internal_kv_del(key)

    @classmethod
    def backend(cls) -> str:
        """The name under which groups ask for it."""
        return BACKEND

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Whether groups can be made: always, once this module has been imported."""
        return True

    def destroy_group(self) -> None:
        """Leave the group; the switches' memory is free once all ranks have."""
        self.communicator.close()

    def allreduce(self, tensor: list[Any], allreduce_options: Any) -> None:
        """Combine the array of all ranks in place."""
        self.communicator.allreduce(_one(tensor), _OPERATIONS[allreduce_options.reduceOp])

    def barrier(self, barrier_options: Any = None) -> None:
        """Return when all ranks have called it."""
        self.communicator.barrier()

    def reduce(self, tensor: list[Any], reduce_options: Any) -> None:
        """Combine the array of all ranks in place at the root."""
        self.communicator.reduce(_one(tensor), reduce_options.root_rank, _OPERATIONS[reduce_options.reduceOp])

    def broadcast(self, tensor: list[Any], broadcast_options: Any) -> None:
        """Fill every rank's array with the root's."""
        self.communicator.broadcast(_one(tensor), broadcast_options.root_rank)

    def allgather(self, tensor_list: list[list[Any]], tensor: list[Any], allgather_options: Any) -> None:
        """Gather the array of each rank in the list's array of that rank."""
        self.communicator.allgather(_one(tensor), _one(tensor_list))

    def reducescatter(
        self,
        tensor: list[Any],
        tensor_list: list[list[Any]],
        reducescatter_options: Any,
    ) -> None:
        """Combine array i of all ranks' lists in rank i's array."""
        self.communicator.reduce_scatter(_one(tensor_list), _one(tensor), _OPERATIONS[reducescatter_options.reduceOp])

    def send(self, tensor: list[Any], send_options: types.SendOptions) -> None:
        """Send the array to a rank."""
        self.communicator.send(_one(tensor), send_options.dst_rank)

    def recv(self, tensor: list[Any], recv_options: types.RecvOptions) -> None:
        """Fill the array with the next message of a rank, which must have exactly its size."""
        self.communicator.receive(_one(tensor), recv_options.src_rank)


def _meeting(key: bytes, group_name: str) -> tuple[str, str]:
    """(address, token) that rank 0 has left. Raises OperationTimeout."""
    deadline = time.monotonic() + TIMEOUT_S
    while (found := internal_kv._internal_kv_get(key)) is None:
        if time.monotonic() > deadline:
            raise OperationTimeout(f"netsum: rank 0 of the group {group_name!r} did not come in {TIMEOUT_S:.0f} s")
        time.sleep(_LOOK_S)
    at, token = found.decode().split()
    return at, token


def _one(tensors: list[Any]) -> Any:
    """Ray hands over a list with an array per device of the rank; host memory has one."""
    if len(tensors) != 1:
        raise NetsumError(f"netsum: {len(tensors)} arrays of one rank; groups of several devices per rank do not exist")
    return tensors[0]
