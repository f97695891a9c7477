"""One rank: timed allreduces, on netsum and on Gloo over the same links, checked element by element.

Arguments: a JSON object {"sizes_mib": [...], "repeats": n, "gloo": bool, "seconds": s}. With `seconds` the first size
is reduced repeatedly for that long, and a time line of bytes is reported instead.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist


def filled(rank: int, numel: int) -> torch.Tensor:
    """Values whose sum over the ranks is exact in float32, different for each element."""
    return (torch.arange(numel, dtype=torch.float32) % 1021) + float(rank)


def expected(size: int, numel: int) -> torch.Tensor:
    return (torch.arange(numel, dtype=torch.float32) % 1021) * size + size * (size - 1) / 2


def timed(group: dist.ProcessGroup | None, mib: int, check: bool) -> float:
    """Seconds of one allreduce on the slowest rank."""
    rank, size, numel = dist.get_rank(), dist.get_world_size(), mib * (1 << 18)
    tensor = filled(rank, numel)
    dist.barrier(group=group)
    start = time.perf_counter()
    dist.all_reduce(tensor, group=group)
    elapsed = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    if check and not torch.equal(tensor, expected(size, numel)):
        wrong = int((tensor != expected(size, numel)).sum())
        raise SystemExit(f"rank {rank}: {wrong} of {numel} elements are wrong")
    dist.all_reduce(elapsed, dist.ReduceOp.MAX, group=group)
    return float(elapsed)


def steady(mib: int, seconds: float) -> dict:
    """Reduce one buffer repeatedly; a time line of (clock, bytes of it so far)."""
    tensor = torch.ones(mib * (1 << 18))
    dist.barrier()
    print("step 0", flush=True)
    start, line = time.perf_counter(), [(time.time(), 0)]
    go_on = torch.ones(1, dtype=torch.int32)
    while bool(go_on.item()):
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        line.append((time.time(), line[-1][1] + (mib << 20)))
        go_on.fill_(int(time.perf_counter() - start < seconds))
        dist.broadcast(go_on, 0)
    return {"line": line}


def main() -> None:
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("netsum", timeout=datetime.timedelta(seconds=120))
    result: dict = {"netsum": {}, "gloo": {}}
    if "seconds" in arguments:
        result |= steady(arguments["sizes_mib"][0], arguments["seconds"])
    else:
        gloo = dist.new_group(backend="gloo") if arguments["gloo"] else None
        timed(None, 1, True)
        for mib in arguments["sizes_mib"]:
            for _ in range(arguments["repeats"]):
                result["netsum"].setdefault(str(mib), []).append(timed(None, mib, True))
                if gloo is not None:
                    result["gloo"].setdefault(str(mib), []).append(timed(gloo, mib, True))
    from netsum.torch import stats

    result["stats"] = stats()
    pathlib.Path(os.environ["RESULT"]).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
