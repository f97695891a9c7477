"""A process's part in the job: its operations in flight, the thread that runs them, and at rank 0 the coordinator.

Every rank has one thread that runs responses one after the other. Rank 0 has a second one that receives requests. Ready
operations are announced when rank 0 is idle, so that all that became ready while an operation ran are announced, and
fused, together: there is no cycle time to choose, and no delay when nothing else is in flight.
"""

import os
import queue
import threading
import time
import warnings
from typing import Any

from netsum import NetsumError
from netsum.communicator import Communicator, Place, connect
from netsum.horovod import mailbox
from netsum.horovod.coordinator import FUSION_BYTES, Coordinator
from netsum.horovod.errors import HorovodInternalError
from netsum.horovod.execution import execute
from netsum.horovod.operation import Operation
from netsum.horovod.requests import (
    ADD_SET,
    JOIN,
    REMOVE_SET,
    SHUTDOWN,
    Request,
    Response,
    from_message,
    to_message,
)
from netsum.horovod.timeline import Timeline

STALL_S = 60.0
"""After this time rank 0 reports which ranks have not called an operation that others wait for; Horovod's default."""
_SHUT_DOWN = (
    "rank {rank} has shut down (hvd.shutdown(), or its script has ended), so that nothing can be summed any more; "
    "operations under way at the others fail"
)


class Runtime:
    """The state from `hvd.init()` to `hvd.shutdown()`. Blocks until all ranks have joined."""

    def __init__(self) -> None:
        self.place = Place.from_environment()
        self.world: Communicator = connect(name="horovod")
        self.parts: dict[int, Communicator] = {0: self.world}
        self.sets: dict[int, tuple[int, ...]] = {0: tuple(range(self.world.size))}
        self.timeline = Timeline()
        self._lock = threading.Lock()
        self._mine: dict[tuple[int, str], Operation] = {}
        self._counters: dict[tuple[str, int], int] = {}
        self._joins = 0
        self._ended: str | None = None
        self._inbox: queue.SimpleQueue[list[Response] | None] = queue.SimpleQueue()
        self._idle = True
        self._coordinator = Coordinator(self.world.size, _fusion_bytes()) if self.world.rank == 0 else None
        self._threads = [self._thread(self._run, "netsum-horovod")]
        if self._coordinator and self.world.size > 1:
            self._thread(self._hear, "netsum-coordinator")
            self._thread(self._watch, "netsum-stalls")
        if self.place.rank == 0 and os.environ.get("HOROVOD_TIMELINE", "DYNAMIC") != "DYNAMIC":
            marks = os.environ.get("HOROVOD_TIMELINE_MARK_CYCLES", "0") == "1"
            self.timeline.start(os.environ["HOROVOD_TIMELINE"], marks)

    def name(self, kind: str, given: str | None, set_id: int) -> str:
        """The caller's name prefixed with the kind, or a name made from a counter, equal at all members of the set."""
        if given is not None:
            return f"{kind}.{given}"
        with self._lock:
            number = self._counters.get((kind, set_id), 0)
            self._counters[kind, set_id] = number + 1
            return f"{kind}.noname.{self._joins}.{number}"

    def start(self, operation: Operation) -> Operation:
        """Send the request to the coordinator; returns at once. Raises ValueError if an operation of that name is in
        flight."""
        request = operation.request
        with self._lock:
            if self._ended is not None:
                raise HorovodInternalError(self._ended)
            if operation.key in self._mine:
                raise ValueError(
                    f"{request.name!r} was called again before the first had ended; synchronize, or use another name"
                )
            self._mine[operation.key] = operation
        self.timeline.begin(request.name, f"NEGOTIATE_{request.kind.upper()}")
        self._send_request(request)
        return operation

    def close(self) -> None:
        """Shut down; operations in flight fail at all ranks."""
        if self._ended is None:
            self._send_request(Request(SHUTDOWN, SHUTDOWN))
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self.timeline.stop()
        for part in self.parts.values():
            part.close()

    def _thread(self, target: Any, name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    @property
    def _at_rank_0(self) -> Coordinator:
        assert self._coordinator is not None, "rank 0 alone has the coordinator"
        return self._coordinator

    def _send_request(self, request: Request) -> None:
        if self._coordinator is None:
            try:
                mailbox.send(self.world, 0, request.to_bytes())
            except NetsumError as error:
                self._end(str(error))
            return
        self._submit(0, request)

    def _submit(self, rank: int, request: Request) -> None:
        with self._lock:
            self._at_rank_0.submit(rank, request, time.monotonic())
            self._flush()

    def _flush(self) -> None:
        """At rank 0, under the lock: announce ready operations to all ranks if this rank is idle."""
        if not self._idle:
            return
        ready = self._at_rank_0.take()
        by_rank: dict[int, list[Response]] = {}
        for members, response in ready:
            for rank in members:
                by_rank.setdefault(rank, []).append(response)
        mine = by_rank.pop(0, None)
        for rank, responses in by_rank.items():
            mailbox.send(self.world, rank, to_message(responses))
        # Last, because the thread that wakes takes the interpreter lock: the other ranks' messages take longer.
        if mine:
            self._idle = False
            self._inbox.put(mine)

    def _hear(self) -> None:
        """Rank 0's second thread: receives requests."""
        try:
            while self._ended is None:
                rank, message = mailbox.receive(self.world, None)
                self._submit(rank, Request.from_bytes(message))
        except (NetsumError, ValueError, TypeError, KeyError) as error:
            self._fail_group(f"rank 0 cannot go on: {error}")
            self._inbox.put(None)

    def _watch(self) -> None:
        """Rank 0's third thread: reports ranks that delay the others."""
        patience = float(os.environ.get("HOROVOD_STALL_CHECK_TIME_SECONDS", STALL_S))
        if os.environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") == "1" or patience <= 0:
            return
        last = float(os.environ.get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0))
        while self._ended is None:
            time.sleep(min(patience / 4, 5.0))
            with self._lock:
                late = self._at_rank_0.overdue(time.monotonic(), patience)
                fatal = self._at_rank_0.overdue(time.monotonic(), last) if last > 0 else []
            if fatal:
                self._fail_group(f"gave up: {'; '.join(fatal)}")
                return
            if late:
                warnings.warn(f"netsum.horovod: some ranks keep others waiting: {'; '.join(late)}", stacklevel=1)
                time.sleep(patience)

    def _run(self) -> None:
        """The thread that runs operations."""
        try:
            while self._ended is None:
                responses = self._next()
                if responses is None:
                    return
                for response in responses:
                    self._execute(response)
                if self._coordinator:
                    with self._lock:
                        self._idle = True
                        self._flush()
        except NetsumError as error:
            self._end(str(error))
        except Exception as error:
            self._fail_group(f"rank {self.world.rank} cannot go on: {type(error).__name__}: {error}")
            raise

    def _next(self) -> list[Response] | None:
        if self._coordinator:
            return self._inbox.get()
        _, message = mailbox.receive(self.world, 0)
        return from_message(message)

    def _execute(self, response: Response) -> None:
        first = response.first
        if first.kind == SHUTDOWN:
            self._end(_SHUT_DOWN.format(rank=response.details["rank"]))
            return
        with self._lock:
            mine = [self._mine.pop((each.process_set, each.name), None) for each in response.requests]
        names = [each.name for each in response.requests]
        if response.error is not None:
            for operation in filter(None, mine):
                operation.fail(response.error)
            self.timeline.end(names)
            return
        self.timeline.run(names, first.kind.upper())
        try:
            if first.kind == ADD_SET:
                self._add_set(response.details["set"], first.ranks)
            elif first.kind == REMOVE_SET:
                self._remove_set(response.details["set"])
            elif first.kind == JOIN:
                # A rank that joined has made fewer calls than the others: all restart their counters, under unused
                # names.
                with self._lock:
                    self._joins, self._counters = self._joins + 1, {}
            else:
                execute(self.sets[first.process_set], self.parts[first.process_set], response, mine)
        except NetsumError as error:
            for operation in filter(None, mine):
                operation.fail(str(error))
            raise
        for operation in filter(None, mine):
            operation.end(response.details)
        self.timeline.end(names)

    def _add_set(self, set_id: int, ranks: tuple[int, ...]) -> None:
        part = self.world.split(ranks if self.world.rank in ranks else None)
        self.sets[set_id] = ranks
        if part is not None:
            self.parts[set_id] = part

    def _remove_set(self, set_id: int) -> None:
        self.sets.pop(set_id, None)
        part = self.parts.pop(set_id, None)
        if part is not None:
            part.close()

    def _fail_group(self, reason: str) -> None:
        """Fail all operations here and, through the group, at the other ranks."""
        if self._ended is None:
            self.world.abort(reason)
        self._end(reason)

    def _end(self, reason: str) -> None:
        with self._lock:
            if self._ended is None:
                self._ended = reason
            left, self._mine = list(self._mine.values()), {}
        for operation in left:
            operation.fail(reason)


def _fusion_bytes() -> int:
    return int(os.environ.get("HOROVOD_FUSION_THRESHOLD", FUSION_BYTES))
