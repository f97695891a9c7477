"""The dumps in the format of torch's flight recorder, for its analyser `torchfrtrace`."""

import pickle
import re
from pathlib import Path
from typing import Any

from netsum import private
from netsum.recorder.dumps import Dump, Operation

VERSION = "2.10"
PREFIX = "netsum_trace_"
_NAMES = {
    "reduce_scatter": "_reduce_scatter_base",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "allreduce": "all_reduce",
}
_MESSAGE = re.compile(r"(send|receive) of (\d+) bytes (?:to|from) (?:rank (\d+)|any rank)")


def write(dumps: dict[int, Dump], folder: Path) -> list[Path]:
    """Write one pickle per rank of a group, PREFIX + rank; returns the files."""
    private.make_folder(folder)
    written = []
    for rank, dump in dumps.items():
        group = {"name": dump.group, "desc": dump.group, "ranks": str(list(range(dump.size)))}
        entries = [_entry(dump, at, operation) for at, operation in enumerate(dump.operations)]
        value = {
            "version": VERSION,
            "entries": entries,
            "pg_config": {dump.group: group},
            "pg_status": {},
            "nccl_comm_state": {},
        }
        path = folder / f"{PREFIX}{rank}"
        with private.open_file(path) as file:
            file.write(pickle.dumps(value))
        written.append(path)
    return written


def _entry(dump: Dump, at: int, operation: Operation) -> dict[str, Any]:
    numbers = [each.number for each in dump.operations[: at + 1]]
    messages = numbers.count(None)
    created = int(operation.called * 1e9)
    done = None if operation.seconds is None else created + int(operation.seconds * 1e9)
    sizes = [] if operation.nbytes is None else [[operation.nbytes]]
    dtypes = [operation.dtype or "uint8"]
    return {
        "record_id": at,
        "pg_id": 0,
        "process_group": (dump.group, dump.group),
        # torch counts from 1.
        "collective_seq_id": 0 if operation.number is None else operation.number + 1,
        "p2p_seq_id": messages if operation.number is None else 0,
        "op_id": at + 1,
        "profiling_name": f"netsum:{_name(dump.rank, operation)}",
        "time_created_ns": created,
        "duration_ms": 0.0 if operation.seconds is None else operation.seconds * 1e3,
        "input_sizes": sizes,
        "input_dtypes": dtypes,
        "output_sizes": sizes,
        "output_dtypes": dtypes,
        "state": "started" if done is None or operation.error else "completed",
        "time_discovered_started_ns": created,
        "time_discovered_completed_ns": done,
        "retired": done is not None,
        "timeout_ms": 0,
        "is_p2p": operation.number is None,
        "frames": [],
    }


def _name(rank: int, operation: Operation) -> str:
    message = _MESSAGE.match(operation.call)
    if message:
        other = message[3] or "?"
        return f"send {rank}->{other}" if message[1] == "send" else f"recv {rank}<-{other}"
    word = operation.call.split()[0]
    return _NAMES.get(word, word)
