"""One rank of one library: `python -m netsum.bench.ranks LIBRARY`, or a rank started by a launcher.

A command is a line "OPERATION DTYPE REDUCTION BYTES WARMUP ITERATIONS CHECK"; rank 0 answers with a line "WRONG S…":
wrong elements of all ranks, and for each iteration the seconds of its slowest rank. Ranks end at the end of their
input.
"""

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from netsum.bench import values
from netsum.bench.cases import Case

if TYPE_CHECKING:
    from netsum._core import Work
    from netsum.communicator import Communicator

TIMEOUT_S = 120.0
ROOT = 0
_COMMAND_BYTES = 128


@dataclass(frozen=True)
class Command:
    """One measurement that all ranks of a library make together."""

    case: Case
    warmup: int
    iterations: int
    check: bool

    def line(self) -> str:
        case = self.case
        numbers = (case.nbytes, self.warmup, self.iterations, int(self.check))
        return " ".join([case.operation, case.dtype, case.reduction, *map(str, numbers)])

    @classmethod
    def parse(cls, line: str) -> "Command":
        operation, dtype, reduction, *numbers = line.split()
        size, warmup, iterations, check = map(int, numbers)
        return cls(Case(operation, dtype, reduction, size), warmup, iterations, bool(check))


class Buffers:
    """A rank's memory for one case: `source` and `target`, the same for operations in place."""

    def __init__(self, case: Case, rank: int, size: int) -> None:
        self.case, self.rank, self.size = case, rank, size
        part = case.part(size)
        operation, whole = case.operation, case.nbytes
        lengths = {
            "allgather": (part, whole),
            "gather": (part, whole),
            "scatter": (whole, part),
            "reduce_scatter": (whole, part),
            "alltoall": (whole, whole),
            "sendrecv": (whole, whole),
            "latency": (whole, whole),
            "bandwidth": (whole, whole),
        }
        self.in_place = operation not in lengths
        first, second = lengths.get(operation, (whole, whole))
        self.source = mmap.mmap(-1, max(first, 1))
        self.target = self.source if self.in_place else mmap.mmap(-1, max(second, 1))
        self.source_bytes, self.target_bytes = first, second

    def fill(self) -> None:
        self.target[: self.target_bytes] = bytes(self.target_bytes)
        self.source[: self.source_bytes] = values.of_rank(self.case, self.rank, self.size, self.source_bytes)

    def clear(self) -> None:
        """Zero the memory, so that sums do not grow from call to call."""
        if self.in_place:
            self.source[: self.source_bytes] = bytes(self.source_bytes)

    def wrong(self) -> int:
        """Number of wrong elements in this rank's result."""
        expected = self._expected()
        if expected is None:
            return 0
        found = memoryview(self.target)[: self.target_bytes]
        return values.wrong(found, memoryview(expected), self.case.width)

    def _expected(self) -> bytearray | None:
        case, rank, size = self.case, self.rank, self.size
        part, whole = case.part(size), case.nbytes
        mine = slice(rank * part, (rank + 1) * part)
        match case.operation:
            case "allreduce":
                return values.combined(case, size, whole)
            case "reduce":
                return values.combined(case, size, whole) if rank == ROOT else None
            case "broadcast":
                return values.of_rank(case, ROOT, size, whole)
            case "allgather" | "gather":
                if case.operation == "gather" and rank != ROOT:
                    return None
                return bytearray().join(values.of_rank(case, each, size, part) for each in range(size))
            case "scatter":
                return values.of_rank(case, ROOT, size, whole)[mine]
            case "reduce_scatter":
                return values.combined(case, size, whole)[mine]
            case "alltoall":
                return bytearray().join(values.of_rank(case, each, size, whole)[mine] for each in range(size))
            case "sendrecv":
                return values.of_rank(case, (rank - 1) % size, size, whole)
            case "latency" if rank < 2:
                return values.of_rank(case, 1 - rank, size, whole)
            case "bandwidth" if rank == 1:
                return values.of_rank(case, ROOT, size, whole)
        return None


class Runner(Protocol):
    """A library within this process."""

    rank: int
    size: int

    def call(self, buffers: Buffers) -> Callable[[], object]:
        """A function that runs the operation on these buffers and returns when it has completed."""

    def barrier(self) -> None:
        """Returns when all ranks have called it."""

    def combine(self, numbers: list[float], reduction: str) -> list[float]:
        """Element-wise "max" or "sum" of `numbers` over all ranks."""


def execute(runner: Runner, command: Command) -> tuple[int, list[float]]:
    """Wrong elements of all ranks, and the seconds of every iteration's slowest rank."""
    buffers = Buffers(command.case, runner.rank, runner.size)
    call, wrong = runner.call(buffers), 0
    buffers.fill()
    if command.check:
        call()
        wrong = buffers.wrong()
    buffers.clear()
    for _ in range(command.warmup):
        call()
    times, clock, barrier = [], time.perf_counter, runner.barrier
    for _ in range(command.iterations):
        barrier()
        start = clock()
        call()
        times.append((clock() - start) / command.case.messages)
    return int(runner.combine([float(wrong)], "sum")[0]), runner.combine(times, "max")


Start = Callable[[int], Callable[[], object]]
"""Starts a message of the given number of bytes; the returned function waits for its completion."""


def point(case: Case, rank: int, send: Start, receive: Start) -> Callable[[], object]:
    """Messages between ranks 0 and 1, as in OSU: latency waits for each message, bandwidth for all and then for a reply
    of one element. send, receive: to and from the peer."""
    whole, first = case.nbytes, rank == ROOT

    def latency() -> None:
        steps = (send, receive) if first else (receive, send)
        for _ in range(case.messages // 2):
            for step in steps:
                step(whole)()

    def bandwidth() -> None:
        start, answer = (send, receive) if first else (receive, send)
        for wait in [start(whole) for _ in range(case.messages)]:
            wait()
        answer(case.width)()

    if rank > 1:
        return lambda: None
    return latency if case.operation == "latency" else bandwidth


class NetsumRunner:
    """netsum's core without a framework above it; aggregates in the network if NETSUM_CONTROLLER names a controller."""

    def __init__(self, world: "Communicator | None" = None) -> None:
        from netsum.communicator import connect

        self.world = world or connect(name="bench", timeout_s=TIMEOUT_S)
        self.rank, self.size = self.world.rank, self.world.size
        self._core = self.world.core

    def call(self, buffers: Buffers) -> Callable[[], object]:
        core, case, size, rank = self._core, buffers.case, self.size, self.rank
        source, target = _address(buffers.source), _address(buffers.target)
        part, whole, width = case.part(size), case.nbytes, case.width
        ins = [(source + each * part, part) for each in range(size)]
        outs = [(target + each * part, part) for each in range(size)]
        to = (case.dtype, case.reduction, 1.0)
        match case.operation:
            case "allreduce":
                return self._waits(lambda: core.allreduce(source, whole // width, *to, TIMEOUT_S, True))
            case "reduce":
                return self._waits(lambda: core.reduce(source, whole // width, *to, ROOT, TIMEOUT_S, True))
            case "broadcast":
                return self._waits(lambda: core.broadcast(source, whole, ROOT, TIMEOUT_S, True))
            case "allgather":
                return self._waits(lambda: core.allgather(outs, (source, part), TIMEOUT_S, True))
            case "gather":
                at_root = outs if rank == ROOT else []
                return self._waits(lambda: core.gather(at_root, (source, part), ROOT, TIMEOUT_S, True))
            case "scatter":
                at_root = ins if rank == ROOT else []
                return self._waits(lambda: core.scatter((target, part), at_root, ROOT, TIMEOUT_S, True))
            case "reduce_scatter":
                counts = [(address, part // width) for address, _ in ins]
                return self._waits(lambda: core.reduce_scatter(target, counts, *to, TIMEOUT_S, True))
            case "alltoall":
                return self._waits(lambda: core.alltoall(outs, ins, TIMEOUT_S, True))
            case "sendrecv":
                return lambda: self._sendrecv(source, target, whole)
            case "latency" | "bandwidth":
                peer = 1 - rank
                return point(
                    case,
                    rank,
                    lambda nbytes: partial(core.send(source, nbytes, peer, 0, TIMEOUT_S).wait, None),
                    lambda nbytes: partial(core.recv(target, nbytes, peer, 0, TIMEOUT_S).wait, None),
                )
        return self.barrier

    def barrier(self) -> None:
        _finish(self._core.barrier(TIMEOUT_S, True))

    def combine(self, numbers: list[float], reduction: str) -> list[float]:
        array = (ctypes.c_double * len(numbers))(*numbers)
        address = ctypes.addressof(array)
        _finish(self._core.allreduce(address, len(numbers), "float64", reduction, 1.0, TIMEOUT_S, True))
        return list(array)

    def broadcast_line(self, line: str) -> str:
        """Broadcast rank 0's `line`; every rank returns it."""
        array = ctypes.create_string_buffer(line.encode(), _COMMAND_BYTES)
        _finish(self._core.broadcast(ctypes.addressof(array), _COMMAND_BYTES, ROOT, TIMEOUT_S, True))
        return array.value.decode()

    def _sendrecv(self, source: int, target: int, nbytes: int) -> None:
        size, rank = self.size, self.rank
        received = self._core.recv(target, nbytes, (rank - 1) % size, 0, TIMEOUT_S)
        sent = self._core.send(source, nbytes, (rank + 1) % size, 0, TIMEOUT_S)
        received.wait(None)
        sent.wait(None)

    @staticmethod
    def _waits(start: "Callable[[], Work | None]") -> Callable[[], object]:
        return lambda: _finish(start())


class TorchRunner:
    """A backend of torch.distributed, called through torch's public API."""

    def __init__(self, backend: str) -> None:
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self._torch, self._dist = torch, dist
        # The ranks' launcher has named a file that does not exist yet.
        dist.init_process_group(
            backend,
            init_method=f"file://{os.environ['NETSUM_BENCH_STORE']}",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=timedelta(seconds=TIMEOUT_S),
        )
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def call(self, buffers: Buffers) -> Callable[[], object]:
        dist, case, size, rank = self._dist, buffers.case, self.size, self.rank
        source = self._tensor(buffers.source, buffers.source_bytes, case.dtype)
        target = self._tensor(buffers.target, buffers.target_bytes, case.dtype)
        op = getattr(dist.ReduceOp, case.reduction.upper())
        match case.operation:
            case "allreduce":
                return lambda: dist.all_reduce(source, op)
            case "reduce":
                return lambda: dist.reduce(source, ROOT, op)
            case "broadcast":
                return lambda: dist.broadcast(source, ROOT)
            case "allgather":
                return lambda: dist.all_gather_into_tensor(target, source)
            case "gather":
                outs = list(target.tensor_split(size)) if rank == ROOT else None
                return lambda: dist.gather(source, outs, ROOT)
            case "scatter":
                ins = list(source.tensor_split(size)) if rank == ROOT else None
                return lambda: dist.scatter(target, ins, ROOT)
            case "reduce_scatter":
                return lambda: dist.reduce_scatter_tensor(target, source, op)
            case "alltoall":
                return lambda: dist.all_to_all_single(target, source)
            case "sendrecv":
                return lambda: self._sendrecv(source, target)
            case "latency" | "bandwidth":
                to, width = 1 - rank, case.width
                return point(
                    case,
                    rank,
                    lambda nbytes: dist.isend(source[: nbytes // width], to).wait,
                    lambda nbytes: dist.irecv(target[: nbytes // width], to).wait,
                )
        return self.barrier

    def barrier(self) -> None:
        self._dist.barrier()

    def combine(self, numbers: list[float], reduction: str) -> list[float]:
        tensor = self._torch.tensor(numbers, dtype=self._torch.float64)
        self._dist.all_reduce(tensor, getattr(self._dist.ReduceOp, reduction.upper()))
        found: list[float] = tensor.tolist()
        return found

    def _tensor(self, buffer: mmap.mmap, nbytes: int, dtype: str) -> Any:
        if not nbytes:
            return self._torch.empty(0, dtype=getattr(self._torch, dtype))
        return self._torch.frombuffer(buffer, dtype=self._torch.uint8, count=nbytes).view(getattr(self._torch, dtype))

    def _sendrecv(self, source: Any, target: Any) -> None:
        received = self._dist.irecv(target, (self.rank - 1) % self.size)
        sent = self._dist.isend(source, (self.rank + 1) % self.size)
        received.wait()
        sent.wait()


def commands(lines: Iterable[str]) -> Iterator[Command]:
    return (Command.parse(line) for line in lines)


def answer(wrong: int, times: list[float]) -> str:
    return " ".join([str(wrong), *(f"{each:.9f}" for each in times)])


def _finish(work: "Work | None") -> None:
    if work is not None:
        work.wait(None)


def _address(buffer: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def main(library: str) -> None:
    """Execute the commands of standard input. The output of libraries goes to standard error.

    library: "netsum", or "torch:BACKEND".
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    runner: Runner = NetsumRunner() if library == "netsum" else TorchRunner(library.removeprefix("torch:"))
    if runner.rank == ROOT:
        print("ready", file=answers)
    for command in commands(sys.stdin):
        wrong, times = execute(runner, command)
        if runner.rank == ROOT:
            print(answer(wrong, times), file=answers)


if __name__ == "__main__":
    main(sys.argv[1])
