"""Batch normalisation whose mean and variance are those of all ranks' batches."""

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from netsum.horovod import basics
from netsum.horovod.basics import Sum
from netsum.horovod.torch.operations import allreduce_async_, synchronize


class SyncBatchNorm(_BatchNorm):
    """As torch.nn.BatchNorm1d to 3d, over the batches of all ranks while training. Input: batch, channels, rest."""

    def _check_input_dim(self, values: torch.Tensor) -> None:
        if values.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions (got {values.dim()})")

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(values)
        if basics.size() == 1 or not (self.training or not self.track_running_stats):
            return super().forward(values)
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked) if self.track_running_stats else 0.0
        return _Normalize.apply(values, self.weight, self.bias, self.running_mean, self.running_var, momentum, self.eps)


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: Any, eps: Any
    ) -> Any:
        axes = [0, *range(2, values.dim())]
        count = torch.tensor([values.numel() / values.shape[1]], dtype=torch.float64, device="cpu")
        double = values.double()
        total = torch.cat([double.sum(axes), (double * double).sum(axes), count])
        total = _summed(total, "sync_batch_norm.forward")
        channels, count = values.shape[1], total[-1]
        mean = total[:channels] / count
        variance = (total[channels:-1] / count - mean * mean).clamp_(min=0)
        if running_mean is not None:
            unbiased = variance * count / (count - 1).clamp_(min=1)
            running_mean.mul_(1 - momentum).add_(mean.to(running_mean.dtype), alpha=momentum)
            running_var.mul_(1 - momentum).add_(unbiased.to(running_var.dtype), alpha=momentum)
        inverse = (variance + eps).rsqrt()
        shape = [1, channels] + [1] * (values.dim() - 2)
        normal = (double - mean.view(shape)) * inverse.view(shape)
        ctx.save_for_backward(normal, inverse, weight)
        ctx.count, ctx.axes, ctx.shape = float(count), axes, shape
        out = normal if weight is None else normal * weight.double().view(shape) + bias.double().view(shape)
        return out.to(values.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        normal, inverse, weight = ctx.saved_tensors
        double, axes, shape = gradient.double(), ctx.axes, ctx.shape
        by_bias, by_weight = double.sum(axes), (double * normal).sum(axes)
        total = _summed(torch.cat([by_bias, by_weight]), "sync_batch_norm.backward")
        all_bias, all_weight = (each.view(shape) / ctx.count for each in total.chunk(2))
        scale = inverse if weight is None else inverse * weight.double()
        back = (double - all_bias - normal * all_weight) * scale.view(shape)
        if weight is None:
            return back.to(gradient.dtype), None, None, None, None, None, None
        return back.to(gradient.dtype), by_weight.to(weight.dtype), by_bias.to(weight.dtype), None, None, None, None


def _summed(values: torch.Tensor, name: str) -> torch.Tensor:
    number = basics.runtime().name(name, None, 0)
    return synchronize(allreduce_async_(values, name=number, op=Sum))
