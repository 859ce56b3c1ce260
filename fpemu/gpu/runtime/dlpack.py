"""Arrays of the GPU through DLPack, for libraries without ``__cuda_array_interface__``: the fields, no copy."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError

_CUDA = (2, 13)  # of DLDeviceType: the GPU's memory, and that which it shares with the processor
_LEGACY_STREAM = 1  # the producer has to have everything ready on CUDA's default stream
_KINDS = {0: "i", 1: "u", 2: "f"}


class _Tensor(ctypes.Structure):
    """DLTensor of DLPack."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


def on_gpu(X: Any) -> bool:
    """Whether an object says by DLPack that it lies on an NVIDIA GPU."""
    asked = getattr(X, "__dlpack_device__", None)
    return asked is not None and int(asked()[0]) in _CUDA


def of_cpu(X: Any, who: str) -> NDArray[Any]:
    """An array of the CPU's memory.

    Raises
    ------
    InputError
        Where the object does not hand itself over.
    """
    with _refused(who):
        return np.from_dlpack(X)


@contextmanager
def _refused(who: str) -> Iterator[None]:
    try:
        yield
    except (BufferError, RuntimeError, TypeError, ValueError) as problem:
        raise InputError(f"{who} cannot be read by DLPack: {str(problem).partition(chr(10))[0]}") from None


def read(X: Any, who: str) -> tuple[int, np.dtype[Any], tuple[int, ...], tuple[int, ...], Any]:
    """Pointer, dtype, shape and strides in elements, and what to keep alive: a capsule may hold a copy of its own.

    Raises
    ------
    InputError
        For elements that NumPy has no name for, and where the object does not hand itself over.
    """
    with _refused(who):
        capsule = X.__dlpack__(stream=_LEGACY_STREAM)  # its destructor gives the tensor back, as nobody consumes it
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    t = ctypes.cast(pointer(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    if t.code not in _KINDS or t.lanes != 1 or t.bits not in (8, 16, 32, 64) or (t.code == 2 and t.bits == 8):
        raise InputError(f"{who} has elements of DLPack's type {t.code} with {t.bits} bits: give fp32 or fp64 numbers")
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] if t.strides else prod(shape[i + 1 :]) for i in range(t.ndim))
    return int(t.data or 0) + t.byte_offset, np.dtype(f"{_KINDS[t.code]}{t.bits // 8}"), shape, strides, (X, capsule)
