"""What is done to a tensor before it travels, and undone after."""

from typing import Any, Protocol

import torch


class Compressor(Protocol):
    """`compress` gives what travels, and what `decompress` needs to know of the original."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]: ...

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor: ...


class NoneCompressor:
    """Tensors travel as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> Any:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> Any:
        return tensor


class FP16Compressor:
    """Floating-point tensors travel as float16."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> Any:
        return (tensor.type(torch.float16) if tensor.dtype.is_floating_point else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> Any:
        return tensor.type(context) if context.is_floating_point else tensor


class Compression:
    """The kinds there are, for `compression=…`."""

    none = NoneCompressor
    fp16 = FP16Compressor
