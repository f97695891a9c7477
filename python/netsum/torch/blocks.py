"""Gradients of which only blocks travel that are not zero everywhere: a hook of DistributedDataParallel.

    netsum.torch.block_sparse(ddp)

Gradients of large embeddings, of experts that got no tokens, or of layers that a batch did not use are zero for the
most part, in memory as in messages. Per bucket, the ranks agree by an allreduce (maximum, a byte for each block) which
blocks any of them has, and sum those alone; switches add them as they add any tensor. The idea is OmniReduce's (Fei et
al., SIGCOMM 2021), which leaves out a rank's own zero blocks, too; what a rank receives is the same.

Nothing is rounded. A block is zero if all of its bits are, so that NaN and -0.0 travel.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from netsum import Unsupported
from netsum.torch.pipeline import BucketPipeline

BLOCK = 256
"""Values of a block, as OmniReduce's: a byte that says whether it travels is 0.1 % of a block of float32."""
DENSEST = 0.75
"""Share of blocks from which the whole bucket travels: packing costs memory bandwidth, twice."""
WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def block_sparse(ddp: DistributedDataParallel, *, block: int = BLOCK, densest: float = DENSEST) -> "BlockSparseState":
    """Let only blocks of the gradients of `ddp` travel that some rank has; returns the hook's state.

    Every rank calls it, once, with the same numbers. block: values of a block, such as an embedding's width. densest:
    share of a bucket's blocks from which all of them travel. Raises ValueError for numbers out of range, and torch's
    error if `ddp` has a hook already.
    """
    state = BlockSparseState(ddp.process_group, block=block, densest=densest)
    ddp.register_comm_hook(state, block_sparse_hook)
    return state


def block_sparse_hook(state: "BlockSparseState", bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """The mean of a bucket over the ranks; for `ddp.register_comm_hook(state, block_sparse_hook)`."""
    return state.reduce(bucket)


class BlockSparseState:
    """The hook's state, for one DistributedDataParallel.

    blocks, travelled: blocks of all buckets so far, and those that travelled; a bucket's last values, fewer than a
    block, always travel and do not count.
    """

    def __init__(
        self, process_group: dist.ProcessGroup | None = None, *, block: int = BLOCK, densest: float = DENSEST
    ) -> None:
        if block < 1 or not 0 <= densest <= 1:
            raise ValueError(
                f"netsum block_sparse: block={block}, densest={densest}: expected a block of one value or more, and a "
                "share of 0 to 1"
            )
        self.group = process_group or dist.group.WORLD
        self.block, self.densest = block, densest
        self.blocks = self.travelled = 0
        self._pipeline = BucketPipeline()

    def reduce(self, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        """As `block_sparse_hook`."""
        buffer = bucket.buffer()
        if not buffer.is_floating_point():
            raise Unsupported(f"netsum block_sparse: gradients of {buffer.dtype}; it takes real numbers only")
        return self._pipeline.add(bucket, lambda: _Bucket(self, buffer))


class _Bucket:
    """One bucket on its way; what it has is sent when it is made."""

    def __init__(self, state: BlockSparseState, buffer: torch.Tensor) -> None:
        self.state, self.buffer = state, buffer
        self.mean: Future[torch.Tensor] = Future(devices=[] if buffer.is_cpu else [buffer.device])
        whole = buffer.numel() // state.block * state.block
        self.rows, self.rest = buffer[:whole].view(-1, state.block), buffer[whole:]
        self.present = self.rows.view(WORDS[buffer.element_size()]).any(1).to(torch.uint8)
        self.agreed: Any = None
        if self.present.numel():
            self.agreed = dist.all_reduce(self.present, dist.ReduceOp.MAX, group=state.group, async_op=True)

    def send(self) -> None:
        """Send the blocks that any rank has. Blocks until all ranks have said which ones they have."""
        state, count = self.state, self.present.numel()
        if self.agreed is not None:
            self.agreed.wait()
        places = self.present.nonzero().view(-1)
        dense = places.numel() >= state.densest * count
        state.blocks += count
        state.travelled += count if dense else places.numel()
        sent = self.buffer if dense else torch.cat([self.rows[places].view(-1), self.rest])

        def unpack(done: Future[Any]) -> None:
            try:
                done.value()
                sent.div_(state.group.size())
                if not dense:
                    packed = places.numel() * state.block
                    self.rows.index_copy_(0, places, sent[:packed].view(-1, state.block))
                    self.rest.copy_(sent[packed:])
                self.mean.set_result(self.buffer)
            except BaseException as error:
                self.mean.set_exception(error)

        work: Any = dist.all_reduce(sent, group=state.group, async_op=True)
        work.get_future().add_done_callback(unpack)
