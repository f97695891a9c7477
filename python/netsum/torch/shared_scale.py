"""Gradients as 8-bit numbers that switches add: the part of the compression hook for `to` with a colon.

Per bucket, the ranks agree on the largest magnitude of each block of `BLOCK` values, by an allreduce (maximum,
bfloat16). Every rank then rounds its values to numbers with these scales and keeps the rounding errors; a second
allreduce adds the numbers, exactly, as integers. `crates/wire/src/shared_scale.rs` has the arithmetic.

A bucket's numbers are sent after the magnitudes of the next one (`netsum.torch.pipeline`).
"""

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.futures import Future

from netsum._core import SharedScale
from netsum.torch.create import BACKENDS
from netsum.torch.pipeline import BucketPipeline
from netsum.torch.tensors import Staging

if TYPE_CHECKING:
    from netsum.torch.engine import Engine

BLOCK = 256
"""Values that share a scale: its 2 bytes add 0.8 % to a byte per value, and a large value reduces the precision of so
many."""
FORMATS = {
    "int8:int8": ("int8", torch.int8),
    "int8:int16": ("int16_from_int8", torch.int16),
    "e4m3:bf16": ("bfloat16_from_e4m3", torch.bfloat16),
    "e5m2:bf16": ("bfloat16_from_e5m2", torch.bfloat16),
}
"""By `to`: the core's name of the type, and the type of the memory of numbers and sums."""


class SharedScaleSums:
    """Means of buckets over the ranks of a group of backend netsum.

    to: a key of FORMATS. Raises ValueError for a group of another backend, Unsupported for more ranks than the sums
    have room for.
    """

    def __init__(self, group: dist.ProcessGroup, to: str, *, error_feedback: bool) -> None:
        backend = BACKENDS.get(group.group_name)
        if backend is None:
            raise ValueError(f"netsum compression: to={to!r} needs a group of backend netsum")
        self.engine: Engine = backend.engine
        self.group = group
        self.name, self.dtype = FORMATS[to]
        self.scale = SharedScale(self.name, group.size(), BLOCK)
        self.error_feedback = error_feedback
        self._pipeline = BucketPipeline()

    def reduce(self, kept: torch.Tensor, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        """Replace the bucket's gradients by their mean. kept: flat float32 in host memory, the errors of earlier steps.

        Buckets are those of one step in order, at all ranks.
        """
        return self._pipeline.add(bucket, lambda: _Bucket(self, kept, bucket.buffer()))


class _Bucket:
    """One bucket on its way; its magnitudes are sent when it is made."""

    def __init__(self, sums: SharedScaleSums, kept: torch.Tensor, buffer: torch.Tensor) -> None:
        self.sums, self.kept, self.buffer = sums, kept, buffer
        self.mean: Future[torch.Tensor] = Future(devices=[] if buffer.is_cpu else [buffer.device])
        values = buffer.detach().to(device="cpu", dtype=torch.float32)
        self.magnitudes = torch.empty(sums.scale.blocks(kept.numel()), dtype=torch.bfloat16, device="cpu")
        sums.scale.largest(kept.data_ptr(), values.data_ptr(), kept.numel(), self.magnitudes.data_ptr())
        self.agreed: Any = dist.all_reduce(self.magnitudes, dist.ReduceOp.MAX, group=sums.group, async_op=True)

    def send(self) -> None:
        """Round the values and send them; `mean` completes when the sums are here. Blocks until all ranks agree on the
        magnitudes."""
        sums, numel = self.sums, self.kept.numel()
        self.agreed.wait()
        numbers = torch.empty(numel, dtype=sums.dtype, device="cpu")
        sums.scale.round(self.kept.data_ptr(), numel, self.magnitudes.data_ptr(), numbers.data_ptr())
        if not sums.error_feedback:
            self.kept.zero_()
        engine = sums.engine
        part = engine.begun().allreduce(numbers.data_ptr(), numel, sums.name, "sum", 1.0, engine.timeout_s, False)
        work = engine.start([part], Staging(numbers), [numbers])

        def decode(done: Future[Any]) -> None:
            try:
                done.value()
                mean = self.buffer if self._is_plain() else torch.empty(numel, device="cpu")
                sums.scale.mean(numbers.data_ptr(), numel, self.magnitudes.data_ptr(), mean.data_ptr())
                if mean is not self.buffer:
                    self.buffer.copy_(mean)
                self.mean.set_result(self.buffer)
            except BaseException as error:
                self.mean.set_exception(error)

        work.get_future().add_done_callback(decode)

    def _is_plain(self) -> bool:
        return bool(self.buffer.is_cpu and self.buffer.dtype == torch.float32 and self.buffer.is_contiguous())
