"""What `train.py` needs to know of a training: model, batches, score."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import nn


class Task(ABC):
    """One rank's part of a training. All ranks make it alike, from the same seed."""

    model: nn.Module
    """Replicated or sharded."""
    optimizer: torch.optim.Optimizer
    batch: int
    """Samples of a rank per step, as throughput counts them."""
    steps_per_epoch: int

    @abstractmethod
    def loss(self, epoch: int, step: int) -> torch.Tensor:
        """The loss of this rank's batch in the step of that number within the epoch."""

    @abstractmethod
    def score(self) -> float:
        """The quality on test data. Collective if the model is sharded."""

    @abstractmethod
    def whole(self) -> Iterator[torch.Tensor]:
        """All parameters, not sharded, on every rank. Collective if the model is sharded."""

    @abstractmethod
    def ring_bytes(self) -> int:
        """Bytes whose allreduce in a ring sends as much as the collectives of a step do."""

    def digest(self) -> str:
        """SHA-256 over the bits of all parameters."""
        sha = hashlib.sha256()
        for parameter in self.whole():
            sha.update(parameter.detach().contiguous().numpy().tobytes())
        return sha.hexdigest()
