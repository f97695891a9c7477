"""One rank of a training: `train.py BACKEND TASK OUT`. Rank 0 writes accuracy by epoch to OUT, all ranks agree on bits.

TASK: `digits`, scikit-learn's 8 × 8 digits with LeNet-5; or `pairs`, two of them side by side on a canvas, shifted at
random and noisy, 100 classes: harder, and made from installed data.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from netsum.demo.model import digits, lenet5

BATCH = 16
EPOCHS = {"digits": 10, "pairs": 10}
RATE = {"digits": 0.05, "pairs": 0.02}
SEED = 20
PAIRS, PAIRS_HELD_OUT = 12_800, 2000
NOISE = 0.2


def pairs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images 12 × 24, labels 10 · left + right; digits of the held-out pairs are in no training pair."""
    draw = torch.Generator().manual_seed(SEED)
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32) / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=draw)
    parts = []
    for chosen, count in ((order[:1400], PAIRS), (order[1400:], PAIRS_HELD_OUT)):
        left, right = (chosen[torch.randint(len(chosen), (count,), generator=draw)] for _ in range(2))
        canvas = NOISE * torch.randn(count, 1, 12, 24, generator=draw)
        shifts = torch.randint(0, 5, (count, 4), generator=draw)
        for at in range(count):
            a, b, c, d = shifts[at].tolist()
            canvas[at, 0, a : a + 8, b : b + 8] += images[left[at]]
            canvas[at, 0, c : c + 8, 12 + d : 20 + d] += images[right[at]]
        parts += [canvas, 10 * labels[left] + labels[right]]
    return tuple(parts)


class EachOfBoth(nn.Module):
    """Converts scores of ten left and ten right digits, shape (n, 20), to those of the hundred pairs."""

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return (scores[:, :10, None] + scores[:, None, 10:]).flatten(1)


def pairs_net() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 3 * 6, 128), nn.ReLU(), nn.Linear(128, 20), EachOfBoth()),
    )


def main() -> None:
    backend, task, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    images, labels, held_out, answers = digits(SEED) if task == "digits" else pairs()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(lenet5() if task == "digits" else pairs_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE[task], momentum=0.9)
    steps, epochs = len(labels) // (BATCH * size), EPOCHS[task]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps * epochs)
    accuracy = []
    for epoch in range(epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED + epoch))
        for step in range(steps):
            first = (step * size + rank) * BATCH
            chosen = order[first : first + BATCH]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            accuracy.append(float((model.module(held_out).argmax(1) == answers).float().mean()))
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    digests: list = [None] * size
    dist.all_gather_object(digests, digest)
    if rank == 0:
        result = {"accuracy": accuracy, "same_bits": len(set(digests)) == 1}
        if backend == "netsum":
            from netsum.torch import stats

            result["stats"] = stats()
        out.write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
