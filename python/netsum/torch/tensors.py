"""Tensors as host memory: names of element types, staging of tensors that are not dense or not in host memory."""

import math

import torch

from netsum import Unsupported
from netsum.torch.device import DeviceCopies, is_staged, pinned

ELEMENT_NAMES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float64: "float64",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
}
_MOVED_NAMES: dict[torch.dtype, str] = {}


def moved(tensor: torch.Tensor) -> str:
    """The name of any tensor type: ranks that only move data must agree on it."""
    dtype = tensor.dtype
    name = _MOVED_NAMES.get(dtype)
    if name is None:
        name = _MOVED_NAMES[dtype] = str(dtype).removeprefix("torch.")
    return name


# Adding complex numbers is adding pairs; the other operations are not defined on them.
PAIR_OPERATIONS = ("sum", "avg", "premul_sum")


class Staging:
    """The memory of one operation: every tensor it uses, kept alive, and the copies to make at completion.

    device: the copies from and to an accelerator, or None.
    """

    __slots__ = ("copies", "device", "kept")

    def __init__(self, *kept: torch.Tensor) -> None:
        self.kept: list[torch.Tensor] = list(kept)
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.device: DeviceCopies | None = None

    def read(self, tensor: torch.Tensor, operation: str) -> torch.Tensor:
        """A dense tensor with the values of `tensor`: itself if it is dense, else a copy."""
        check_device(tensor, operation)
        if not tensor.is_cpu:
            self.kept.append(tensor)
            tensor = self._device_copies().fetch(tensor)
        elif not is_plain(tensor):
            tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        self.kept.append(tensor)
        return tensor

    def write(self, tensor: torch.Tensor, operation: str) -> torch.Tensor:
        """A dense tensor to receive the values of `tensor`: itself if it is dense, else copied back by `finish`."""
        return self._writable(tensor, operation, filled=False)

    def update(self, tensor: torch.Tensor, operation: str) -> torch.Tensor:
        """As `write`, and initialized with the present values: for operations in place."""
        return self._writable(tensor, operation, filled=True)

    def finish(self) -> None:
        """Copy staged results to the caller's tensors; to those on a device on its current stream. Called once."""
        if self.copies:
            with torch.no_grad():
                for target, staged in self.copies:
                    target.copy_(staged)
        if self.device is not None:
            self.device.finish()

    def follow(self) -> None:
        """Let work that this thread queues on devices from now on see the results that `finish` copies."""
        if self.device is not None:
            self.device.follow()

    def devices(self) -> list[torch.device]:
        """The devices of tensors that are staged."""
        return [] if self.device is None else self.device.devices()

    def _device_copies(self) -> DeviceCopies:
        if self.device is None:
            self.device = DeviceCopies()
        return self.device

    def _writable(self, tensor: torch.Tensor, operation: str, filled: bool) -> torch.Tensor:
        check_device(tensor, operation)
        self.kept.append(tensor)
        if not tensor.is_cpu:
            copies = self._device_copies()
            staged = copies.fetch(tensor) if filled else pinned(tensor)
            copies.give_back(staged, tensor)
            self.kept.append(staged)
            return staged
        if is_plain(tensor):
            return tensor
        staged = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        if filled:
            staged.copy_(tensor.detach())
        self.kept.append(staged)
        self.copies.append((tensor, staged))
        return staged


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the memory of `tensor` holds its values in order, with no lazy conjugation or negation."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def check_device(tensor: torch.Tensor, operation: str) -> None:
    """Raise Unsupported if the values of `tensor` are neither in host memory nor can be copied there."""
    if tensor.layout is torch.strided and (tensor.is_cpu or is_staged(tensor.device)):
        return
    if tensor.layout is torch.strided:
        raise Unsupported(
            f"netsum {operation}: the tensor is on device '{tensor.device}', which is not this process's accelerator, "
            f"and sums are made of host memory; pass `x.cpu()`, or let another backend have that device: "
            f"init_process_group('cpu:netsum,{tensor.device.type}:<its backend>')"
        )
    raise Unsupported(
        f"netsum {operation}: layout {tensor.layout} is not supported; pass `x.to_dense()` "
        f"(sparse tensors can be summed by all_reduce alone)"
    )


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """(address, bytes) of a dense tensor."""
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def elements(tensor: torch.Tensor, operation: str, op: str) -> tuple[int, int, str]:
    """(address, number of elements, name of the element type) of a dense tensor to be reduced."""
    name = ELEMENT_NAMES.get(tensor.dtype)
    if name:
        return tensor.data_ptr(), tensor.numel(), name
    if tensor.is_complex() and op in PAIR_OPERATIONS:
        pairs = torch.view_as_real(tensor)
        if pairs.dtype in ELEMENT_NAMES:
            return pairs.data_ptr(), pairs.numel(), ELEMENT_NAMES[pairs.dtype]
    raise Unsupported(
        f"netsum {operation}: cannot do '{op}' on {tensor.dtype}; "
        f"types that can: {', '.join(sorted(ELEMENT_NAMES.values()))}, and complex for {', '.join(PAIR_OPERATIONS)}"
    )


def equal_spans(tensor: torch.Tensor, parts: int, operation: str) -> list[tuple[int, int]]:
    """`tensor` cut into `parts` equal (address, bytes). Raises ValueError if it is not divisible."""
    if tensor.numel() % parts:
        raise ValueError(f"netsum {operation}: {tensor.numel()} elements cannot be cut into {parts} equal parts")
    address, size = span(tensor)
    step = size // parts
    return [(address + i * step, step) for i in range(parts)]


def split_spans(tensor: torch.Tensor, splits: list[int], parts: int, operation: str) -> list[tuple[int, int]]:
    """`tensor` cut along dimension 0 by `splits` (rows per part; empty means equal parts)."""
    if not splits:
        if tensor.dim() and tensor.size(0) % parts:
            raise ValueError(
                f"netsum {operation}: dimension 0 has {tensor.size(0)} rows, which {parts} ranks cannot share "
                f"equally; pass split sizes"
            )
        return equal_spans(tensor, parts, operation)
    rows = tensor.size(0) if tensor.dim() else 1
    if len(splits) != parts or sum(splits) != rows:
        raise ValueError(
            f"netsum {operation}: split sizes {list(splits)} must be {parts} numbers whose sum is {rows} rows"
        )
    row = math.prod(tensor.shape[1:]) * tensor.element_size()
    spans, address = [], tensor.data_ptr()
    for count in splits:
        spans.append((address, count * row))
        address += count * row
    return spans
