"""One rank of a job on slots: sums checked against an oracle, or one buffer reduced again and again.

Arguments: a JSON object. {"steps": n, "numel": n, "large": bool}: n steps of an integer sum that must equal the
oracle's to the bit, and a float sum that must be within the stated bound; `large` has values beyond the range of the
paper's scale. With "until_told" the n steps begin once the file FINISH exists, with further steps before. {"mib": m,
"seconds": s, "start": t}: from clock t on, a time line of (clock, bytes of the buffer summed so far).
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

from netsum.torch import stats


def integers(rank: int, step: int, numel: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(-(2**31), 2**31, (numel,), generator=draw, dtype=torch.int64).to(torch.int32)


def reals(rank: int, step: int, numel: int, large: bool) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1000 * step + rank + 500)
    values = torch.randn(numel, generator=draw) * 0.1
    if large:
        values[:: 5000 + rank] *= 1e5
    return values


def check_integers(step: int, numel: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = integers(rank, step, numel)
    dist.all_reduce(mine)
    wide = sum(integers(r, step, numel).to(torch.int64) for r in range(size))
    oracle = ((wide + 2**31) % 2**32 - 2**31).to(torch.int32)
    if not torch.equal(mine, oracle):
        raise SystemExit(f"rank {rank}, step {step}: {int((mine != oracle).sum())} of {numel} integers are wrong")


def check_reals(step: int, numel: int, large: bool, digest: hashlib._Hash) -> None:
    """Fragments of 352 values share a scale: half of its step for each rank, and float32's own rounding."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = reals(rank, step, numel, large)
    dist.all_reduce(mine)
    parts = torch.stack([reals(r, step, numel, large) for r in range(size)]).double()
    oracle = parts.sum(0)
    padded = torch.nn.functional.pad(parts.abs().amax(0), (0, -numel % 352)).view(-1, 352)
    greatest = padded.amax(1).repeat_interleave(352)[:numel]
    # With the shared exponent the scale leaves 30 bits for the sum of powers of two above the values.
    unit = torch.maximum(greatest * 2 * 2 * size / 2**30, torch.tensor(1e-8, dtype=torch.float64))
    bound = size * unit / 2 + parts.abs().sum(0) * 2.0**-23
    wrong = (mine.double() - oracle).abs() > bound
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        raise SystemExit(f"rank {rank}, step {step}: element {at} is {mine[at]}, not {oracle[at]} within {bound[at]}")
    digest.update(mine.numpy().tobytes())


def any_rank(here: bool) -> bool:
    """Whether the condition holds at any rank; the same answer at all ranks."""
    flags = torch.full((16,), int(here), dtype=torch.int32)
    dist.all_reduce(flags)
    return bool(flags[0])


def check(arguments: dict) -> dict:
    digest, began = hashlib.sha256(), time.monotonic()
    step, left, told = 0, arguments["steps"], not arguments.get("until_told", False)
    while left:
        check_integers(step, arguments["numel"])
        check_reals(step, arguments["numel"], arguments.get("large", False), digest)
        step += 1
        print(f"step {step}", flush=True)
        told = told or any_rank(pathlib.Path(os.environ["FINISH"]).exists())
        left -= told
    return {"digest": digest.hexdigest(), "steps": step, "seconds": time.monotonic() - began}


def steady(arguments: dict) -> dict:
    """All ranks stop after the same number of sums: every eighth sum also combines whether the time is over."""
    tensor = torch.full((arguments["mib"] * (1 << 18),), 1e-3)
    dist.barrier()
    time.sleep(max(0.0, arguments.get("start", 0.0) - time.time()))
    line = [(time.time(), 0)]
    end = line[0][0] + arguments["seconds"]
    while True:
        for _ in range(4):
            tensor.fill_(1e-3)
            dist.all_reduce(tensor)
            line.append((time.time(), line[-1][1] + (arguments["mib"] << 20)))
        if any_rank(time.time() > end):
            return {"line": line}


def main() -> None:
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("netsum", timeout=datetime.timedelta(seconds=arguments.get("timeout_s", 120)))
    result = steady(arguments) if "seconds" in arguments else check(arguments)
    result["stats"] = stats()
    pathlib.Path(os.environ["RESULT"]).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
