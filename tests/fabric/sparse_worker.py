"""One rank: backward passes of an embedding under DistributedDataParallel: rows by switches and by hosts, and dense
tables, whole and without blocks of zeros.

Argument: a JSON object {"steps": n, "words": w}: distinct words of the table. Words of a batch follow Zipf's law.
Reports per variant the seconds of each step on the slowest rank, bytes that this host sent and received, and rows of a
rank and of the union.
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
from torch.nn.parallel import DistributedDataParallel

from compression_worker import moved_bytes
from netsum.torch import block_sparse, sparse

WIDTH, BATCH = 256, 4096


def zipf(words: int, seed: int) -> torch.Tensor:
    """A batch of words; the k-th most frequent has a probability in proportion to 1 / k."""
    weights = 1.0 / torch.arange(1, words + 1, dtype=torch.float64)
    return torch.multinomial(weights, BATCH, replacement=True, generator=torch.Generator().manual_seed(seed))


class Variant:
    def __init__(
        self, group: dist.ProcessGroup, words: int, is_sparse: bool, gathers: bool = False, blocks: bool = False
    ) -> None:
        torch.manual_seed(1)
        self.table = torch.nn.Embedding(words, WIDTH, sparse=is_sparse)
        self.model = DistributedDataParallel(self.table, process_group=group, bucket_cap_mb=8)
        if blocks:
            block_sparse(self.model, block=WIDTH)
        self.gathers = gathers
        self.seconds: list[float] = []
        self.sent: list[int] = []
        self.received: list[int] = []

    def step(self, batch: torch.Tensor) -> None:
        self.model.zero_grad()
        loss = self.model(batch).sum()
        chosen = sparse._sums_are_fewer
        if self.gathers:
            sparse._sums_are_fewer = lambda *_: False
        dist.barrier()
        before, start = (moved_bytes("tx"), moved_bytes("rx")), time.perf_counter()
        loss.backward()
        elapsed = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        dist.barrier()
        sparse._sums_are_fewer = chosen
        self.sent.append(moved_bytes("tx") - before[0])
        self.received.append(moved_bytes("rx") - before[1])
        dist.all_reduce(elapsed, dist.ReduceOp.MAX)
        self.seconds.append(float(elapsed))

    def gradient(self) -> torch.Tensor:
        found = self.table.weight.grad
        return found.to_dense() if found.is_sparse else found


def main() -> None:
    given = json.loads(sys.argv[1])
    steps, words = given["steps"], given["words"]
    torch.set_num_threads(1)
    dist.init_process_group("netsum", timeout=datetime.timedelta(seconds=120))
    rank, size = dist.get_rank(), dist.get_world_size()
    hosts = dist.new_group(list(range(size)))
    variants = {
        "switches sparse": Variant(dist.group.WORLD, words, True),
        "hosts sparse": Variant(hosts, words, True),
        "hosts gather": Variant(hosts, words, True, gathers=True),
        "switches dense": Variant(dist.group.WORLD, words, False),
        "switches blocks": Variant(dist.group.WORLD, words, False, blocks=True),
    }
    rows, union = [], []
    for step in range(steps + 1):
        batches = [zipf(words, 1000 * step + other) for other in range(size)]
        rows.append(len(batches[rank].unique()))
        union.append(len(torch.cat(batches).unique()))
        for variant in variants.values():
            variant.step(batches[rank])
        gradients = [variant.gradient() for variant in variants.values()]
        # Whole numbers of words, divided by the number of ranks: exact in any order.
        assert all(torch.equal(each, gradients[0]) for each in gradients[1:])
    result = {
        name: {"seconds": each.seconds[1:], "sent": each.sent[1:], "received": each.received[1:]}
        for name, each in variants.items()
    }
    result |= {"row_bytes": WIDTH * 4, "rows": rows[1:], "union": union[1:]}
    pathlib.Path(os.environ["RESULT"]).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
