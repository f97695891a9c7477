"""One rank: timed allreduces by NCCL's plug-in, called as NCCL's proxy thread calls it, and by netsum's own group.

Arguments: a JSON object {"plugin": path, "sizes_mib": [...], "repeats": n}. The two take turns over the same links.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

from worker import expected, filled, timed

HANDLE_BYTES = 128
FLOAT, SUM, HOST_MEMORY = 7, 0, 1
POINTER, INT = ctypes.c_void_p, ctypes.c_int

FUNCTIONS = {
    "init": [POINTER],
    "devices": [POINTER],
    "getProperties": [INT, POINTER],
    "listen": [INT, POINTER, POINTER],
    "connect": [POINTER, INT, INT, POINTER, POINTER],
    "reduceSupport": [INT, INT, POINTER],
    "regMr": [POINTER, POINTER, ctypes.c_size_t, INT, POINTER],
    "regMrDmaBuf": [POINTER, POINTER, ctypes.c_size_t, INT, ctypes.c_uint64, INT, POINTER],
    "deregMr": [POINTER, POINTER],
    "iallreduce": [POINTER, POINTER, POINTER, INT, INT, INT, POINTER, POINTER, POINTER],
    "iallgather": [POINTER],
    "ireducescatter": [POINTER],
    "iflush": [POINTER, POINTER, INT, POINTER, POINTER],
    "test": [POINTER, POINTER, POINTER],
    "closeColl": [POINTER],
    "closeListen": [POINTER],
}
"""The members of `ncclCollNet_v8_t` after the name, with their parameters."""


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

    def allreduce(self, tensor: torch.Tensor) -> None:
        """In place, with the polls of a proxy thread; other threads of the machine need the processor, too."""
        address, request, done = POINTER(tensor.data_ptr()), POINTER(), INT(0)
        registration = POINTER()
        self._call("regMr", self._comm, address, tensor.numel() * 4, HOST_MEMORY, ctypes.byref(registration))
        arguments = (tensor.numel(), FLOAT, SUM, registration, registration, ctypes.byref(request))
        self._call("iallreduce", self._comm, address, address, *arguments)
        while not done.value:
            time.sleep(0.0005)
            self._call("test", request, ctypes.byref(done), None)
        self._call("deregMr", self._comm, registration)

    def close(self) -> None:
        self._call("closeColl", self._comm)


def timed_plugin(collnet: CollNet, mib: int) -> float:
    """Seconds of one allreduce on the slowest rank; checked."""
    rank, size, numel = dist.get_rank(), dist.get_world_size(), mib * (1 << 18)
    tensor = filled(rank, numel)
    dist.barrier()
    start = time.perf_counter()
    collnet.allreduce(tensor)
    elapsed = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    if not torch.equal(tensor, expected(size, numel)):
        raise SystemExit(f"rank {rank}: the plug-in's sum is wrong")
    dist.all_reduce(elapsed, dist.ReduceOp.MAX)
    return float(elapsed)


def main() -> None:
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("netsum", timeout=datetime.timedelta(seconds=120))
    collnet = CollNet(arguments["plugin"])
    result: dict = {"netsum": {}, "plugin": {}}
    timed(None, 1, True)
    timed_plugin(collnet, 1)
    for mib in arguments["sizes_mib"]:
        for _ in range(arguments["repeats"]):
            result["netsum"].setdefault(str(mib), []).append(timed(None, mib, True))
            result["plugin"].setdefault(str(mib), []).append(timed_plugin(collnet, mib))
    dist.barrier()
    collnet.close()
    pathlib.Path(os.environ["RESULT"]).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
