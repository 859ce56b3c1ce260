"""Matrices in the GPU's memory: anybody's arrays as a pointer, a shape and strides, and results in the same kind."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.gpu.runtime import callers, compiler, device, dlpack
from fpemu.gpu.runtime.callers import is_torch

_WIDTHS = (1, 2, 4, 8)  # bytes of the entries that kernels/strided_copy.cu copies
_WORK: Any = 10_000  # of `numpy.shares_memory`


@dataclass(frozen=True, eq=False)
class Matrix:
    """A stack of matrices in the GPU's memory.

    Parameters
    ----------
    pointer : int
        Address of the element (0, ..., 0).
    dtype : np.dtype
    shape : tuple of int
        (..., rows, columns).
    strides : tuple of int
        In elements, one an axis; 0 where an axis is broadcast.
    owner : object
        Keeps the memory alive.
    """

    pointer: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    owner: object = None

    @property
    def nbytes(self) -> int:
        """Bytes of the entries, each counted once however often it is broadcast."""
        return self.dtype.itemsize * prod(n for n, step in zip(self.shape, self.strides, strict=True) if step)

    @property
    def count(self) -> int:
        """Matrices in the stack."""
        return prod(self.shape[:-2])

    def offsets(self, lead: tuple[int, ...] | None = None) -> NDArray[np.int64]:
        """Where each matrix begins, in elements from the pointer, for the leading axes broadcast to `lead`."""
        found = np.zeros((), np.int64)
        for n, step in zip(self.shape[:-2], self.strides[:-2], strict=True):
            found = found[..., None] + np.arange(n, dtype=np.int64) * step
        return np.ascontiguousarray(np.broadcast_to(found, self.shape[:-2] if lead is None else lead).reshape(-1))

    def index(self, lead: tuple[int, ...]) -> NDArray[np.int64]:
        """The number of the matrix that each product of a batch of shape `lead` takes."""
        numbers = np.arange(self.count, dtype=np.int64).reshape(self.shape[:-2])
        return np.ascontiguousarray(np.broadcast_to(numbers, lead).reshape(-1))

    def broadcast(self, shape: tuple[int, ...]) -> Matrix:
        """The same memory with axes of stride 0 where `shape` has more."""
        missing = len(shape) - len(self.shape)
        steps = [0] * missing + [s if n > 1 else 0 for n, s in zip(self.shape, self.strides, strict=True)]
        return Matrix(self.pointer, self.dtype, shape, tuple(steps), self.owner)


# --- what users pass


def take(X: Any, who: str, *, write: bool = False) -> Matrix | Any:
    """A GPU's array as a Matrix; anything else as it is, torch tensors and DLPack's of the CPU as NumPy arrays.

    Parameters
    ----------
    X, who
        An argument and its name.
    write : bool
        It will be written: its own memory is given, never a copy.

    Raises
    ------
    InputError
        An array of another GPU, or of a kind that cannot be read, or not be written.
    """
    if is_torch(X):
        found = _from_torch(X, who, write)
        if not isinstance(found, Matrix):
            return found
    elif hasattr(X, "__cuda_array_interface__"):
        found = _from_interface(X, X.__cuda_array_interface__, who, write)
    elif isinstance(X, np.ndarray) or not hasattr(X, "__dlpack__"):
        return X
    elif dlpack.on_gpu(X):
        found = Matrix(*dlpack.read(X, who))
    else:
        return X if hasattr(X, "__array__") else dlpack.of_cpu(X, who)
    if not found.pointer or 0 in found.shape:
        return found
    where = callers.ordinal(found.pointer)
    if where != 0:
        raise InputError(
            f"{who} lies on GPU {where}, and fpemu.gpu runs on GPU 0: "
            "bring it there, or choose the GPU by CUDA_VISIBLE_DEVICES"
        )
    backwards = len(found.shape) > 1 and any(step < 0 for step in found.strides)
    if write or not backwards or found.dtype.itemsize not in _WIDTHS:
        return found
    callers.wait_for(X)
    return copy(found)


def _from_torch(X: Any, who: str, write: bool) -> Matrix | NDArray[Any]:
    """A tensor; narrower numbers than fp32, some of which NumPy does not have, as fp32."""
    X = X.detach()
    if X.device.type not in ("cpu", "cuda"):
        raise InputError(f"{who} lies on {X.device}: fpemu.gpu takes arrays of the CPU and of an NVIDIA GPU")
    if str(X.layout) != "torch.strided" or X.is_quantized:
        raise InputError(f"{who} is a tensor of {X.layout} and {X.dtype}: give a dense one of plain numbers")
    if not write:
        given, X = X, X.resolve_neg()  # imag of conj() is a view whose signs are the other ones
        X = X.float() if X.dtype.is_floating_point and X.dtype.itemsize < 4 else X
        if X is not given:
            callers.wait_for(X)  # torch converts on its own stream
    elif X.is_neg():
        raise InputError(f"{who} is a view with the signs turned: give a tensor of its own memory")
    if X.device.type == "cpu":
        return np.asarray(X.resolve_conj().numpy())
    name = str(X.dtype).removeprefix("torch.")
    dtype = np.dtype(name if hasattr(np, name) or name == "bool" else f"V{X.dtype.itemsize}")
    return Matrix(X.data_ptr(), dtype, tuple(X.shape), tuple(X.stride()), X)


def _from_interface(X: Any, told: dict[str, Any], who: str, write: bool) -> Matrix:
    dtype, shape = np.dtype(told["typestr"]), tuple(told["shape"])
    steps = told.get("strides") or tuple(dtype.itemsize * n for n in _packed(shape))
    if any(step % dtype.itemsize for step in steps):
        raise InputError(f"{who} has strides of {tuple(steps)} bytes: they are no multiples of its {dtype}")
    if told.get("mask") is not None:
        raise InputError(f"{who} is a masked array: fill in what is masked")
    pointer, sealed = told["data"]
    if write and sealed:
        raise InputError(f"{who} is read-only: give an array that can be written")
    return Matrix(int(pointer or 0), dtype, shape, tuple(step // dtype.itemsize for step in steps), X)


def same_place(operands: dict[str, Any]) -> bool:
    """Whether operands as `take` gives them are on the GPU, all of them, or none.

    Raises
    ------
    InputError
        If some are and some are not.
    """
    there = {who: isinstance(X, Matrix) for who, X in operands.items() if X is not None}
    if any(there.values()) and not all(there.values()):
        here, gpu = (" and ".join(who for who, on in there.items() if on == side) for side in (False, True))
        raise InputError(f"{here} in the CPU's memory and {gpu} on the GPU: bring them to one of the two")
    return any(there.values())


# --- to and fro


def upload(x: NDArray[Any]) -> Matrix:
    """A copy of a NumPy array on the GPU, its layout kept where that costs no more than twice its bytes."""
    steps = x.strides
    if x.size and all(s >= 0 and s % x.itemsize == 0 for s in steps):
        low, high = np.lib.array_utils.byte_bounds(x)
        if high - low <= 2 * x.nbytes:
            flat = np.lib.stride_tricks.as_strided(x, ((high - low) // x.itemsize,), (x.itemsize,), writeable=False)
            buffer = device.Buffer.of(flat)
            return Matrix(buffer.pointer, x.dtype, x.shape, tuple(s // x.itemsize for s in steps), buffer)
    x = np.ascontiguousarray(x)
    buffer = device.Buffer.of(x)
    return _contiguous(buffer, x.shape, x.dtype)


def download(X: Matrix) -> NDArray[Any]:
    """A copy as a NumPy array; it waits for all that was queued."""
    if 0 in X.shape:
        return np.zeros(X.shape, X.dtype)
    same = X if X.strides == _packed(X.shape) else copy(X)
    return device.fetch(same.pointer, X.shape, X.dtype)


def empty(shape: tuple[int, ...], dtype: Any) -> Matrix:
    """Memory for a result, C-contiguous; the owner is a Buffer."""
    dtype = np.dtype(dtype)
    return _contiguous(device.Buffer(prod(shape) * dtype.itemsize), shape, dtype)


def _contiguous(buffer: device.Buffer, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Matrix:
    return Matrix(buffer.pointer, dtype, shape, _packed(shape), buffer)


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a C-contiguous array, in elements."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def like(X: Any, shape: tuple[int, ...], dtype: Any) -> tuple[Matrix, Any]:
    """Memory on the GPU for a result of the kind of a caller's array, and the array itself: CuPy, torch or `Array`."""
    name = np.dtype(dtype).name
    if is_torch(X):
        torch = sys.modules["torch"]
        made = torch.empty(shape, dtype=getattr(torch, name), device=X.device)
    elif callers.is_cupy(X):
        made = sys.modules["cupy"].empty(shape, name)
    else:
        made = Array(empty(shape, dtype))
    return take(made, "D", write=True), made


def as_torch(x: NDArray[Any]) -> Any:
    """A NumPy array as a tensor of the CPU's."""
    return sys.modules["torch"].from_numpy(x)


def overlap(X: Matrix, Y: Matrix) -> bool:
    """Whether two stacks share memory; True also where that is too hard to tell."""
    if 0 in X.shape or 0 in Y.shape:
        return False
    x, y = (_imagined(Z) for Z in (X, Y))
    try:
        return bool(np.shares_memory(x, y, max_work=_WORK))
    except np.exceptions.TooHardError:
        return True


def _imagined(X: Matrix) -> NDArray[Any]:
    """A NumPy array at the same addresses, never to be looked into."""
    size, code = X.dtype.itemsize, f"V{X.dtype.itemsize}"
    told = {
        "shape": X.shape,
        "strides": tuple(s * size for s in X.strides),
        "typestr": f"|{code}",
        "version": 3,
        "data": (X.pointer, True),
    }
    return np.asarray(SimpleNamespace(__array_interface__=told))


def apart(X: Matrix) -> bool:
    """Whether every entry has a place of its own, as far as strides that grow from axis to axis show it."""
    reached = 0
    for step, n in sorted((step, n) for step, n in zip(X.strides, X.shape, strict=True) if n > 1):
        if step <= reached:
            return False
        reached += (n - 1) * step
    return True


class Array:
    """A result for arrays of other kinds: whoever reads ``__cuda_array_interface__`` can use it."""

    def __init__(self, matrix: Matrix) -> None:
        self._matrix, self.shape, self.dtype = matrix, matrix.shape, matrix.dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        X = self._matrix
        return {"shape": X.shape, "typestr": X.dtype.str, "data": (X.pointer, False), "version": 3, "stream": 1}

    def get(self) -> NDArray[Any]:
        """A copy as a NumPy array."""
        return download(self._matrix)


# --- kernels that move


@lru_cache(maxsize=1)
def module() -> device.Module:
    """``kernels/strided_copy.cu``"""
    return device.Module(compiler.kernel_source("strided_copy.cu"), name="strided_copy.cu")


def copy(X: Matrix, to: Matrix | None = None) -> Matrix:
    """`X` in memory of its own, C-contiguous, or in `to`, of the same shape and width; only queued."""
    to = empty(X.shape, X.dtype) if to is None else to
    shape = (X.count, *(1, 1, *X.shape)[-2:])
    if 0 not in shape:
        sizes = tuple(np.int64(n) for n in shape)
        module().launch(
            f"copy{X.dtype.itemsize}",
            blocks(prod(shape)),
            256,
            np.uint64(X.pointer),
            np.uint64(to.pointer),
            table(X),
            table(to),
            *sizes,
            *_steps(X),
            *_steps(to),
            wait=False,
        )
    return to


def _steps(X: Matrix) -> tuple[np.int64, np.int64]:
    row, column = (0, 0, *X.strides)[-2:]
    return np.int64(row), np.int64(column)


def blocks(threads: int) -> int:
    """Thread blocks of 256 for so many entries, not more than fill a large GPU: kernels go round."""
    return max(1, min(-(-threads // 256), 4096))


def table(X: Matrix, lead: tuple[int, ...] | None = None) -> device.Buffer:
    """`Matrix.offsets` on the GPU, kept between calls."""
    lead = X.shape[:-2] if lead is None else lead
    return _table(X.shape[:-2], X.strides[:-2], lead)


@lru_cache(maxsize=256)
def _table(shape: tuple[int, ...], strides: tuple[int, ...], lead: tuple[int, ...]) -> device.Buffer:
    none = np.dtype(np.float32)
    return device.Buffer.of(Matrix(0, none, (*shape, 1, 1), (*strides, 0, 0)).offsets(lead))


def numbers(values: Iterable[int]) -> device.Buffer:
    """Some int64 on the GPU, kept between calls."""
    return _numbers(tuple(values))


@lru_cache(maxsize=256)
def _numbers(values: tuple[int, ...]) -> device.Buffer:
    return device.Buffer.of(np.array(values, np.int64))


def forget() -> None:
    """Free what is kept between calls."""
    _table.cache_clear()
    _numbers.cache_clear()
