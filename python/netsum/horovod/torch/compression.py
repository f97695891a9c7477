"""Conversion of tensors before they are sent, and back afterwards."""

from typing import Any, Protocol

import torch


class Compressor(Protocol):
    """`compress` returns the tensor to send, and the context that `decompress` needs to restore the original."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]: ...

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor: ...


class NoneCompressor:
    """Tensors are sent unchanged."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> Any:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> Any:
        return tensor


class FP16Compressor:
    """Floating-point tensors are sent as float16."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> Any:
        return (tensor.type(torch.float16) if tensor.dtype.is_floating_point else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> Any:
        return tensor.type(context) if context.is_floating_point else tensor


class Compression:
    """The available compressors, for `compression=…`."""

    none = NoneCompressor
    fp16 = FP16Compressor
