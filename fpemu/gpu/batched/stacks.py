"""Anybody's arrays as stacks of matrices that the batched kernels read: lines of neighbours, a step or a table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, prod
from typing import Any

import numpy as np

from fpemu.arguments import is_size
from fpemu.batched.layouts import LAYOUTS, halves
from fpemu.errors import InputError, shown
from fpemu.gpu.runtime import callers, device, matrices
from fpemu.gpu.runtime.matrices import Matrix

HALF = np.dtype(np.float16)
STACK = np.dtype([("first", "u8"), ("step", "i8"), ("table", "u8"), ("line", "i8"), ("plane", "i8")])
"""The struct Stack of kernels/batched.cuh"""


@dataclass(frozen=True, eq=False)
class Pointers:
    """A batch of matrices that lie anywhere in the GPU's memory, as cuBLAS' pointer arrays have it.

    Parameters
    ----------
    addresses : array of uint64 on the GPU
        Of the element (0, 0) of each matrix: ``__cuda_array_interface__``, or a torch tensor of int64.
    shape : (int, int)
        Rows and columns of every matrix.
    ld : int
        Elements from one row to the next, as many as there are columns at least.
    aligned : int
        Bytes that divide every address: 2, 4, 8 or 16; it cannot be seen from here.
    owner : object
        What keeps the matrices alive: the arrays that they are of, so that their streams are waited for.

    Raises
    ------
    InputError
        A shape, an ld or an alignment that is none.
    """

    addresses: Any
    shape: tuple[int, int]
    ld: int
    aligned: int = 2
    owner: object = None

    def __post_init__(self) -> None:
        sides = self.shape if isinstance(self.shape, tuple) else ()
        if len(sides) != 2 or not all(is_size(n) or (n == 0 and type(n) is int) for n in sides):
            raise InputError(f"Pointers: shape = {shown(self.shape)} must be rows and columns, two integers")
        if not is_size(self.ld) or (self.ld < sides[1] and sides[0] > 1):
            raise InputError(f"Pointers: ld = {shown(self.ld)} must be an integer, the {sides[1]} columns at least")
        if not is_size(self.aligned) or self.aligned not in (2, 4, 8, 16):
            raise InputError(f"Pointers: aligned = {shown(self.aligned)} must be 2, 4, 8 or 16")

    def table(self) -> Matrix:
        """The addresses, one after another in the GPU's memory.

        Raises
        ------
        InputError
            Addresses that kernels cannot read.
        """
        held = self.addresses
        if isinstance(held, device.Buffer):
            return Matrix(held.pointer, np.dtype(np.uint64), (held.nbytes // 8,), (1,), held)
        found = held if isinstance(held, Matrix) else matrices.take(held, "addresses", write=not _sealed(held))
        if not isinstance(found, Matrix) or found.dtype not in (np.uint64, np.int64) or len(found.shape) != 1:
            raise InputError("addresses must be an array of uint64 or int64 with one axis in the GPU's memory")
        if found.shape[0] > 1 and found.strides != (1,):
            raise InputError(f"addresses have strides {found.strides}: they must follow on one another")
        return found


def _sealed(X: Any) -> bool:
    """Whether an array says that it cannot be written."""
    return bool(getattr(X, "__cuda_array_interface__", {}).get("data", (0, False))[1])


@dataclass(frozen=True, eq=False)
class Operand:
    """Matrices of halves, or of pairs of halves, in the GPU's memory; strides in bytes.

    Parameters
    ----------
    first : int
        Address of the first.
    shape, strides : tuple of int
        (..., rows, columns), the axis of the two parts left out.
    plane : int
        From the real to the imaginary parts.
    unit : int
        Bytes of what lies side by side: 4 where parts are interleaved, else 2.
    table : Pointers or None
    owner : object
    """

    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    plane: int
    unit: int
    table: Pointers | None = None
    owner: object = None

    @property
    def transposed(self) -> Operand:
        """The last two axes exchanged."""
        s, t = self.shape, self.strides
        shape, strides = (*s[:-2], s[-1], s[-2]), (*t[:-2], t[-1], t[-2])
        return Operand(self.first, shape, strides, self.plane, self.unit, self.table, self.owner)

    @property
    def along_columns(self) -> bool | None:
        """Whether neighbours in a row lie side by side (True), or those in a column (False), or neither (None)."""
        if self.strides[-1] == self.unit or self.shape[-1] <= 1:
            return True
        return False if self.strides[-2] == self.unit or self.shape[-2] <= 1 else None


def take(X: Any, who: str) -> Matrix | Pointers | Any:
    """A GPU's array of halves as a Matrix, a list of them as Pointers; anything else as float16 in the CPU's memory.

    What is called "out" will be written: its own memory is given, never a copy.

    Raises
    ------
    InputError
        An array of the GPU that is not fp16; what `fpemu.batched` refuses.
    """
    if isinstance(X, Pointers):
        return X
    if isinstance(X, list | tuple) and any(there := [_on_gpu(x) for x in X]):
        if not all(there):
            raise InputError(f"{who} is a list of {len(X)} arrays, {sum(there)} of them on the GPU: bring all there")
        return _pointers([_matrix(x, f"{who}[{i}]", who == "out") for i, x in enumerate(X)], who)
    return _matrix(X, who, who == "out")


def _matrix(X: Any, who: str, write: bool) -> Matrix | Any:
    if matrices.is_torch(X):
        given, X = X, X.detach()
        if str(X.layout) != "torch.strided" or X.dtype != sys.modules["torch"].float16:
            raise InputError(f"{who} is a tensor of {X.layout} and {X.dtype}: give a dense one of float16")
        if not write:
            X = X.resolve_neg()
            if X.is_cuda and X.data_ptr() != given.data_ptr():
                callers.wait_for(X)  # torch copies on its own stream
        write = True  # else torch's halves become fp32; strides of torch are never negative
    taken = matrices.take(X, who, write=write)
    if not isinstance(taken, Matrix):
        return halves(taken, who)
    if taken.dtype != HALF:
        raise InputError(f"{who} is an array of {taken.dtype} on the GPU: give float16")
    return taken


def _on_gpu(x: Any) -> bool:
    if matrices.is_torch(x):
        return bool(x.is_cuda)
    return isinstance(x, Matrix) or hasattr(x, "__cuda_array_interface__") or matrices.on_gpu_by_dlpack(x)


def arrays(X: Any) -> list[Any]:
    """The arrays that an argument is made of, on whose streams somebody may work."""
    if isinstance(X, list | tuple):
        return [array for x in X for array in arrays(x)] if any(_on_gpu(x) for x in X) else []
    if isinstance(X, Pointers):
        held = X.owner if isinstance(X.owner, list | tuple) else (X.owner,)
        return [x for x in (X.addresses, *held) if _on_gpu(x) and not isinstance(x, Matrix)]
    return [] if X is None or isinstance(X, Matrix) else [X]


def _pointers(found: Sequence[Any], who: str) -> Pointers:
    shapes = {(X.shape, X.strides) for X in found}
    X = found[0]
    if len(shapes) > 1:
        raise InputError(f"{who} is a list of arrays of {len(shapes)} kinds: give matrices of one shape and layout")
    if len(X.shape) != 2:
        raise InputError(f"{who} is a list of arrays of shape {X.shape}: give matrices, with two axes")
    if (X.strides[1] != 1 and X.shape[1] > 1) or (X.shape[0] > 1 and X.strides[0] < X.shape[1]):
        raise InputError(f"{who} is a list of matrices with strides {X.strides}: their rows must be contiguous")
    places = np.array([m.pointer for m in found], np.uint64)
    if who == "out" and len(np.unique(places)) < len(places) and 0 not in X.shape:
        raise InputError("out has a matrix twice: give each product memory of its own")
    shape, aligned = (X.shape[0], X.shape[1]), _aligned(*places.tolist())
    return Pointers(device.Buffer.of(places), shape, max(X.strides[0], X.shape[1], 1), aligned, tuple(found))


def upload(x: Any) -> Matrix:
    """An array of the CPU's on the GPU."""
    return x if isinstance(x, Matrix) else matrices.upload(x)


def operand(X: Matrix | Pointers, layout: str | None, who: str) -> Operand:
    """A stack with its parts told apart, in a form that kernels read: copied where it is not, but for "out".

    Parameters
    ----------
    X : Matrix or Pointers
        The latter for real matrices only.
    layout : "interleaved", "planar" or None
        None: real numbers.
    who : str

    Raises
    ------
    InputError
        Shapes that are no matrices; an "out" that kernels cannot write.
    """
    if isinstance(X, Pointers):
        if layout is not None:
            raise InputError(f"{who} is an array of pointers: half-complex products take strided batches")
        return Operand(0, (*X.table().shape, *X.shape), (0, 2 * X.ld, 2), 0, 2, X, X)
    if layout is None:
        found = _operand(X, None)
    else:
        axis = LAYOUTS[layout]
        if len(X.shape) < 3 or X.shape[axis] != 2:
            where = f"its {'last' if axis else 'first'} axis must be the two parts, of length 2"
            raise InputError(f"{who} of shape {X.shape} is not {layout}: {where}")
        found = _operand(X, layout)
    if len(found.shape) < 2:
        raise InputError(f"{who} has shape {X.shape}: it needs two axes or more, the last two those of its matrices")
    if 0 not in found.shape and (found.along_columns is None or (found.unit == 4 and not _paired(found, X))):
        if who == "out":
            raise InputError(
                "out must have contiguous rows, and in the interleaved layout both parts of an element in "
                "one aligned word"
            )
        return _operand(matrices.copy(X), layout)
    return found


def _operand(X: Matrix, layout: str | None) -> Operand:
    size = X.dtype.itemsize
    steps = tuple(size * s for s in X.strides)
    if layout == "planar":
        return Operand(X.pointer, X.shape[1:], steps[1:], steps[0], 2, None, X)
    if layout == "interleaved":
        return Operand(X.pointer, X.shape[:-1], steps[:-1], 2, 4, None, X)
    return Operand(X.pointer, X.shape, steps, 0, 2, None, X)


def _paired(found: Operand, X: Matrix) -> bool:
    """Whether both parts of every element lie in one aligned word."""
    return X.strides[-1] == 1 and found.first % 4 == 0 and all(s % 4 == 0 for s in found.strides)


def stack(X: Operand, lead: tuple[int, ...], along_columns: bool) -> tuple[np.ndarray[Any, Any], int, object]:
    """The struct of a stack broadcast to a batch, the alignment of its lines in bytes, and what has to stay alive."""
    line = X.strides[-2 if along_columns else -1]
    lines = X.shape[-2 if along_columns else -1]
    made = np.zeros(1, STACK)
    made["line"], made["plane"], made["first"] = line, X.plane, X.first
    odd = [line] if lines > 1 else []
    odd += [X.plane] if X.unit == 2 else []
    if 0 in lead or 0 in X.shape:
        return made, 16, X
    if X.table is not None:
        table = X.table.table()
        if prod(lead) != prod(table.shape):  # kernels look a product's own number up
            table = matrices.copy(table.broadcast(lead))
        made["table"] = table.pointer
        return made, _aligned(X.table.aligned, *odd), (X.table, table)
    count = prod(lead)
    shape = X.shape[:-2]
    missing = len(lead) - len(shape)
    steps = [0] * missing + [s if n > 1 else 0 for n, s in zip(shape, X.strides[:-2], strict=True)]
    axes = [(n, s) for n, s in zip(lead, steps, strict=True) if n > 1]
    even = all(s == m * t for (_, s), (m, t) in pairwise(axes))
    if even:
        made["step"] = axes[-1][1] if axes else 0
        return made, _aligned(X.first, *odd, *([int(made["step"][0])] if count > 1 else [])), X
    offsets = np.zeros((), np.int64)
    for n, s in zip(lead, steps, strict=True):
        offsets = offsets[..., None] + np.arange(n, dtype=np.int64) * s
    places = (offsets.reshape(-1) + X.first).astype(np.uint64)
    buffer = device.Buffer.of(places)
    made["table"] = buffer.pointer
    return made, _aligned(*np.unique(places % np.uint64(16)).tolist(), *odd), (X, buffer)


def _aligned(*values: int) -> int:
    return gcd(16, *values)
