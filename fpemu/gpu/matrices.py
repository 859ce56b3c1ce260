"""Matrices in the GPU's memory: anybody's arrays as a pointer, a shape and strides, and results in the same kind."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.gpu import callers, compiler, device, dlpack


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


def take(X: Any, who: str) -> Matrix | Any:
    """A GPU's array as a Matrix; anything else as it is, a torch tensor of the CPU's as a NumPy array.

    Raises
    ------
    InputError
        An array of another GPU, or of a kind that cannot be read.
    """
    if is_torch(X):
        X = X.detach()
        if X.device.type == "cpu":
            return (X.float() if X.dtype.is_floating_point and X.dtype.itemsize < 4 else X).numpy()
        if X.device.type != "cuda":
            raise InputError(f"{who} lies on {X.device}: fpemu.gpu takes arrays of the CPU and of an NVIDIA GPU")
        X = X.float() if X.dtype.is_floating_point and X.dtype.itemsize < 4 else X
        dtype = np.dtype(str(X.dtype).removeprefix("torch."))
        found = Matrix(X.data_ptr(), dtype, tuple(X.shape), tuple(X.stride()), X)
    elif hasattr(X, "__cuda_array_interface__"):
        found = _from_interface(X, X.__cuda_array_interface__, who)
    elif not isinstance(X, np.ndarray) and dlpack.on_gpu(X):
        found = Matrix(*dlpack.read(X, who), X)
    else:
        return X
    return _checked(found, who)


def is_torch(X: Any) -> bool:
    """Whether something is a torch tensor; torch is not imported for it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(X, getattr(torch, "Tensor", ()))


def _from_interface(X: Any, told: dict[str, Any], who: str) -> Matrix:
    dtype, shape = np.dtype(told["typestr"]), tuple(told["shape"])
    steps = told.get("strides") or tuple(dtype.itemsize * n for n in _packed(shape))
    if any(step % dtype.itemsize for step in steps):
        raise InputError(f"{who} has strides of {tuple(steps)} bytes: they are no multiples of its {dtype}")
    return Matrix(int(told["data"][0] or 0), dtype, shape, tuple(step // dtype.itemsize for step in steps), X)


def _checked(X: Matrix, who: str) -> Matrix:
    """`X` on this GPU, without negative strides."""
    if not X.pointer or 0 in X.shape:
        return X
    where = callers.ordinal(X.pointer)
    if where != 0:
        raise InputError(f"{who} lies on GPU {where}, and fpemu.gpu runs on GPU 0: "
                         "bring it there, or choose the GPU by CUDA_VISIBLE_DEVICES")  # fmt: skip
    return copy(X) if any(step < 0 for step in X.strides) and len(X.shape) > 1 else X


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
    own = isinstance(X.owner, device.Buffer) and X.owner.pointer == X.pointer and X.strides == _packed(X.shape)
    same = X if own else copy(X)
    assert isinstance(same.owner, device.Buffer)
    return same.owner.array(X.shape, X.dtype)


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
    elif type(X).__module__.partition(".")[0] == "cupy":
        made = sys.modules["cupy"].empty(shape, name)
    else:
        made = Array(empty(shape, dtype))
    return take(made, "D"), made


def as_torch(x: NDArray[Any]) -> Any:
    """A NumPy array as a tensor of the CPU's."""
    return sys.modules["torch"].from_numpy(x)


def overlap(X: Matrix, Y: Matrix) -> bool:
    """Whether two stacks may share memory: their first and last bytes are looked at."""
    if 0 in X.shape or 0 in Y.shape:
        return False
    (x, x_end), (y, y_end) = (_extent(Z) for Z in (X, Y))
    return x < y_end and y < x_end


def _extent(X: Matrix) -> tuple[int, int]:
    last = sum((n - 1) * step for n, step in zip(X.shape, X.strides, strict=True))
    return X.pointer, X.pointer + (last + 1) * X.dtype.itemsize


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
    """``kernels/moving.cu``"""
    return device.Module(compiler.kernel_source("moving.cu"), name="moving.cu")


def copy(X: Matrix, to: Matrix | None = None) -> Matrix:
    """`X` in memory of its own, C-contiguous, or in `to`, of the same shape and width; only queued."""
    to = empty(X.shape, X.dtype) if to is None else to
    shape = (X.count, *(1, 1, *X.shape)[-2:])
    if 0 not in shape:
        sizes = tuple(np.int64(n) for n in shape)
        module().launch(
            f"copy{X.dtype.itemsize}", blocks(prod(shape)), 256, np.uint64(X.pointer), np.uint64(to.pointer),
            table(X), table(to), *sizes, *_steps(X), *_steps(to), wait=False,
        )  # fmt: skip
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
