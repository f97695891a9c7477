"""Where trainings end with gradients in fewer bits: the demo's models under DistributedDataParallel.

    python bench/accuracy.py [--ranks N] [--seeds S] [--digits EPOCHS] [--characters STEPS]

Ranks are processes of this machine; hosts add the same bits as switches. LeNet-5 on the digits: share of the test
images that are classified correctly, after EPOCHS epochs. The GPT on Python's manual: loss on text that is not trained
on, after STEPS steps. Each with float32 and with every kind of `netsum.torch.compressed`, from the same seeds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import pathlib
import statistics
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from netsum.demo.characters import CONTEXT, SEQUENCES, TEST_SEQUENCES, Gpt, manual
from netsum.demo.digits import Digits
from netsum.torch import compressed
from netsum.torch.compression import KINDS

KIND_NAMES = [None, *KINDS]


def digits(to: str | None, seed: int, epochs: int) -> float:
    task = Digits(seed, dist.get_rank(), dist.get_world_size())
    if to:
        compressed(task.model, to=to)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(task.optimizer, epochs * task.steps_per_epoch)
    for epoch in range(epochs):
        for step in range(task.steps_per_epoch):
            task.optimizer.zero_grad()
            task.loss(epoch, step).backward()
            task.optimizer.step()
            schedule.step()
    return task.score()


def characters(to: str | None, seed: int, steps: int) -> float:
    rank, size = dist.get_rank(), dist.get_world_size()
    text, kinds = manual()
    cut = int(len(text) * 0.95)
    torch.manual_seed(seed)
    model = DistributedDataParallel(Gpt(kinds))
    if to:
        compressed(model, to=to)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def loss(source: torch.Tensor, sequences: int, number: int) -> torch.Tensor:
        places = torch.randint(len(source) - CONTEXT, (sequences,), generator=torch.Generator().manual_seed(number))
        chosen = torch.stack([source[place : place + CONTEXT + 1] for place in places.tolist()])
        return nn.functional.cross_entropy(model(chosen[:, :-1]).flatten(0, 1), chosen[:, 1:].flatten())

    for step in range(steps):
        optimizer.zero_grad()
        loss(text[:cut], SEQUENCES, seed * 1_000_003 + step * size + rank).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return loss(text[cut:], 4 * TEST_SEQUENCES, seed).item()


def _rank(rank: int, arguments: argparse.Namespace, store: str, results) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("netsum", init_method=f"file://{store}", rank=rank, world_size=arguments.ranks)
    found: dict[str, dict[str, list[float]]] = {"digits": {}, "characters": {}}
    for seed in range(arguments.seeds):
        for to in KIND_NAMES:
            name = to or "float32"
            if arguments.digits:
                found["digits"].setdefault(name, []).append(digits(to, seed, arguments.digits))
            if arguments.characters:
                found["characters"].setdefault(name, []).append(characters(to, seed, arguments.characters))
    if rank == 0:
        results.put(found)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("ranks", 4), ("seeds", 3), ("digits", 12), ("characters", 300)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store"
        ranks = [context.Process(target=_rank, args=(r, arguments, store, results)) for r in range(arguments.ranks)]
        for process in ranks:
            process.start()
        found = results.get()
        for process in ranks:
            process.join()
    for task, rows in found.items():
        for name, scores in rows.items():
            print(f"{task:12} {name:12} {statistics.mean(scores):.4f}  {' '.join(f'{score:.4f}' for score in scores)}")
    path = pathlib.Path("out/bench/accuracy.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": "accuracy", **vars(arguments), "rows": found}, indent=1))


if __name__ == "__main__":
    main()
