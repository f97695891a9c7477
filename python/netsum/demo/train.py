"""The training script of the demo; torchrun starts it once per worker.

    train.py BACKEND OUT --epochs N --seed S

Writes to the folder OUT: `events.jsonl` (rank 0: one line per step and epoch) and `rank-R.json` (each rank: a digest of
its final parameters, its control sums, the counters of its group). The folder must exist.
"""

import argparse
import hashlib
import json
import time
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from netsum import private
from netsum.demo import control_sum
from netsum.demo.model import digits, lenet5
from netsum.reports import GroupStats

BATCH = 16
"""Images per worker and step."""
LEARNING_RATE = 0.05
MOMENTUM = 0.9


class Training:
    """One rank's part of the training."""

    def __init__(self, out: Path, seed: int, epochs: int) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.seed, self.epochs = seed, epochs
        self.images, self.labels, self.test_images, self.test_labels = digits(seed)
        torch.manual_seed(seed)
        self.model = DistributedDataParallel(lenet5())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        # The learning rate decays, so that the final accuracy is stable.
        total = epochs * self.steps_per_epoch()
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, total)
        self.out = out
        self.events: TextIOWrapper | None = None
        if self.rank == 0:
            self.events = TextIOWrapper(private.open_file(out / "events.jsonl"), line_buffering=True)
        self.step = 0
        self.wrong_elements = 0

    def run(self) -> None:
        steps = self.steps_per_epoch()
        parameters = sum(p.numel() for p in self.model.parameters())
        self.emit(
            "start", epochs=self.epochs, steps=self.epochs * steps, ranks=self.size, parameters=parameters, batch=BATCH
        )
        for epoch in range(self.epochs):
            began = time.monotonic()
            loss = self.train_epoch(epoch)
            seconds = time.monotonic() - began
            images = steps * BATCH * self.size
            self.emit("epoch", epoch=epoch, loss=loss, accuracy=self.accuracy(), images_per_s=images / seconds)
        self.finish()

    def train_epoch(self, epoch: int) -> float:
        """One pass over the training images; returns the mean loss of this rank."""
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(self.seed + epoch))
        total = 0.0
        steps = self.steps_per_epoch()
        for i in range(steps):
            first = (i * self.size + self.rank) * BATCH
            total += self.train_step(order[first : first + BATCH])
        return total / steps

    def train_step(self, chosen: torch.Tensor) -> float:
        began = time.monotonic()
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.images[chosen]), self.labels[chosen])
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        trained = time.monotonic()
        self.wrong_elements += control_sum.check(self.rank, self.size, self.step)
        self.emit("step", step=self.step, loss=loss.item(), seconds=trained - began, wrong=self.wrong_elements)
        self.step += 1
        found: float = loss.item()
        return found

    def accuracy(self) -> float:
        """Share of the test images that are classified correctly. All ranks have the same model."""
        with torch.no_grad():
            guesses = self.model.module(self.test_images).argmax(dim=1)
        return float((guesses == self.test_labels).float().mean())

    def finish(self) -> None:
        record = {
            "rank": self.rank,
            "digest": digest(self.model.module),
            "control_sums": self.step,
            "wrong_elements": self.wrong_elements,
            "accuracy": self.accuracy(),
            "stats": group_stats(),
        }
        private.write_text(self.out / f"rank-{self.rank}.json", json.dumps(record))
        dist.barrier()
        self.emit("end")

    def steps_per_epoch(self) -> int:
        found: int = len(self.labels) // (BATCH * self.size)
        return found

    def emit(self, event: str, **fields: Any) -> None:
        if self.events:
            self.events.write(json.dumps({"event": event, "at_unix_s": time.time(), **fields}) + "\n")


def digest(model: nn.Module) -> str:
    """SHA-256 over the bits of all parameters."""
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(parameter.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


def group_stats() -> GroupStats | None:
    if dist.get_backend() != "netsum":
        return None
    from netsum.torch import stats

    return stats()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("backend")
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    Training(arguments.out, arguments.seed, arguments.epochs).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
