"""Gradients sent as bfloat16 or as 8-bit numbers: a communication hook of DistributedDataParallel.

    netsum.torch.compressed(ddp, to="int8")

**Error feedback.** The rounding error of a step is kept and added to the next step's gradients, so that nothing is lost
over the steps: applied updates and kept errors add up to the true gradients. Sources: 1-bit SGD (Seide et al.,
Interspeech 2014); EF-SGD (Karimireddy et al., ICML 2019). Difference: the mean is rounded too, and its rounding error
is fed back as well, by the rank that rounds it.

**bfloat16.** One allreduce, which switches can do; the group adds in float32 and rounds the sum once. That rounding
error, 2^-9 of the sum, is not fed back: no rank knows it.

**8 bits, added by switches** (`to="int8:int8"` and the others with a colon: what a rank sends, and what it gets). All
ranks share the scale of a block, so that sums of the numbers are sums of the values, and switches add integers without
knowing the scale. `netsum.torch.shared_scale` has the details. A block with a value that is not finite is NaN at all
ranks.

**8 bits, added by hosts** (`to="int8"`). Each rank owns a share of the bucket. All ranks send their values of a share
to its owner, which adds them as float32 in rank order, divides, rounds the mean to 8 bits and sends it to all. Every
block of at most `BLOCK` values has a scale of its own. The traffic is a quarter of float32's, and does not use
switches.

With bfloat16 and `to="int8"`, values that are not finite are sent unchanged to every rank. They leave no rounding
error.
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from netsum import Unsupported
from netsum.torch.shared_scale import FORMATS, SharedScaleSums

BLOCK = 1024
"""The most values that share a scale: its 4 bytes add 0.4 %, and a large value reduces the precision of at most so
many."""
LEVELS = 126
"""A finite value is -126…126 steps of its block's scale. The three remaining codes mark values that are not finite.

Not 127: 127 · (largest / 127) overflows for the largest float32 there is, and 126 · (largest / 126) does not.
"""
POSITIVE, NEGATIVE, NAN = 127, -127, -128
KINDS = ("bf16", "int8", *FORMATS)


def compressed(
    ddp: DistributedDataParallel, to: str = "int8", *, error_feedback: bool = True, timeout: timedelta | None = None
) -> "CompressionState":
    """Compress the gradients of `ddp` to `to`; returns the hook's state. Every rank calls it, once.

    to: "bf16"; "int8", added by hosts; "int8:int8", "int8:int16", "e4m3:bf16" or "e5m2:bf16": what a rank sends, and
    what it gets; added by switches where the group's plan has any. error_feedback: False discards rounding errors, for
    comparisons. timeout: of the second group that "int8" makes; torch's default if None.

    Raises ValueError for another `to`, or if switches are to add for a group of another backend; Unsupported for more
    ranks than sums in 8 bits have room for (127); torch's error if `ddp` has a hook already.
    """
    state = CompressionState(ddp.process_group, to, error_feedback=error_feedback, timeout=timeout)
    ddp.register_comm_hook(state, compression_hook)
    return state


def compression_hook(state: "CompressionState", bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """The mean of a bucket over the ranks, compressed by `state`; for `ddp.register_comm_hook(state,
    compression_hook)`.

    Real gradients of any float type; they are converted to float32. All ranks get identical bits.
    """
    return state.reduce(bucket)


class CompressionState:
    """The hook's state between steps, for one DistributedDataParallel.

    It belongs to the present ranks of the group: after a change, make a new one. It is not part of a checkpoint;
    without it one step's rounding error is lost. With a GradScaler, the kept errors have the scale of their step.
    Parameters without a gradient at any rank at a step (`find_unused_parameters`) lose their kept errors then.

    groups: the process groups that carry the gradients, so that `netsum.torch.stats(group)` counts their bytes.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        to: str = "int8",
        *,
        error_feedback: bool = True,
        timeout: timedelta | None = None,
    ) -> None:
        if to not in KINDS:
            raise ValueError(f"netsum compression: to={to!r}: expected one of {', '.join(KINDS)}")
        group = process_group or dist.group.WORLD
        self.to = to
        self.error_feedback = error_feedback
        self.groups = [group]
        self.rank, self.size = group.rank(), group.size()
        self._kept: dict[torch.nn.Parameter, Kept] = {}
        self._sums = None
        if to in FORMATS and self.size > 1:
            self._sums = SharedScaleSums(group, to, error_feedback=error_feedback)
        self._refuses_nan = os.environ.get("TORCH_DIST_NAN_CHECK", "0") == "1"
        if to == "int8" and self.size > 1:
            # Means are sent, by a thread of their own, while gradients of other buckets are. They have their own group,
            # since the operations of one group must be called in the same order at all ranks.
            ranks, backend = dist.get_process_group_ranks(group), dist.get_backend_config(group)
            options = {"backend": backend, "timeout": timeout, "use_local_synchronization": True}
            self.groups.append(dist.new_group(ranks, **options))
            self._thread = ThreadPoolExecutor(1, "netsum-means")

    def reduce(self, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        """As `compression_hook`."""
        buffer = bucket.buffer()
        if not buffer.is_floating_point():
            raise Unsupported(f"netsum compression: gradients of {buffer.dtype}; it rounds real numbers only")
        if self.groups[0].size() != self.size:
            raise RuntimeError(
                f"netsum compression: made for {self.size} ranks, the group has {self.groups[0].size()} now; "
                "register a new state"
            )
        if self.size == 1 or (not buffer.numel() and self._sums is None):
            return _done(buffer)
        if self._refuses_nan and bool(buffer.isnan().any()):
            # Torch's own check inspects numbers, and would inspect the bytes of their codes.
            raise RuntimeError(
                f"netsum compression: NaN in the gradients of bucket {bucket.index()} at rank {self.rank}"
            )
        kept = self._kept_of(bucket)
        if self._sums is not None:
            return self._sums.reduce(kept.own.view(-1), bucket)
        kept.take(buffer)
        return self._reduce_bf16(kept, buffer) if self.to == "bf16" else self._reduce_int8(kept, buffer)

    def kept_of(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """This rank's kept error of a parameter; its mean over the ranks is the part not applied yet.

        float32, of the parameter's shape, a copy; None before the first step.
        """
        kept = self._kept.get(parameter)
        return None if kept is None else kept.lacking()[kept.span_of(parameter)].view(parameter.shape)

    def _kept_of(self, bucket: dist.GradBucket) -> "Kept":
        """The kept errors of a bucket's parameters, in its order; DDP makes other buckets after the first step."""
        parameters = tuple(bucket.parameters())
        present = self._kept.get(parameters[0])
        if present is None or not present.is_of(parameters):
            shape = (1, 1, bucket.buffer().numel())
            if self.to == "int8":
                shape = shape_of(bucket.buffer().numel(), self.size)
            device = bucket.buffer().device if self._sums is None else torch.device("cpu")
            present = Kept(parameters, shape, self.rank, device)
            present.inherit({each: self._kept[each] for each in parameters if each in self._kept})
            self._kept |= dict.fromkeys(parameters, present)
        return present

    def _reduce_bf16(self, kept: "Kept", buffer: torch.Tensor) -> Future[torch.Tensor]:
        sent = kept.own.view(-1).to(torch.bfloat16)
        self._keep(kept.own, sent.view(kept.own.shape))

        def divide(done: Future[Any]) -> torch.Tensor:
            return buffer.copy_(done.value()[0].to(torch.float32).div_(self.size))

        return dist.all_reduce(sent, group=self.groups[0], async_op=True).get_future().then(divide)

    def _reduce_int8(self, kept: "Kept", buffer: torch.Tensor) -> Future[torch.Tensor]:
        sent = encode(kept.own)
        self._keep(kept.own, decode(sent, kept.own.shape))
        received = torch.empty_like(sent)
        arrival = dist.all_to_all_single(received, sent, group=self.groups[0], async_op=True)
        mean = _future_on(buffer)
        # On a device, all of it is queued on the stream on which its memory was allocated.
        stream = nullcontext() if buffer.is_cpu else torch.accelerator.current_stream(buffer.device)

        def send_the_mean() -> None:
            try:
                with stream:
                    arrival.wait()
                    mean.set_result(self._spread(kept, received, buffer))
            except BaseException as error:
                mean.set_exception(error)

        # C++ treats an exception of `set_exception` as a result; an exception raised in `then` is an error.
        answer = mean.then(lambda done: done.value())
        self._thread.submit(send_the_mean)
        return answer

    def _spread(self, kept: "Kept", received: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        """The owner's part: add the received values, round the mean, send it to all; fills the bucket with all owners'
        means."""
        assert kept.of_mean is not None, "the owner keeps what rounding took from its means"
        share = kept.of_mean.shape
        total = decode(received[:1], share)
        for rank in range(1, self.size):
            total += decode(received[rank : rank + 1], share)
        kept.of_mean += total.div_(self.size)
        mine = encode(kept.of_mean)
        self._keep(kept.of_mean, decode(mine, share))
        # `received` has been read, and has room for the means of all owners.
        dist.all_gather_into_tensor(received, mine, group=self.groups[1])
        return buffer.copy_(decode(received, kept.own.shape).view(-1)[: buffer.numel()])

    def _keep(self, values: torch.Tensor, rounded: torch.Tensor) -> None:
        """Store the rounding errors in `values`; zero for values that are not finite, or without error feedback."""
        if self.error_feedback:
            values.sub_(rounded).nan_to_num_(0.0, 0.0, 0.0)
        else:
            values.zero_()


class Kept:
    """The rounding errors of a bucket's gradients, and of the means of the share that this rank owns.

    own: (owners, blocks, block) float32: the bucket's values in order, padded with zeros. of_mean: (1, blocks, block);
    None if no rank owns a share.
    """

    def __init__(
        self,
        parameters: tuple[torch.nn.Parameter, ...],
        shape: tuple[int, int, int],
        rank: int,
        device: torch.device,
    ) -> None:
        self.parameters = parameters
        self.own = torch.zeros(shape, device=device)
        self.of_mean = torch.zeros(1, *shape[1:], device=device) if shape[0] > 1 else None
        self._rank = rank

    def is_of(self, parameters: tuple[torch.nn.Parameter, ...]) -> bool:
        return list(map(id, parameters)) == list(map(id, self.parameters))

    def take(self, gradients: torch.Tensor) -> None:
        """Add a step's gradients to the kept errors."""
        self.own.view(-1)[: gradients.numel()] += gradients

    def span_of(self, parameter: torch.nn.Parameter) -> slice:
        """The range of a parameter's values in the bucket."""
        start = 0
        for each in self.parameters:
            if each is parameter:
                break
            start += each.numel()
        return slice(start, start + parameter.numel())

    def lacking(self) -> torch.Tensor:
        """All kept errors, flat; the means' errors are included as part of this rank's own; a copy."""
        own = self.own.clone()
        if self.of_mean is not None:
            own[self._rank] += self.of_mean[0] * own.shape[0]
        return own.view(-1)

    def inherit(self, others: dict[torch.nn.Parameter, "Kept"]) -> None:
        """Take over the kept errors of these parameters from other buckets, in which other ranks may own the shares."""
        lacking = {id(other): other.lacking() for other in others.values()}
        for parameter in self.parameters:
            if parameter in others:
                other = others[parameter]
                self.own.view(-1)[self.span_of(parameter)] = lacking[id(other)][other.span_of(parameter)]


def shape_of(count: int, ranks: int) -> tuple[int, int, int]:
    """(owners, blocks, block) for a bucket of `count` values: equal shares, blocks of at most BLOCK, little padding."""
    share = math.ceil(count / ranks)
    blocks = math.ceil(share / BLOCK)
    # Scales precede the values of a share, as float32: shares begin at multiples of 4 bytes.
    block = 4 * math.ceil(share / blocks / 4)
    return ranks, blocks, block


def encode(values: torch.Tensor) -> torch.Tensor:
    """Round to 8 bits: per owner, the scales of its blocks as float32, then a byte per value.

    values: (owners, blocks, block) float32. Returns (owners, blocks · (4 + block)) uint8. To nearest, ties to even. A
    block with no value of 126 · 2^-126 or more has scale 0, and its values are 0: they remain as rounding errors.
    """
    largest = values.abs().amax(dim=2)
    finite = bool(largest.isfinite().all())
    held = values if finite else values.nan_to_num(0.0, 0.0, 0.0)
    if not finite:
        largest = held.abs().amax(dim=2)
    # Subnormal numbers, which some processors flush to zero, would differ between ranks.
    scale = torch.where(largest >= LEVELS * torch.finfo(torch.float32).tiny, largest / LEVELS, 0.0)
    size = values.shape[0], values.shape[1] * (4 + values.shape[2])
    wire = torch.empty(size, dtype=torch.uint8, device=values.device)
    scales, codes = _parts(wire, values.shape)
    scales.copy_(scale)
    codes.copy_(held.div(torch.where(scale > 0, scale, 1.0).unsqueeze(2)).round_())
    if not finite:
        codes[values == math.inf] = POSITIVE
        codes[values == -math.inf] = NEGATIVE
        codes[values.isnan()] = NAN
    return wire


def decode(wire: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
    """Decode the output of `encode`; shape: that of its input."""
    scales, codes = _parts(wire, shape)
    values = codes.to(torch.float32).mul_(scales.unsqueeze(2))
    low, high = codes.aminmax()
    if high > LEVELS or low < -LEVELS:
        values[codes == POSITIVE] = math.inf
        values[codes == NEGATIVE] = -math.inf
        values[codes == NAN] = math.nan
    return values


def _parts(wire: torch.Tensor, shape: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales and the codes of a message, as views: (owners, blocks) float32, (owners, blocks, block) int8."""
    scales = 4 * shape[1]
    return wire[:, :scales].view(torch.float32), wire[:, scales:].view(torch.int8).view(shape)


def _future_on(value: torch.Tensor) -> Future[torch.Tensor]:
    """A future of a tensor of that device; its waiters synchronize with the streams of the thread that completes it."""
    return Future(devices=[] if value.is_cpu else [value.device])


def _done(value: torch.Tensor) -> Future[torch.Tensor]:
    future = _future_on(value)
    future.set_result(value)
    return future
