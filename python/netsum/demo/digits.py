"""LeNet-5 on handwritten digits, replicated at every rank."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from netsum.demo.model import digits, lenet5
from netsum.demo.task import Task


class Digits(Task):
    """LeNet-5 under DistributedDataParallel."""

    batch = 16

    def __init__(self, seed: int, rank: int, size: int) -> None:
        self._seed, self._rank, self._size = seed, rank, size
        self._images, self._labels, self._test_images, self._test_labels = digits(seed)
        torch.manual_seed(seed)
        self.model = DistributedDataParallel(lenet5())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.steps_per_epoch = len(self._labels) // (self.batch * size)

    def loss(self, epoch: int, step: int) -> torch.Tensor:
        order = torch.randperm(len(self._labels), generator=torch.Generator().manual_seed(self._seed + epoch))
        first = (step * self._size + self._rank) * self.batch
        chosen = order[first : first + self.batch]
        return nn.functional.cross_entropy(self.model(self._images[chosen]), self._labels[chosen])

    def score(self) -> float:
        """Share of the test images that are classified correctly. All ranks have the same model."""
        with torch.no_grad():
            guesses = self.model.module(self._test_images).argmax(dim=1)
        return float((guesses == self._test_labels).float().mean())

    def whole(self) -> Iterator[torch.Tensor]:
        yield from self.model.module.parameters()

    def ring_bytes(self) -> int:
        found: int = 4 * sum(parameter.numel() for parameter in self.model.parameters())
        return found
