"""One rank of a job on a real fabric, without torch: it sums one buffer repeatedly and records the times.

Arguments: rank, size, folder shared by all ranks, and a JSON object: "bytes" of the buffer, "seconds" to run, "busy_s"
mean of other work after each sum, "controller", "host", "options". The rank writes `ready.RANK` into the folder, waits
for a file `go` with the start time, and writes `RANK.json` with a time line of (clock, bytes summed) and the duration
of its sums.
"""

import json
import random
import sys
import time
from pathlib import Path

import numpy

from netsum import _core

TIMEOUT_S = 60.0
ROUND = 2
"""Sums between two checks of the time."""


def wait_for(path: Path) -> bytes:
    deadline = time.monotonic() + TIMEOUT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"{path} did not come")
        time.sleep(0.01)
    return path.read_bytes()


def put(path: Path, content: bytes) -> None:
    """Write the file atomically."""
    part = path.with_suffix(".part" + path.suffix)
    part.write_bytes(content)
    part.rename(path)


def main() -> None:
    rank, size, folder, given = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4])
    options = {"min_bytes": "0", **given["options"]}
    group = _core.Group(rank, size, folder.name, given["controller"], given["host"], TIMEOUT_S, options)
    put(folder / f"address.{rank}", group.address())
    group.connect([wait_for(folder / f"address.{peer}") for peer in range(size)])
    buffers = [numpy.full(given["bytes"] // 4, 1e-3, dtype=numpy.float32) for _ in range(2)]
    over = numpy.zeros(1, dtype=numpy.int32)

    def summed(buffer: numpy.ndarray) -> _core.Work:
        # A mean leaves the values unchanged, however often it is computed.
        return group.allreduce(buffer.ctypes.data, buffer.size, "float32", "avg", 1.0, TIMEOUT_S)

    summed(buffers[0]).wait(TIMEOUT_S)
    put(folder / f"ready.{rank}", b"")
    begin = float(wait_for(folder / "go"))
    # The same draws at all ranks of a job, different ones in other jobs, so that jobs do not stay synchronized.
    busy = random.Random(folder.name)
    time.sleep(max(0.0, begin - time.time()) + busy.uniform(0, given["busy_s"]))
    summing = []
    line = [(time.time(), 0)]
    while not over[0]:
        for _ in range(ROUND):
            # Two in flight unless there is other work in between.
            start = time.time()
            works = [summed(buffer) for buffer in buffers[: 1 if given["busy_s"] else 2]]
            for work in works:
                work.wait(TIMEOUT_S)
                line.append((time.time(), line[-1][1] + given["bytes"]))
            summing.append(time.time() - start)
            time.sleep(given["busy_s"] * busy.uniform(0.5, 1.5))
        over[0] = int(time.time() > begin + given["seconds"])
        group.broadcast(over.ctypes.data, 4, 0, TIMEOUT_S).wait(TIMEOUT_S)
    # All elements of this page are a mean of equal values.
    wrong = int((numpy.abs(buffers[0] - 1e-3) > 1e-8).sum())
    result = {"line": line, "summing": summing, "wrong": wrong, "stats": json.loads(group.stats())}
    put(folder / f"{rank}.json", json.dumps(result).encode())
    group.close()


if __name__ == "__main__":
    main()
