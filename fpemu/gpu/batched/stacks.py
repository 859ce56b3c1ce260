"""Anybody's arrays as stacks of matrices that the batched kernels read: lines of neighbours, a step or a table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, prod
from typing import Any

import numpy as np

from fpemu.batched.layouts import LAYOUTS, halves
from fpemu.errors import InputError
from fpemu.gpu import device, matrices
from fpemu.gpu.matrices import Matrix

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
        Elements from one row to the next.
    aligned : int
        Bytes that divide every address: 2, 4, 8 or 16; it cannot be seen from here.
    owner : object
        What keeps the matrices alive.
    """

    addresses: Any
    shape: tuple[int, int]
    ld: int
    aligned: int = 2
    owner: object = None


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

    Raises
    ------
    InputError
        An array of the GPU that is not fp16; what `fpemu.batched` refuses.
    """
    if isinstance(X, Pointers):
        return X
    if isinstance(X, list | tuple) and X and all(_on_gpu(x) for x in X):
        return _pointers([take(x, f"{who}[{i}]") for i, x in enumerate(X)], who)
    if matrices.is_torch(X) and X.device.type == "cuda":
        torch = sys.modules["torch"]
        if X.dtype != torch.float16:
            raise InputError(f"{who} is a tensor of {X.dtype} on the GPU: give float16")
        same = X.detach().view(torch.int16)
        return Matrix(X.data_ptr(), HALF, tuple(X.shape), tuple(same.stride()), X)
    taken = matrices.take(X, who)
    if not isinstance(taken, Matrix):
        return halves(X.numpy() if matrices.is_torch(X) else taken, who)
    if taken.dtype != HALF:
        raise InputError(f"{who} is an array of {taken.dtype} on the GPU: give float16")
    return taken


def _on_gpu(x: Any) -> bool:
    return hasattr(x, "__cuda_array_interface__") or (matrices.is_torch(x) and x.device.type == "cuda")


def _pointers(found: Sequence[Any], who: str) -> Pointers:
    shapes = {(X.shape, X.strides) for X in found}
    if len(shapes) > 1 or len(found[0].shape) != 2:
        raise InputError(f"{who} is a list of arrays of {len(shapes)} kinds: give matrices of one shape and layout")
    X = found[0]
    if X.strides[1] != 1 and X.shape[1] > 1:
        raise InputError(f"{who} is a list of matrices with strides {X.strides}: their rows must be contiguous")
    places = np.array([m.pointer for m in found], np.uint64)
    shape = (X.shape[0], X.shape[1])
    return Pointers(device.Buffer.of(places), shape, X.strides[0], _aligned(*places.tolist()), tuple(found))


def upload(x: Any) -> Matrix:
    """An array of the CPU's on the GPU."""
    return x if isinstance(x, Matrix) else matrices.upload(x)


def operand(X: Matrix | Pointers, layout: str | None, who: str) -> Operand:
    """A stack with its parts told apart, in a form that kernels read: copied where it is not.

    Parameters
    ----------
    X : Matrix or Pointers
        The latter for real matrices only.
    layout : "interleaved", "planar" or None
        None: real numbers.
    who : str
    """
    if isinstance(X, Pointers):
        if layout is not None:
            raise InputError(f"{who} is an array of pointers: half-complex products take strided batches")
        count = X.addresses.nbytes // 8 if isinstance(X.addresses, device.Buffer) else len(X.addresses)
        return Operand(0, (count, *X.shape), (0, 2 * X.ld, 2), 0, 2, X, X)
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
    if found.along_columns is None or (found.unit == 4 and not _paired(found, X)):
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
    odd += [X.plane] if X.plane > 2 else []
    if X.table is not None:
        pointers = X.table
        held = pointers.addresses
        made["table"] = held.pointer if isinstance(held, device.Buffer) else matrices.take(held, "addresses").pointer
        return made, _aligned(pointers.aligned, *odd), pointers
    if 0 in lead or 0 in X.shape:
        return made, 16, X
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
    table = device.Buffer.of(places)
    made["table"] = table.pointer
    return made, _aligned(*np.unique(places % np.uint64(16)).tolist(), *odd), (X, table)


def _aligned(*values: int) -> int:
    return gcd(16, *values)
