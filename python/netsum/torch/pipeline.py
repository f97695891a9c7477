"""Buckets of gradients that need two operations, the second of which depends on the answer of the first.

The second operation of a bucket is called after the first one of the next bucket, which so travels meanwhile: only the
last bucket of a step waits for an answer. All operations are called by the thread that calls the hook, so that their
order is the same at all ranks.
"""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch.futures import Future


class PipelinedBucket(Protocol):
    """A bucket whose first operation has been called."""

    mean: Future[torch.Tensor]

    def send(self) -> None:
        """Wait for the first operation's answer, and call the second one, which completes `mean`."""


class BucketPipeline:
    """Buckets of one DistributedDataParallel, in the order in which it calls its hook."""

    def __init__(self) -> None:
        self._last: PipelinedBucket | None = None

    def add(self, bucket: dist.GradBucket, begin: Callable[[], PipelinedBucket]) -> Future[torch.Tensor]:
        """Begin a bucket, send the one before, and the last one of a step, too; the hook's answer."""
        if bucket.index() == 0:
            # A step that an error ended may have left a bucket.
            self._last = None
        before, self._last = self._last, begin()
        # C++ treats an exception of `set_exception` as a result; an exception raised in `then` is an error.
        mean = self._last.mean.then(lambda done: done.value())
        if before is not None:
            before.send()
        if bucket.is_last():
            self._last.send()
            self._last = None
        return mean
