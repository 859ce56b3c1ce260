"""Arrays of NumPy and GPU packages as stacks of matrices that the batched kernels read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import LARGEST, integer, integers
from fpemu.batched import arguments, layouts
from fpemu.errors import InputError
from fpemu.gpu.runtime import callers, device, matrices
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.steps import Launch, Struct

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


@dataclass(frozen=True, eq=False)
class Scattered(Matrix):
    """Matrices at the addresses of a table; the pointer is 0, and the first stride without meaning."""

    table: Any = None  # Matrix of addresses
    aligned: int = 2  # bytes that divide every address


def _scattered(table: Matrix, shape: tuple[int, int], ld: int, aligned: int, owner: object) -> Scattered:
    strides = (shape[0] * max(ld, shape[1]), ld, 1)
    return Scattered(0, HALF, (*table.shape, *shape), strides, owner, table, aligned)


def take(X: Any, name: str) -> Matrix | Any:
    """Return a GPU array of fp16 as a Matrix, a list of them too, another array as float16 in the CPU's memory.

    An array named "out" is never copied, because it will be written.
    """
    if isinstance(X, Pointers):
        table = matrices.take(X.addresses, "addresses")
        if not isinstance(table, Matrix) or table.dtype not in (np.uint64, np.int64) or len(table.shape) != 1:
            raise InputError("addresses must be an array of uint64 or int64 with one axis in the GPU's memory")
        if table.shape[0] > 1 and table.strides != (1,):
            raise InputError(f"addresses have strides {table.strides}: they must follow on one another")
        return _scattered(table, X.shape, X.ld, X.aligned, X.owner)
    if isinstance(X, list | tuple) and any(on_gpu := [_on_gpu(x) for x in X]):
        if not all(on_gpu):
            raise InputError(f"{name} is a list of {len(X)} arrays, {sum(on_gpu)} of them on the GPU: copy all there")
        return _stacked([take(x, name) for x in X], name)
    array = matrices.take(X, name, write=name == "out", half=True)
    if not isinstance(array, Matrix):
        return layouts.halves(array, name)
    if array.dtype != HALF:
        raise InputError(f"{name} is an array of {array.dtype} on the GPU: give float16")
    return array


def _on_gpu(x: Any) -> bool:
    if callers.is_torch(x):  # a tensor that requires gradients raises where its array interface is read
        return bool(x.is_cuda)
    return hasattr(x, "__cuda_array_interface__") or callers.index_of(x) is not None


def arrays(X: Any) -> list[Any]:
    """Return the arrays of an argument on the GPU, whose streams are waited for."""
    if isinstance(X, Pointers):
        X = [X.addresses, *(X.owner if isinstance(X.owner, list | tuple) else [X.owner])]
    return [x for x in (X if isinstance(X, list | tuple) else [X]) if _on_gpu(x)]


def _stacked(arrays: list[Matrix], name: str) -> Scattered:
    """Return a list of matrices as an operand."""
    shapes, X = {(X.shape, X.strides) for X in arrays}, arrays[0]
    if len(shapes) > 1:
        raise InputError(f"{name} is a list of arrays of {len(shapes)} kinds: give matrices of one shape and layout")
    if len(X.shape) != 2:
        raise InputError(f"{name} is a list of arrays of shape {X.shape}: give matrices, with two axes")
    if (X.strides[1] != 1 and X.shape[1] > 1) or (X.shape[0] > 1 and X.strides[0] < X.shape[1]):
        raise InputError(f"{name} is a list of matrices with strides {X.strides}: their rows must be contiguous")
    addresses = np.array([m.pointer for m in arrays], np.uint64)
    if name == "out" and len(np.unique(addresses)) < len(addresses) and 0 not in X.shape:
        raise InputError("out has a matrix twice: pass separate memory for each product")
    buffer = device.Buffer.of(addresses)
    table = Matrix(buffer.pointer, addresses.dtype, addresses.shape, (1,), buffer)
    return _scattered(table, X.shape, X.strides[0], gcd(16, *addresses.tolist()), arrays)


# --- as kernels read them
@dataclass(frozen=True, eq=False)
class Operand:
    """Matrices of fp16 numbers, or of pairs of them, in the GPU's memory; strides in bytes."""

    pointer: Any  # address of the first element
    shape: tuple[int, ...]  # (..., rows, columns), without the axis of real and imaginary parts
    strides: tuple[int, ...]
    plane: int  # from the real to the imaginary parts
    unit: int  # bytes of an element: 4 where real and imaginary parts are interleaved, otherwise 2
    source: Matrix

    @property
    def transposed(self) -> Operand:
        """The operand with its last two axes exchanged."""
        s, t = self.shape, self.strides
        return replace(self, shape=(*s[:-2], s[-1], s[-2]), strides=(*t[:-2], t[-1], t[-2]))

    @property
    def along_columns(self) -> bool | None:
        """Whether rows are contiguous (True), columns (False), or neither (None)."""
        if self.strides[-1] == self.unit or self.shape[-1] <= 1:
            return True
        return False if self.strides[-2] == self.unit or self.shape[-2] <= 1 else None

    @property
    def readable(self) -> bool:
        """Whether kernels can read it: lines are contiguous, and both parts of an element in one aligned word."""
        if self.along_columns is None or self.unit == 2:
            return self.along_columns is not None
        steps = [step for n, step in zip(self.shape, self.strides, strict=True) if n > 1]
        return self.source.strides[-1] == 1 and self.pointer % 4 == 0 and all(step % 4 == 0 for step in steps)

    def part(self, index: int) -> Operand:
        """Return the real (0) or imaginary parts (1) of planar matrices."""
        return replace(self, pointer=self.pointer + index * self.plane, plane=0)


def zeros(X: Any, layout: str | None, name: str) -> NDArray[np.float16]:
    """Return zeros, all at one address, of the shape of a stack of real matrices (layout None) or of their real parts.

    InputError for a stack that is not in the layout.
    """
    if layout is not None and isinstance(X, Scattered):
        raise InputError(f"{name} is an array of pointers: half-complex products take strided batches")
    x = np.broadcast_to(np.float16(0), X.shape)
    return arguments.matrix(x if layout is None else layouts.parts(x, layout, name)[0], name)


def view(X: Matrix, layout: str | None) -> Operand:
    """Return a stack as an operand, whether kernels can read it or not."""
    steps = tuple(2 * s for s in X.strides)
    if layout == "planar":
        return Operand(X.pointer, X.shape[1:], steps[1:], steps[0], 2, X)
    if layout == "interleaved":
        return Operand(X.pointer, X.shape[:-1], steps[:-1], 2, 4, X)
    return Operand(X.pointer, X.shape, steps, 0, 2, X)


def parts_first(X: Matrix) -> Matrix:
    """Return an interleaved stack as a planar one, in the same memory."""
    return replace(X, shape=(2, *X.shape[:-1]), strides=(X.strides[-1], *X.strides[:-1]))


def operand(X: Matrix, layout: str | None, memory: Any) -> tuple[Operand, list[Launch]]:
    """Return a stack as an operand, and the launch that copies it to memory first, if kernels cannot read it."""
    result, shape = view(X, layout), X.shape
    if 0 in shape or result.readable:
        return result, []
    block = memory.block(2 * prod(shape))
    to = Matrix(block.pointer, HALF, shape, tuple(prod(shape[i + 1 :]) for i in range(len(shape))), block)
    return view(to, layout), matrices.copy_steps(X, to)


class Stack(NamedTuple):
    """A stack of a batch: its struct, the alignment of its lines in bytes, and whether it has no gaps."""

    struct: Struct
    width: int
    contiguous: bool


def stack(X: Operand, lead: tuple[int, ...], along_columns: bool) -> Stack:
    """Return a stack broadcast to a batch, whose lines are rows (along_columns) or columns."""
    rows, columns = X.shape[-2:]
    length, lines, line = (columns, rows, X.strides[-2]) if along_columns else (rows, columns, X.strides[-1])
    struct = Struct(STACK, {"first": X, "line": line, "plane": X.plane})  # X: which keeps the memory alive
    if 0 in lead or 0 in X.shape:
        return Stack(struct, 16, False)
    width = gcd(16, line if lines > 1 else 0, X.plane if X.unit == 2 else 0)
    if isinstance(X.source, Scattered):
        table = X.source.table
        if prod(lead) != prod(table.shape):  # kernels index the table by the product
            table = matrices.copy(table.broadcast(lead))
        struct["table"] = table
        return Stack(struct, gcd(width, X.source.aligned), False)
    width = gcd(width, X.pointer % 16)
    missing = len(lead) - (len(X.shape) - 2)
    steps = [0] * missing + [s if n > 1 else 0 for n, s in zip(X.shape[:-2], X.strides[:-2], strict=True)]
    axes = [(n, s) for n, s in zip(lead, steps, strict=True) if n > 1]
    if all(s == m * t for (_, s), (m, t) in pairwise(axes)):
        step = axes[-1][1] if axes else 0
        struct["step"] = step
        size = rows * columns * X.unit
        gaps = (lines > 1 and line != length * X.unit) or (prod(lead) > 1 and step != size)
        return Stack(struct, gcd(width, step), not gaps and size < 2**31)  # the kernels count in an int
    offsets = Matrix(0, np.dtype(np.uint8), (*X.shape[:-2], 1, 1), (*X.strides[:-2], 0, 0))
    struct["table"] = matrices.table(offsets, lead)
    return Stack(struct, gcd(width, *steps), False)
