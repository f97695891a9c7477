"""Any framework's array as host memory: address, size, element type, whether it is writable.

NumPy's `__array_interface__` is tried first, then the buffer protocol, then DLPack: the first two always report whether
an array is read-only, DLPack only since version 1.0 (https://dmlc.github.io/dlpack/latest/c_api.html).
"""

import ctypes
import math
from dataclasses import dataclass, field
from typing import Any

from netsum import Unsupported

_BY_KIND = {
    **{("float", size): f"float{8 * size}" for size in (2, 4, 8)},
    **{("int", size): f"int{8 * size}" for size in (1, 2, 4, 8)},
    **{("uint", size): f"uint{8 * size}" for size in (1, 2, 4, 8)},
    **{("complex", size): f"complex{8 * size}" for size in (8, 16)},
    ("bfloat", 2): "bfloat16",
    ("bool", 1): "bool",
}
_ARRAY_KINDS = {"f": "float", "i": "int", "u": "uint", "b": "bool", "c": "complex"}
_BUFFER_KINDS = {
    **dict.fromkeys("efd", "float"),
    **dict.fromkeys("bhilqn", "int"),
    **dict.fromkeys("BHILQNc", "uint"),
    "?": "bool",
}
_DLPACK_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_DLPACK_CPU = (1, 3, 11)
"""Devices whose memory the host can read: CPU, and host memory pinned for CUDA or ROCm."""
_DLPACK_READ_ONLY = 1
_NEVER_WRITTEN = ("jax", "jaxlib", "tensorflow")
"""Packages with immutable arrays whose DLPack capsules do not report them as read-only."""


@dataclass(frozen=True, slots=True)
class Memory:
    """`count` elements of `dtype` at `address`, dense and in row-major order; valid as long as this object lives.

    dtype: a name such as float32, or a description of a type that can be moved but not added.
    """

    address: int
    count: int
    itemsize: int
    dtype: str
    shape: tuple[int, ...]
    writable: bool
    owner: object = field(repr=False)

    @property
    def nbytes(self) -> int:
        return self.count * self.itemsize

    @property
    def span(self) -> tuple[int, int]:
        """(address, bytes)."""
        return self.address, self.nbytes

    def parts(self, number: int, operation: str) -> list[tuple[int, int]]:
        """(address, elements) of `number` equal parts. Raises ValueError if the array is not divisible."""
        if self.count % number:
            raise ValueError(f"netsum {operation}: {self.count} elements cannot be cut into {number} equal parts")
        each = self.count // number
        return [(self.address + i * each * self.itemsize, each) for i in range(number)]


def memory(array: object, operation: str, written: bool = False) -> Memory:
    """The memory of `array`. operation: for errors. written: whether the operation writes it.

    Raises Unsupported for objects that are no arrays, device memory, arrays with gaps, and read-only arrays to be
    written.
    """
    found = _by_interface(array, operation) or _by_buffer(array, operation) or _by_dlpack(array, operation)
    if found is None:
        raise Unsupported(
            f"netsum {operation}: {type(array).__name__} is no array: it has no __array_interface__, "
            f"no buffer and no __dlpack__"
        )
    if written and not found.writable:
        raise Unsupported(
            f"netsum {operation}: the {type(array).__name__} is read-only; pass a copy that can be written, or out="
        )
    return found


def _by_interface(array: Any, operation: str) -> Memory | None:
    try:
        # The attribute is computed: torch raises for a tensor that requires a gradient or is on a device.
        interface = None if _package(array) == "torch" else array.__array_interface__
    except (AttributeError, TypeError, ValueError):
        return None
    if interface is None:
        return None
    shape, typestr = tuple(interface["shape"]), interface["typestr"]
    itemsize = int(typestr[2:])
    strides = interface.get("strides")
    _check_dense(shape, strides, itemsize, operation)
    address, read_only = interface["data"]
    dtype = _name(_ARRAY_KINDS.get(typestr[1], ""), itemsize, typestr)
    if typestr[0] == ">" and itemsize > 1:
        dtype = f"big-endian {dtype}"
    elif typestr[1] == "V":
        # Types that NumPy itself lacks, such as ml_dtypes' bfloat16, appear as void in the interface.
        dtype = getattr(getattr(array, "dtype", None), "name", typestr)
    return Memory(address, math.prod(shape), itemsize, dtype, shape, not read_only, array)


def _package(array: object) -> str:
    return type(array).__module__.partition(".")[0]


class _PyBuffer(ctypes.Structure):
    """Py_buffer. Source: CPython, Include/pybuffer.h."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def _by_buffer(array: Any, operation: str) -> Memory | None:
    try:
        view = memoryview(array)
    except (TypeError, ValueError, BufferError, RuntimeError, NotImplementedError):
        return None
    if not view.c_contiguous:
        raise _gaps(operation)
    # The view keeps the buffer exported; a second export yields the address, which a memoryview does not.
    raw = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(raw), 0)
    address = raw.buf or 0
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(raw))
    code = view.format.lstrip("@=<")
    dtype = _name(_BUFFER_KINDS.get(code, ""), view.itemsize, view.format)
    count = view.nbytes // view.itemsize if view.itemsize else 0
    return Memory(address, count, view.itemsize, dtype, tuple(view.shape or ()), not view.readonly, view)


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _by_dlpack(array: object, operation: str) -> Memory | None:
    if not hasattr(array, "__dlpack__"):
        return None
    if hasattr(array, "__dlpack_device__") and int(array.__dlpack_device__()[0]) not in _DLPACK_CPU:
        raise Unsupported(f"netsum {operation}: the {type(array).__name__} is not in host memory; pass a copy that is")
    try:
        capsule = array.__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = array.__dlpack__()
    if _capsule_is(capsule, b"dltensor_versioned"):
        managed = _DLManagedTensorVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise Unsupported(f"netsum {operation}: DLPack version {managed.major} is not known")
        tensor, writable = managed.tensor, not managed.flags & _DLPACK_READ_ONLY
    else:
        tensor, writable = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor")), True
    itemsize = (tensor.bits * tensor.lanes + 7) // 8
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] * itemsize for i in range(tensor.ndim)) if tensor.strides else None
    _check_dense(shape, strides, itemsize, operation)
    kind = _DLPACK_KINDS.get(tensor.code, "") if tensor.lanes == 1 else ""
    dtype = _name(kind, itemsize, f"DLPack type {tensor.code} of {tensor.bits} bits")
    # A capsule that has not been consumed frees the tensor when it is dropped: it is the owner.
    address = (tensor.data or 0) + tensor.byte_offset
    writable = writable and _package(array) not in _NEVER_WRITTEN
    return Memory(address, math.prod(shape), itemsize, dtype, shape, writable, (capsule, array))


def _name(kind: str, itemsize: int, other: str) -> str:
    return _BY_KIND.get((kind, itemsize), other)


def _check_dense(shape: tuple[int, ...], strides: tuple[int, ...] | None, itemsize: int, operation: str) -> None:
    if strides is None or 0 in shape:
        return
    step = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != step:
            raise _gaps(operation)
        step *= length


def _gaps(operation: str) -> Unsupported:
    return Unsupported(f"netsum {operation}: the array is not dense in row-major order; pass a contiguous copy")
