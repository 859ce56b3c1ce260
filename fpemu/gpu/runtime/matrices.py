"""Matrices in the GPU's memory: arrays of any library as pointer, shape and strides, and results of the same kind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.gpu.runtime import callers, compiler, device, modules, plan
from fpemu.gpu.runtime.callers import is_torch
from fpemu.gpu.runtime.counters import check
from fpemu.gpu.runtime.device import current
from fpemu.gpu.runtime.steps import Address, Launch

_WIDTHS = (1, 2, 4, 8, 16)  # bytes of the entries that kernels/strided_copy.cu copies
_WORK: Any = 10_000  # limit of `numpy.shares_memory`
_DEFAULT_STREAM = 1


@dataclass(frozen=True, eq=False)
class Matrix:
    """A stack of matrices in the GPU's memory."""

    pointer: Any  # of the element (0, ..., 0): an integer, or in the layouts of a plan's operands an `Address`
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # (..., rows, columns)
    strides: tuple[int, ...]  # in elements, one per axis; 0 where an axis is broadcast
    owner: object = None  # referenced, so that the memory is not freed

    @property
    def nbytes(self) -> int:
        """Bytes of the entries, without their repetitions by broadcasting."""
        return self.dtype.itemsize * prod(n for n, step in zip(self.shape, self.strides, strict=True) if step)

    @property
    def count(self) -> int:
        """Number of matrices in the stack."""
        return prod(self.shape[:-2])

    def offsets(self, lead: tuple[int, ...] | None = None) -> NDArray[np.int64]:
        """Return the offset of each matrix, in elements, with the leading axes broadcast to `lead`."""
        offsets = np.zeros((), np.int64)
        for n, step in zip(self.shape[:-2], self.strides[:-2], strict=True):
            offsets = offsets[..., None] + np.arange(n, dtype=np.int64) * step
        return np.ascontiguousarray(np.broadcast_to(offsets, self.shape[:-2] if lead is None else lead).reshape(-1))

    def index(self, lead: tuple[int, ...]) -> NDArray[np.int64]:
        """Return the index of the matrix in each product of a batch of shape `lead`."""
        numbers = np.arange(self.count, dtype=np.int64).reshape(self.shape[:-2])
        return np.ascontiguousarray(np.broadcast_to(numbers, lead).reshape(-1))

    def broadcast(self, shape: tuple[int, ...]) -> Matrix:
        """Return the same memory broadcast to a shape, by strides of 0."""
        missing = len(shape) - len(self.shape)
        steps = [0] * missing + [s if n > 1 else 0 for n, s in zip(self.shape, self.strides, strict=True)]
        return Matrix(self.pointer, self.dtype, shape, tuple(steps), self.owner)


# --- arguments


def take(X: Any, name: str, *, write: bool = False, half: bool = False) -> Matrix | Any:
    """Return a GPU array as a Matrix, and anything else unchanged; torch and DLPack arrays of the CPU as NumPy arrays.

    InputError for an array on another GPU, or one that cannot be read or written.

    write : bool
        The array is an output: the Matrix refers to its own memory, never to a copy.
    half : bool
        Whether fp16 tensors stay fp16.
    """
    if is_torch(X):
        matrix = _from_torch(X, name, write, half)
        if not isinstance(matrix, Matrix):
            return matrix
    elif hasattr(X, "__cuda_array_interface__"):
        matrix = _from_interface(X, X.__cuda_array_interface__, name, write)
    elif isinstance(X, np.ndarray) or not hasattr(X, "__dlpack__"):
        return X
    elif (kind := callers.dlpack_device(X)[0]) in callers.CUDA_DEVICES:
        matrix = _from_dlpack(X, name, write)
    elif hasattr(X, "__array__"):
        return X
    elif kind not in callers.CPU_DEVICES:
        raise InputError(f"{name} lies on a device of DLPack's type {kind}: pass an array of the CPU or a CUDA GPU")
    else:
        with _dlpack_errors(name):
            return np.from_dlpack(X)
    if 0 in matrix.shape:
        return matrix
    _check_memory(name, matrix.pointer)
    gpu = callers.index_of(X)
    if gpu != current():
        raise InputError(f"{name} lies on GPU {gpu}, and the call runs on GPU {current()}: copy all arrays to one GPU")
    backwards = len(matrix.shape) > 1 and any(step < 0 for step in matrix.strides)
    if write or not backwards or matrix.dtype.itemsize not in _WIDTHS:
        return matrix
    callers.wait_for(X)
    return copy(matrix)


def _from_torch(X: Any, name: str, write: bool, half: bool) -> Matrix | NDArray[Any]:
    """Convert a tensor; formats narrower than fp32, some of which NumPy lacks, become fp32."""
    X = X.detach()
    if X.device.type not in ("cpu", "cuda"):
        raise InputError(f"{name} lies on {X.device}: fpemu.gpu takes arrays of the CPU and of an NVIDIA GPU")
    if str(X.layout) != "torch.strided" or X.is_quantized:
        raise InputError(f"{name} is a tensor of {X.layout} and {X.dtype}: pass a dense one of plain numbers")
    if 0 not in X.shape:
        _check_memory(name, X.data_ptr())  # before torch converts it
    if not write:
        original, X = X, X.resolve_conj().resolve_neg()  # conj() and its imag are views with negated signs
        narrow = X.dtype.is_floating_point and X.dtype.itemsize < 4 and not (half and str(X.dtype) == "torch.float16")
        X = X.float() if narrow else X
        if X is not original:
            callers.wait_for(X)  # torch converts on its own stream
    elif X.is_neg() or X.is_conj():
        raise InputError(f"{name} is a view with negated signs: pass a copy of the tensor")
    if X.device.type == "cpu":
        return np.asarray(X.numpy())
    kind = str(X.dtype).removeprefix("torch.")
    dtype = np.dtype(kind if hasattr(np, kind) or kind == "bool" else f"V{X.dtype.itemsize}")
    return Matrix(X.data_ptr(), dtype, tuple(X.shape), tuple(X.stride()), X)


def _from_interface(X: Any, interface: dict[str, Any], name: str, write: bool) -> Matrix:
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    steps = interface.get("strides") or tuple(dtype.itemsize * n for n in packed(shape))
    if any(step % dtype.itemsize for step in steps):
        raise InputError(f"{name} has strides of {tuple(steps)} bytes: they are no multiples of its {dtype}")
    if interface.get("mask") is not None:
        raise InputError(f"{name} is a masked array: fill in the masked entries")
    pointer, read_only = interface["data"]
    _check_writable(name, write, read_only)
    return Matrix(int(pointer or 0), dtype, shape, tuple(step // dtype.itemsize for step in steps), X)


def _from_dlpack(X: Any, name: str, write: bool) -> Matrix:
    """Convert an array of a library without ``__cuda_array_interface__``, ready on the default stream."""
    from cuda.core.utils import StridedMemoryView

    with _dlpack_errors(name):
        view = StridedMemoryView.from_dlpack(X, stream_ptr=_DEFAULT_STREAM)
        dtype = view.dtype
    if dtype is None or dtype.kind not in "iufc":
        raise InputError(f"{name} has elements of type {dtype}: pass fp32 or fp64 numbers, or complex ones of these")
    _check_writable(name, write, view.readonly)
    shape = tuple(view.shape)
    return Matrix(int(view.ptr), dtype, shape, tuple(view.strides or packed(shape)), (X, view))


@contextmanager
def _dlpack_errors(name: str) -> Iterator[None]:
    try:
        yield
    except (BufferError, RuntimeError, TypeError, ValueError) as problem:
        raise InputError(f"{name} cannot be read by DLPack: {compiler.first_line(problem)}") from None


def _check_memory(name: str, pointer: int) -> None:
    if not pointer:
        raise InputError(f"{name} has entries and no memory: its storage was freed, so pass an allocated array")


def _check_writable(name: str, write: bool, read_only: bool) -> None:
    if write and read_only:
        raise InputError(f"{name} is read-only: pass an array that can be written")


def same_place(operands: dict[str, Any]) -> bool:
    """Return whether operands from `take` are on the GPU; InputError if some are and some are not."""
    on_device = {name: isinstance(X, Matrix) for name, X in operands.items() if X is not None}
    if any(on_device.values()) and not all(on_device.values()):
        cpu, gpu = (" and ".join(name for name, on in on_device.items() if on == side) for side in (False, True))
        raise InputError(f"{cpu} in the CPU's memory and {gpu} on the GPU: copy them to one of the two")
    return any(on_device.values())


# --- copies


def upload(x: NDArray[Any]) -> Matrix:
    """Copy a NumPy array to the GPU, with its strides where they span at most twice its bytes."""
    steps = x.strides
    if x.size and all(s >= 0 and s % x.itemsize == 0 for s in steps):
        low, high = np.lib.array_utils.byte_bounds(x)
        if high - low <= 2 * x.nbytes:
            flat = np.lib.stride_tricks.as_strided(x, ((high - low) // x.itemsize,), (x.itemsize,), writeable=False)
            buffer = device.Buffer.of(flat)
            return Matrix(buffer.pointer, x.dtype, x.shape, tuple(s // x.itemsize for s in steps), buffer)
    return _contiguous(device.Buffer.of(x), x.shape, x.dtype)


def download(X: Matrix) -> NDArray[Any]:
    """Copy a matrix to a NumPy array after the work queued on the stream of its owner; InputError if it is captured."""
    if 0 in X.shape:
        return np.zeros(X.shape, X.dtype)
    callers.wait_for(X.owner)
    same = X if X.strides == packed(X.shape) else copy(X)
    return device.fetch(same.pointer, X.shape, X.dtype)


def empty(shape: tuple[int, ...], dtype: Any) -> Matrix:
    """Return C-contiguous memory for a result; the owner is a Buffer."""
    dtype = np.dtype(dtype)
    return _contiguous(device.Buffer(prod(shape) * dtype.itemsize), shape, dtype)


def _contiguous(buffer: device.Buffer, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Matrix:
    return Matrix(buffer.pointer, dtype, shape, packed(shape), buffer)


def packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a C-contiguous array, in elements."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def like(X: Any, shape: tuple[int, ...], dtype: Any) -> tuple[Matrix, Any]:
    """Return memory for a result and its array, of the library of X: torch, CuPy, or `Array` for any other."""
    name, nbytes = np.dtype(dtype).name, prod(shape) * np.dtype(dtype).itemsize
    if is_torch(X):
        torch = sys.modules["torch"]
        with allocated(nbytes):
            result = torch.empty(shape, dtype=getattr(torch, name), device=X.device)
    elif callers.is_cupy(X):
        with X.device, allocated(nbytes):
            result = sys.modules["cupy"].empty(shape, name)
    else:
        result = Array(empty(shape, dtype))
    return take(result, "D", write=True), result


@contextmanager
def allocated(nbytes: int) -> Iterator[None]:
    """Raise OutOfMemoryError where another library has too little memory for an array of so many bytes."""
    try:
        yield
    except Exception as problem:
        if "OutOfMemory" not in type(problem).__name__:
            raise
        raise device.OutOfMemoryError(compiler.first_line(problem), nbytes) from None


def overlap(X: Matrix, Y: Matrix) -> bool:
    """Return whether two stacks share memory; True also where NumPy cannot decide it within its limit of work."""
    if 0 in X.shape or 0 in Y.shape or not X.pointer or not Y.pointer:  # matrices of a table have no pointer
        return False
    x, y = (_addresses(Z) for Z in (X, Y))
    try:
        return bool(np.shares_memory(x, y, max_work=_WORK))
    except np.exceptions.TooHardError:
        return True


def _addresses(X: Matrix) -> NDArray[Any]:
    """Return a NumPy array at the same addresses, whose entries must not be read."""
    size = X.dtype.itemsize
    interface = {
        "shape": X.shape,
        "strides": tuple(s * size for s in X.strides),
        "typestr": f"|V{size}",
        "version": 3,
        "data": (X.pointer, True),
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))


def apart(X: Matrix) -> bool:
    """Return whether each stride exceeds the extent of the smaller ones, so that no two entries share an address."""
    extent = 0
    for step, n in sorted((step, n) for step, n in zip(X.strides, X.shape, strict=True) if n > 1):
        if step <= extent:
            return False
        extent += (n - 1) * step
    return True


def check_out(operands: dict[str, Any], shape: tuple[int, ...], dtype: Any, *, rows: bool = False) -> None:
    """Raise InputError for an `out` that does not fit the result, or shares memory with itself or an operand.

    rows : the last axis must be contiguous
    """
    out = operands["out"]
    fits = isinstance(out, Matrix) and out.dtype == dtype and out.shape == shape
    if fits and 0 not in shape:
        fits = apart(out) and (not rows or out.strides[-1] == 1 or shape[-1] == 1)
    if not fits:
        last = " whose last axis is contiguous" if rows else ""
        raise InputError(
            f"out must be an array on the GPU of shape {shape} and dtype {dtype}{last}, without overlapping entries"
        )
    for name, X in operands.items():
        if name != "out" and isinstance(X, Matrix) and overlap(X, out):
            raise InputError(f"out shares memory with {name}: pass separate memory")


class Array:
    """A result for arrays of other libraries, with ``__cuda_array_interface__``."""

    def __init__(self, matrix: Matrix) -> None:
        self._matrix, self.shape, self.dtype, self._index = matrix, matrix.shape, matrix.dtype, current()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        X = self._matrix
        return {"shape": X.shape, "typestr": X.dtype.str, "data": (X.pointer, False), "version": 3, "stream": 1}

    def get(self) -> NDArray[Any]:
        """Copy the array to a NumPy array, after `fpemu.gpu.check`."""
        check()
        with device.entered(self._index):
            return download(self._matrix)


# --- kernels that copy


def module() -> modules.Module:
    """Return the module of ``kernels/strided_copy.cu``."""
    return modules.module(compiler.kernel_source("strided_copy.cu"), "strided_copy.cu")


def copy(X: Matrix, to: Matrix | None = None) -> Matrix:
    """Queue a copy of X to new C-contiguous memory, or to `to`, a Matrix of the same shape and width."""
    to = empty(X.shape, X.dtype) if to is None else to
    plan.queue(*copy_steps(X, to))
    return to


def copy_steps(X: Matrix, to: Matrix) -> list[Launch]:
    """Return the launch that copies X to a matrix of the same shape and width; none for an empty one."""
    shape = (X.count, *(1, 1, *X.shape)[-2:])
    if 0 in shape:
        return []
    tables = X.pointer, to.pointer, table(X), table(to)
    strides = (*(0, 0, *X.strides)[-2:], *(0, 0, *to.strides)[-2:])
    return [module().step(f"copy{X.dtype.itemsize}", blocks(prod(shape)), 256, *tables, *shape, *strides)]


def blocks(threads: int) -> int:
    """Return the number of thread blocks of 256 for some entries, limited to fill a large GPU: each thread loops."""
    return max(1, min(-(-threads // 256), 4096))


def table(X: Matrix, lead: tuple[int, ...] | None = None) -> device.Buffer:
    """Return `Matrix.offsets` on the GPU."""
    return device.Buffer.of(X.offsets(lead))


# --- what a repeated call reads of its arguments


class Read(NamedTuple):
    """The arrays of a call, all on one GPU, without conversions and without validation."""

    key: tuple[Any, ...]  # on which the steps depend: shapes, strides, dtypes, the addresses modulo 16, the GPU's index
    pointers: list[int]  # addresses; 0: no array
    stream: int  # handle of the stream on which the steps are queued: torch's current stream, or CUDA's default stream

    def in_place(self, *matrices: Matrix | None) -> bool:
        """Return whether matrices lie where the arrays do, so that no one with entries is a copy."""
        return all(X is None or X.pointer == at for X, at in zip(matrices, self.pointers, strict=False))


def read(*arrays: Any) -> Read | None:
    """Read the arrays of a call, the first of which is not None.

    The result is None if an array is neither a plain torch tensor nor, in a call without any, an array that states
    CUDA's default stream by ``__cuda_array_interface__``, as CuPy's do; or if it must be converted.
    """
    kinds = _classes(sys.modules.get("torch"))
    return _tensors(arrays, kinds) if arrays[0].__class__ in kinds else _interfaces(arrays)


@lru_cache(maxsize=1)
def _classes(torch: Any) -> tuple[Any, ...]:
    """Return the classes of torch that no subclass changes."""
    return getattr(torch, "Tensor", None), getattr(getattr(torch, "nn", None), "Parameter", None)


def _tensors(arrays: tuple[Any, ...], kinds: tuple[Any, ...]) -> Read | None:
    alignment, index = 0, -1
    values: list[Any] = []
    pointers: list[int] = []
    try:
        for X in arrays:
            if X is None:
                values.append(None)
                pointers.append(0)
            elif X.__class__ in kinds and not X.is_neg() and not X.is_conj():
                if index < 0:
                    index = X.get_device()
                if index < 0 or X.get_device() != index:  # on the CPU, or on different GPUs
                    return None
                pointer = X.data_ptr()
                if not pointer and 0 not in X.shape:  # a storage without memory: `take` raises
                    return None
                values += (X.shape, X.stride(), X.dtype)
                pointers.append(pointer)
                alignment = alignment << 4 | pointer & 15
            else:
                return None
    except (AttributeError, RuntimeError):  # a tensor without strides or memory
        return None
    values += (alignment, index)
    return Read(tuple(values), pointers, callers.stream(index))


def _interfaces(arrays: tuple[Any, ...]) -> Read | None:
    alignment, index = 0, current()
    values: list[Any] = []
    pointers: list[int] = []
    for X in arrays:
        if X is None:
            values.append(None)
            pointers.append(0)
            continue
        interface = None if is_torch(X) else getattr(X, "__cuda_array_interface__", None)
        if interface is None or interface.get("stream") != _DEFAULT_STREAM or interface.get("mask") is not None:
            return None
        pointer, read_only = interface["data"]
        strides = tuple(interface.get("strides") or ())
        if not pointer or (read_only and X is arrays[-1]) or any(step < 0 for step in strides):
            return None
        values += (tuple(interface["shape"]), strides, interface["typestr"])
        pointers.append(int(pointer))
        alignment = alignment << 4 | int(pointer) & 15
    if any(other != index for other in callers.ordinals(*filter(None, pointers))):
        return None
    return Read((*values, alignment, index), pointers, 0)


def facts_of(*matrices: Matrix | None) -> tuple[Any, ...]:
    """Return what steps depend on, for matrices on the current GPU."""
    values: list[Any] = []
    for X in matrices:
        values += (None,) if X is None else (X.shape, X.strides, X.dtype, X.pointer & 15)
    return *values, current()


def new(X: Any, shape: tuple[int, ...], index: int) -> tuple[Any, int]:
    """Return a new array with the kind, the dtype and the GPU of X, and its address."""
    if is_torch(X):
        with allocated(prod(shape) * X.dtype.itemsize):
            D = X.new_empty(shape)
        return D, D.data_ptr()
    with device.entered(index):
        matrix, D = like(X, shape, X.__cuda_array_interface__["typestr"])
    return D, matrix.pointer


def near(pointers: list[int], extents: tuple[int, ...]) -> bool:
    """Return whether the byte range of the last operand meets that of another one, so that they may share memory."""
    first = pointers[-1]
    end = first + extents[-1]
    for pointer, extent in zip(pointers[:-1], extents, strict=False):  # a comprehension costs twice the time
        if pointer < end and first < pointer + extent:
            return True
    return False


def layouts(*operands: Matrix | None) -> dict[str, Any]:
    """Return A, B, C and D, or the first of these, at addresses in their regions, for the steps of a plan."""
    return {
        name: None if X is None else replace(X, pointer=Address(name, alignment=X.pointer % 16), owner=None)
        for name, X in zip("ABCD", operands, strict=False)
    }


def extent(X: Matrix | None) -> int:
    """Return the bytes from the first to the last entry of a matrix without negative strides."""
    if X is None or 0 in X.shape:
        return 0
    return X.dtype.itemsize * (1 + sum((n - 1) * step for n, step in zip(X.shape, X.strides, strict=True)))
