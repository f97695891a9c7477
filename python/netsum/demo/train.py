"""The training script of the demo; torchrun starts it once per worker.

    train.py BACKEND OUT --workload W --epochs N --seed S

Writes to the folder OUT: `events.jsonl` (rank 0: one line per step and epoch) and `rank-R.json` (each rank: a digest of
its final parameters, its control sums, the counters of its group). The folder must exist.
"""

import argparse
import json
import time
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from netsum import private
from netsum.demo import control_sum
from netsum.demo.paths import collectives
from netsum.demo.task import Task
from netsum.demo.workloads import WORKLOADS
from netsum.reports import GroupStats


class Training:
    """One rank's part of the training."""

    def __init__(self, task: Task, out: Path, epochs: int) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.task, self.epochs = task, epochs
        # The learning rate decays, so that the final score is stable.
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(task.optimizer, epochs * task.steps_per_epoch)
        self.out = out
        self.events: TextIOWrapper | None = None
        if self.rank == 0:
            self.events = TextIOWrapper(private.open_file(out / "events.jsonl"), line_buffering=True)
        self.step = 0
        self.wrong_elements = 0
        # Connecting, measuring both ways and handing out parameters go between hosts.
        self.host_bytes_before = host_bytes()

    def run(self) -> None:
        task = self.task
        self.emit(
            "start",
            epochs=self.epochs,
            steps=self.epochs * task.steps_per_epoch,
            ranks=self.size,
            parameters=sum(p.numel() for p in task.model.parameters()),
            batch=task.batch,
            ring_bytes=task.ring_bytes(),
        )
        for epoch in range(self.epochs):
            began = time.monotonic()
            loss = sum(self.train_step(epoch, number) for number in range(task.steps_per_epoch)) / task.steps_per_epoch
            seconds = time.monotonic() - began
            samples = task.steps_per_epoch * task.batch * self.size
            self.emit("epoch", epoch=epoch, loss=loss, score=task.score(), samples_per_s=samples / seconds)
        self.finish()

    def train_step(self, epoch: int, number: int) -> float:
        began = time.monotonic()
        self.task.optimizer.zero_grad()
        loss = self.task.loss(epoch, number)
        loss.backward()
        self.task.optimizer.step()
        self.schedule.step()
        trained = time.monotonic()
        self.wrong_elements += control_sum.check(self.rank, self.size, self.step)
        self.emit("step", step=self.step, loss=loss.item(), seconds=trained - began, wrong=self.wrong_elements)
        self.step += 1
        found: float = loss.item()
        return found

    def finish(self) -> None:
        netsum = dist.get_backend() == "netsum"
        in_steps = host_bytes() - self.host_bytes_before
        # Before other operations push those of the training out of the recorder.
        ways = collectives() if netsum else None
        record = {
            "rank": self.rank,
            "digest": self.task.digest(),
            "control_sums": self.step,
            "wrong_elements": self.wrong_elements,
            "score": self.task.score(),
            "collectives": ways,
            "host_bytes": {"before": self.host_bytes_before, "in_steps": in_steps},
            "stats": group_stats() if netsum else None,
        }
        private.write_text(self.out / f"rank-{self.rank}.json", json.dumps(record))
        dist.barrier()
        self.emit("end")

    def emit(self, event: str, **fields: Any) -> None:
        if self.events:
            self.events.write(json.dumps({"event": event, "at_unix_s": time.time(), **fields}) + "\n")


def host_bytes() -> int:
    """What this rank has sent to other hosts past switches; 0 with Gloo."""
    return group_stats()["host_bytes_tx"] if dist.get_backend() == "netsum" else 0


def group_stats() -> GroupStats:
    from netsum.torch import stats

    return stats()


def make(workload: str, seed: int) -> Task:
    """The task of that name. Loads what it needs only."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if workload == "digits":
        from netsum.demo.digits import Digits

        return Digits(seed, rank, size)
    from netsum.demo.characters import Characters

    return Characters(seed, rank, size)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("backend")
    parser.add_argument("out", type=Path)
    parser.add_argument("--workload", required=True, choices=list(WORKLOADS))
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    Training(make(arguments.workload, arguments.seed), arguments.out, arguments.epochs).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
