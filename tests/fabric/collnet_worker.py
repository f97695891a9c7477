"""One rank: timed collectives by NCCL's plug-in, called as NCCL's proxy thread calls it, and by netsum's own group.

Arguments: a JSON object {"plugin": path, "sizes_mib": [...], "operations": [...], "repeats": n}. The two take turns
over the same links, each as often first. A size is that of the whole buffer.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from worker import expected, filled

HANDLE_BYTES = 128
FLOAT, SUM, HOST_MEMORY = 7, 0, 1
POINTER, INT, SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t

FUNCTIONS = {
    "init": [POINTER],
    "devices": [POINTER],
    "getProperties": [INT, POINTER],
    "listen": [INT, POINTER, POINTER],
    "connect": [POINTER, INT, INT, POINTER, POINTER],
    "reduceSupport": [INT, INT, POINTER],
    "regMr": [POINTER, POINTER, SIZE, INT, POINTER],
    "regMrDmaBuf": [POINTER, POINTER, SIZE, INT, ctypes.c_uint64, INT, POINTER],
    "deregMr": [POINTER, POINTER],
    "iallreduce": [POINTER, POINTER, POINTER, INT, INT, INT, POINTER, POINTER, POINTER],
    "iallgather": [POINTER, POINTER, INT, POINTER, SIZE, SIZE, SIZE, POINTER, POINTER],
    "ireducescatter": [POINTER, INT, POINTER, POINTER, SIZE, SIZE, SIZE, INT, INT, POINTER, POINTER],
    "iflush": [POINTER, POINTER, INT, POINTER, POINTER],
    "test": [POINTER, POINTER, POINTER],
    "closeColl": [POINTER],
    "closeListen": [POINTER],
}
"""The members of `ncclCollNet_v8_t` after the name, with their parameters."""


class Part(ctypes.Structure):
    """`ncclNetSGE_v8_t`: memory of all ranks."""

    _fields_ = [("mhandle", POINTER), ("address", POINTER), ("size", ctypes.c_uint32)]


class CollNet:
    """A communicator of the plug-in."""

    def __init__(self, plugin: str) -> None:
        library = ctypes.CDLL(plugin)
        table = (POINTER * (len(FUNCTIONS) + 1)).in_dll(library, "ncclCollNetPlugin_v8")
        self._functions = {
            name: ctypes.CFUNCTYPE(INT, *parameters)(table[index + 1])
            for index, (name, parameters) in enumerate(FUNCTIONS.items())
        }
        self._call("init", None)
        handle = ctypes.create_string_buffer(HANDLE_BYTES)
        listening = POINTER()
        self._call("listen", 0, handle, ctypes.byref(listening))
        told: list[bytes | None] = [None] * dist.get_world_size()
        dist.all_gather_object(told, handle.raw)
        handles = [ctypes.create_string_buffer(each, HANDLE_BYTES) for each in told if each is not None]
        addresses = (POINTER * len(handles))(*[ctypes.addressof(each) for each in handles])
        self._comm = POINTER()
        self._call("connect", addresses, len(handles), dist.get_rank(), listening, ctypes.byref(self._comm))
        self._call("closeListen", listening)

    def _call(self, name: str, *arguments: object) -> None:
        code = self._functions[name](*arguments)
        if code != 0:
            raise SystemExit(f"{name} returned {code}")

    def run(self, operation: str, tensors: Tensors) -> None:
        """With the polls of a proxy thread; other threads of the machine need the processor, too."""
        whole, part = tensors.whole, tensors.part
        request, done, registrations = POINTER(), INT(0), []
        for tensor in (whole, part):
            registration = POINTER()
            nbytes = tensor.numel() * 4
            self._call("regMr", self._comm, tensor.data_ptr(), nbytes, HOST_MEMORY, ctypes.byref(registration))
            registrations.append(registration)
        all_bytes, each_bytes = whole.numel() * 4, part.numel() * 4
        memory = ctypes.byref(Part(registrations[0], whole.data_ptr(), all_bytes))
        window = (each_bytes, 0, all_bytes)
        if operation == "allreduce":
            address, registration = whole.data_ptr(), registrations[0]
            values = (address, address, whole.numel(), FLOAT, SUM, registration, registration)
            self._call("iallreduce", self._comm, *values, ctypes.byref(request))
        elif operation == "reduce_scatter":
            values = (1, memory, part.data_ptr(), *window, FLOAT, SUM, registrations[1])
            self._call("ireducescatter", self._comm, *values, ctypes.byref(request))
        else:
            values = (part.data_ptr(), 1, memory, *window, registrations[1])
            self._call("iallgather", self._comm, *values, ctypes.byref(request))
        while not done.value:
            time.sleep(0.0005)
            self._call("test", request, ctypes.byref(done), None)
        for registration in registrations:
            self._call("deregMr", self._comm, registration)

    def close(self) -> None:
        self._call("closeColl", self._comm)


class Tensors:
    """What an operation reads and writes, and what must come out."""

    def __init__(self, mib: int) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        numel = mib * (1 << 18)
        each = numel // self.size
        self.mine = slice(self.rank * each, (self.rank + 1) * each)
        self.sums = expected(self.size, numel)
        self.whole, self.part = filled(self.rank, numel), torch.empty(each)

    def begin(self, operation: str) -> None:
        self.whole = filled(self.rank, self.whole.numel())
        self.part = self.sums[self.mine].clone() if operation == "allgather" else torch.empty(self.part.numel())

    def is_right(self, operation: str) -> bool:
        if operation == "reduce_scatter":
            return torch.equal(self.part, self.sums[self.mine])
        return torch.equal(self.whole, self.sums)


def by_group(operation: str, tensors: Tensors) -> None:
    """The same by netsum's own group."""
    if operation == "allreduce":
        dist.all_reduce(tensors.whole)
    elif operation == "reduce_scatter":
        dist.reduce_scatter_tensor(tensors.part, tensors.whole)
    else:
        dist.all_gather_into_tensor(tensors.whole, tensors.part)


def timed(run: Callable[[str, Tensors], None], operation: str, tensors: Tensors) -> float:
    """Seconds at the slowest rank; checked."""
    tensors.begin(operation)
    dist.barrier()
    start = time.perf_counter()
    run(operation, tensors)
    elapsed = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    if not tensors.is_right(operation):
        raise SystemExit(f"rank {tensors.rank}: the result of {operation} is wrong")
    dist.all_reduce(elapsed, dist.ReduceOp.MAX)
    return float(elapsed)


def main() -> None:
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("netsum", timeout=datetime.timedelta(seconds=120))
    collnet = CollNet(arguments["plugin"])
    ways = {"netsum": by_group, "plugin": collnet.run}
    times: dict[str, dict[str, dict[str, list[float]]]] = {}
    for operation in arguments["operations"]:
        for run in ways.values():
            timed(run, operation, Tensors(1))
        rows = times[operation] = {}
        for mib in arguments["sizes_mib"]:
            tensors, found = Tensors(mib), rows.setdefault(str(mib), {way: [] for way in ways})
            for number in range(arguments["repeats"]):
                for way in sorted(ways, reverse=number % 2 == 1):
                    found[way].append(timed(ways[way], operation, tensors))
    dist.barrier()
    collnet.close()
    pathlib.Path(os.environ["RESULT"]).write_text(json.dumps(times))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
