"""Arrays of NumPy and GPU packages as stacks of matrices that the batched kernels read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, prod
from typing import Any

import numpy as np

from fpemu.arguments import LARGEST, integer, integers
from fpemu.batched.layouts import LAYOUTS, halves
from fpemu.errors import InputError
from fpemu.gpu.runtime import callers, device, matrices, recording
from fpemu.gpu.runtime.matrices import Matrix

HALF = np.dtype(np.float16)
STACK = np.dtype([("first", "u8"), ("step", "i8"), ("table", "u8"), ("line", "i8"), ("plane", "i8")])
"""The struct Stack of kernels/batched.cuh"""


@dataclass(frozen=True, eq=False)
class Pointers:
    """A batch of matrices at arbitrary addresses in the GPU's memory, as in cuBLAS' pointer arrays.

    Parameters
    ----------
    addresses : array of uint64 on the GPU
        Addresses of element (0, 0) of each matrix: ``__cuda_array_interface__``, or a torch tensor of int64.
    shape : (int, int)
        Rows and columns of every matrix.
    ld : int
        Elements from one row to the next, at least the number of columns.
    aligned : int
        Bytes that divide every address: 2, 4, 8 or 16; not checked.
    owner : object
        The arrays of the matrices: kept alive, and their streams are waited for.

    Raises
    ------
    InputError
        An invalid shape, ld or alignment.
    """

    addresses: Any
    shape: tuple[int, int]
    ld: int
    aligned: int = 2
    owner: object = None

    def __post_init__(self) -> None:
        rows, columns = integers("Pointers: shape", self.shape, 0, LARGEST, length=2)
        integer("Pointers: ld", self.ld, max(1, columns if rows > 1 else 1), LARGEST)
        if integer("Pointers: aligned", self.aligned) not in (2, 4, 8, 16):
            raise InputError(f"Pointers: aligned = {self.aligned} must be 2, 4, 8 or 16")

    def table(self) -> Matrix:
        """Return the addresses as a contiguous array; InputError if kernels cannot read them."""
        X = self.addresses
        if isinstance(X, device.Buffer):
            return Matrix(X.pointer, np.dtype(np.uint64), (X.nbytes // 8,), (1,), X)
        table = X if isinstance(X, Matrix) else matrices.take(X, "addresses", write=not _read_only(X))
        if not isinstance(table, Matrix) or table.dtype not in (np.uint64, np.int64) or len(table.shape) != 1:
            raise InputError("addresses must be an array of uint64 or int64 with one axis in the GPU's memory")
        if table.shape[0] > 1 and table.strides != (1,):
            raise InputError(f"addresses have strides {table.strides}: they must follow on one another")
        return table


def _read_only(X: Any) -> bool:
    return bool(getattr(X, "__cuda_array_interface__", {}).get("data", (0, False))[1])


@dataclass(frozen=True, eq=False)
class Operand:
    """Matrices of fp16 numbers, or of pairs of them, in the GPU's memory; strides in bytes."""

    first: int  # address of the first element
    shape: tuple[int, ...]  # (..., rows, columns), without the axis of real and imaginary parts
    strides: tuple[int, ...]
    plane: int  # from the real to the imaginary parts
    unit: int  # bytes of an element: 4 where real and imaginary parts are interleaved, otherwise 2
    table: Pointers | None = None
    owner: object = None

    @property
    def transposed(self) -> Operand:
        """The operand with its last two axes exchanged."""
        s, t = self.shape, self.strides
        shape, strides = (*s[:-2], s[-1], s[-2]), (*t[:-2], t[-1], t[-2])
        return Operand(self.first, shape, strides, self.plane, self.unit, self.table, self.owner)

    @property
    def along_columns(self) -> bool | None:
        """Whether rows are contiguous (True), columns (False), or neither (None)."""
        if self.strides[-1] == self.unit or self.shape[-1] <= 1:
            return True
        return False if self.strides[-2] == self.unit or self.shape[-2] <= 1 else None


def take(X: Any, name: str) -> Matrix | Pointers | Any:
    """Return a GPU array of fp16 as a Matrix, a list of them as Pointers, another array as float16 in the CPU's memory.

    An array named "out" is never copied, because it will be written.
    """
    if isinstance(X, Pointers):
        return X
    if isinstance(X, list | tuple) and any(on_gpu := [_on_gpu(x) for x in X]):
        if not all(on_gpu):
            raise InputError(f"{name} is a list of {len(X)} arrays, {sum(on_gpu)} of them on the GPU: copy all there")
        return _pointers([_matrix(x, f"{name}[{i}]", name == "out") for i, x in enumerate(X)], name)
    return _matrix(X, name, name == "out")


def _matrix(X: Any, name: str, write: bool) -> Matrix | Any:
    if matrices.is_torch(X):
        tensor, X = X, X.detach()
        if str(X.layout) != "torch.strided" or X.dtype != sys.modules["torch"].float16:
            raise InputError(f"{name} is a tensor of {X.layout} and {X.dtype}: give a dense one of float16")
        if not write:
            X = X.resolve_neg()
            if X.is_cuda and X.data_ptr() != tensor.data_ptr():
                callers.wait_for(X)  # torch copies on its own stream
        write = True  # otherwise torch's fp16 becomes fp32; strides of torch are never negative
    array = matrices.take(X, name, write=write)
    if not isinstance(array, Matrix):
        return halves(array, name)
    if array.dtype != HALF:
        raise InputError(f"{name} is an array of {array.dtype} on the GPU: give float16")
    return array


def _on_gpu(x: Any) -> bool:
    if matrices.is_torch(x):
        return bool(x.is_cuda)
    return isinstance(x, Matrix) or hasattr(x, "__cuda_array_interface__") or matrices.on_gpu_by_dlpack(x)


def arrays(X: Any) -> list[Any]:
    """Return the arrays of an argument, whose streams are waited for."""
    if isinstance(X, list | tuple):
        return [array for x in X for array in arrays(x)] if any(_on_gpu(x) for x in X) else []
    if isinstance(X, Pointers):
        owners = X.owner if isinstance(X.owner, list | tuple) else (X.owner,)
        return [x for x in (X.addresses, *owners) if _on_gpu(x) and not isinstance(x, Matrix)]
    return [] if X is None or isinstance(X, Matrix) else [X]


def _pointers(arrays: Sequence[Any], name: str) -> Pointers:
    shapes = {(X.shape, X.strides) for X in arrays}
    X = arrays[0]
    if len(shapes) > 1:
        raise InputError(f"{name} is a list of arrays of {len(shapes)} kinds: give matrices of one shape and layout")
    if len(X.shape) != 2:
        raise InputError(f"{name} is a list of arrays of shape {X.shape}: give matrices, with two axes")
    if (X.strides[1] != 1 and X.shape[1] > 1) or (X.shape[0] > 1 and X.strides[0] < X.shape[1]):
        raise InputError(f"{name} is a list of matrices with strides {X.strides}: their rows must be contiguous")
    places = np.array([m.pointer for m in arrays], np.uint64)
    if name == "out" and len(np.unique(places)) < len(places) and 0 not in X.shape:
        raise InputError("out has a matrix twice: pass separate memory for each product")
    shape, aligned = (X.shape[0], X.shape[1]), _aligned(*places.tolist())
    return Pointers(device.Buffer.of(places), shape, max(X.strides[0], X.shape[1], 1), aligned, tuple(arrays))


def view(X: Matrix | Pointers, layout: str | None, name: str) -> Operand:
    """Return a stack of real (layout None) or complex matrices, whether kernels can read it or not."""
    if isinstance(X, Pointers):
        if layout is not None:
            raise InputError(f"{name} is an array of pointers: half-complex products take strided batches")
        return Operand(0, (*X.table().shape, *X.shape), (0, 2 * X.ld, 2), 0, 2, X, X)
    if layout is not None:
        axis = LAYOUTS[layout]
        if len(X.shape) < 3 or X.shape[axis] != 2:
            where = f"its {'last' if axis else 'first'} axis must be the two parts, of length 2"
            raise InputError(f"{name} of shape {X.shape} is not {layout}: {where}")
    result = _operand(X, layout)
    if len(result.shape) < 2:
        raise InputError(f"{name} has shape {X.shape}: it needs two axes or more, the last two those of its matrices")
    return result


def operand(X: Matrix | Pointers, layout: str | None, name: str) -> Operand:
    """Return the same stack, copied if kernels cannot read it, except for "out"."""
    result = view(X, layout, name)
    if isinstance(X, Pointers) or 0 in result.shape:
        return result
    if result.along_columns is None or (result.unit == 4 and not _paired(result, X)):
        if name == "out":
            raise InputError(
                "out must have contiguous rows, and in the interleaved layout both parts of an element in "
                "one aligned word"
            )
        return _operand(matrices.copy(X), layout)
    return result


def _operand(X: Matrix, layout: str | None) -> Operand:
    size = X.dtype.itemsize
    steps = tuple(size * s for s in X.strides)
    if layout == "planar":
        return Operand(X.pointer, X.shape[1:], steps[1:], steps[0], 2, None, X)
    if layout == "interleaved":
        return Operand(X.pointer, X.shape[:-1], steps[:-1], 2, 4, None, X)
    return Operand(X.pointer, X.shape, steps, 0, 2, None, X)


def _paired(operand: Operand, X: Matrix) -> bool:
    """Whether the real and imaginary part of every element are in one aligned word."""
    steps = [step for n, step in zip(operand.shape, operand.strides, strict=True) if n > 1]
    return X.strides[-1] == 1 and operand.first % 4 == 0 and all(step % 4 == 0 for step in steps)


def stack(X: Operand, lead: tuple[int, ...], along_columns: bool) -> tuple[np.ndarray[Any, Any], int, object]:
    """Return the struct of a stack broadcast to a batch, the alignment of its lines in bytes, and its owner."""
    line = X.strides[-2 if along_columns else -1]
    lines = X.shape[-2 if along_columns else -1]
    struct = np.zeros(1, STACK)
    struct["line"], struct["plane"], struct["first"] = line, X.plane, X.first
    odd = [line] if lines > 1 else []
    odd += [X.plane] if X.unit == 2 else []
    if 0 in lead or 0 in X.shape:
        return struct, 16, X
    if X.table is not None:
        table = X.table.table()
        if prod(lead) != prod(table.shape):  # kernels index the table by the product
            table = matrices.copy(table.broadcast(lead))
        struct["table"] = table.pointer
        return struct, _aligned(X.table.aligned, *odd), (X.table, table)
    count = prod(lead)
    shape = X.shape[:-2]
    missing = len(lead) - len(shape)
    steps = [0] * missing + [s if n > 1 else 0 for n, s in zip(shape, X.strides[:-2], strict=True)]
    axes = [(n, s) for n, s in zip(lead, steps, strict=True) if n > 1]
    even = all(s == m * t for (_, s), (m, t) in pairwise(axes))
    if even:
        struct["step"] = axes[-1][1] if axes else 0
        return struct, _aligned(X.first, *odd, *([int(struct["step"][0])] if count > 1 else [])), X
    recording.refuse("a table of addresses")
    offsets = np.zeros((), np.int64)
    for n, s in zip(lead, steps, strict=True):
        offsets = offsets[..., None] + np.arange(n, dtype=np.int64) * s
    places = (offsets.reshape(-1) + X.first).astype(np.uint64)
    buffer = device.Buffer.of(places)
    struct["table"] = buffer.pointer
    return struct, _aligned(*np.unique(places % np.uint64(16)).tolist(), *odd), (X, buffer)


def _aligned(*values: int) -> int:
    return gcd(16, *values)
