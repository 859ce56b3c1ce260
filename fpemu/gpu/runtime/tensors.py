"""What a repeated call reads of its arguments: torch tensors on one GPU, without conversions and without validation."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.callers import capturing, stream
from fpemu.gpu.runtime.matrices import Matrix, allocated
from fpemu.gpu.runtime.recording import placeholder
from fpemu.gpu.runtime.repeats import Families, classes
from fpemu.gpu.runtime.selection import current
from fpemu.gpu.runtime.sequence import Arenas, Sequence, arenas, lock

__all__ = ["Cache", "Recorded", "capturing", "extent", "facts", "facts_of", "near", "new", "place", "room", "stream"]

Facts = tuple[tuple[Any, ...], list[int]]
"""Everything but the addresses that the kernels of a call depend on, hashable; and the addresses"""


def facts(*arrays: Any) -> Facts | None:
    """Return the facts of tensors and parameters on one GPU (None stays None); None if any argument is something else.

    Facts are shapes, strides and dtypes, then the addresses modulo 16, last the index of the GPU.
    """
    if "torch" not in sys.modules:
        return None
    kinds, alignment, index = classes(), 0, -1
    values: list[Any] = []
    pointers: list[int] = []
    try:
        for X in arrays:
            if X is None:
                values.append(None)
                pointers.append(0)
            elif X.__class__ in kinds and not X.is_neg():
                if index < 0:
                    index = X.get_device()
                if index < 0 or X.get_device() != index:  # on the CPU, or on different GPUs
                    return None
                pointer = X.data_ptr()
                if not pointer and 0 not in X.shape:  # a storage without memory: `matrices.take` raises
                    return None
                values += (X.shape, X.stride(), X.dtype)
                pointers.append(pointer)
                alignment = alignment << 4 | pointer & 15
            else:
                return None
    except (AttributeError, RuntimeError):  # a tensor without strides or memory
        return None
    values += (alignment, index)
    return tuple(values), pointers


def facts_of(*matrices: Matrix | None) -> Facts:
    """Return the same of matrices on the current GPU."""
    values: list[Any] = []
    for X in matrices:
        values += (None,) if X is None else (X.shape, X.strides, X.dtype, X.pointer & 15)
    values.append(current())
    return tuple(values), [0 if X is None else X.pointer for X in matrices]


def room(sequence: Sequence, handle: int, held_by: Arenas = arenas) -> tuple[int, int, Any]:
    """Return the addresses of a workspace on torch's current stream, and its owner in a capture, else None.

    In a capture torch allocates it, so that it belongs to the graph's memory; the owner is alive until the work is
    queued.
    """
    captured = capturing(handle)
    if sequence.alone:
        return 0, 0, sequence if captured else None
    if not captured:
        held = held_by.get((sequence.index, handle))
        if held is None or not held.suffices(sequence):
            with device.entered(sequence.index):
                held = held_by.of(handle, sequence)
        return held.work, held.zeros, None
    torch: Any = sys.modules["torch"]
    where = f"cuda:{sequence.index}"
    work = torch.empty(max(sequence.work, 1), dtype=torch.uint8, device=where)
    zeros = torch.zeros(sequence.zeros, dtype=torch.uint8, device=where) if sequence.zeros else work
    return work.data_ptr(), zeros.data_ptr(), (work, zeros)


def new(X: Any, shape: tuple[int, ...]) -> Any:
    """Return a new tensor with the dtype and the device of X; OutOfMemoryError where memory does not suffice."""
    with allocated(prod(shape) * X.dtype.itemsize):
        return X.new_empty(shape)


def near(pointers: list[int], extents: Iterable[int]) -> bool:
    """Return whether the byte range of the last operand meets that of another one, so that they may share memory."""
    *others, (d, length) = zip(pointers, extents, strict=True)
    return any(p < d + length and d < p + extent for p, extent in others)


@dataclass(eq=False)
class Recorded:
    """Recorded work with one output, for torch tensors with the facts that it was recorded for.

    Parameters
    ----------
    sequence : Sequence
        Kernels.
    shape : tuple of int
        Shape of the output.
    extents : tuple of int
        Bytes from the first to the last entry of the operands and the output, in the order of the addresses.
    """

    sequence: Sequence
    shape: tuple[int, ...]
    extents: tuple[int, ...]

    def run(self, A: Any, out: Any, pointers: list[int]) -> Any:
        """Queue the work on torch's current stream and return the output: `out`, else a new tensor like A."""
        D = out
        if D is None:
            D = new(A, self.shape)
            pointers[3] = D.data_ptr()
        handle = stream(self.sequence.index)
        with lock:
            work, zeros, owner = room(self.sequence, handle)
            self.sequence.queue([*pointers, work, zeros, 0], handle, capture=owner is not None)
        return D


class Cache(dict[Any, Any]):
    """Recorded work by what it depends on: at most 256 entries, all dropped when another one is added."""

    def __init__(self) -> None:
        super().__init__()
        self.families = Families()

    def find(self, key: Any, out: Any, pointers: list[int]) -> Any:
        """Return the entry of a key; None if there is none, or if `out` may share memory with an operand."""
        try:
            entry = self.get(key)
        except TypeError:  # an argument is not hashable
            return None
        return None if entry is None or (out is not None and near(pointers, entry.extents)) else entry

    def repeat(self, request: Any, A: Any, B: Any, C: Any, out: Any) -> tuple[Any, Any]:
        """Queue a call whose kernels are recorded, as an instance of `Recorded`.

        Parameters
        ----------
        request : object
            All arguments but the arrays; None: the kernels depend on more.
        A, B, C, out : torch tensors, or None
            Arrays of the call.

        Returns
        -------
        D : tensor or None
            Output; None if nothing is queued.
        key : object
            Key of the call's kernels; None if they cannot be recorded.
        """
        if request is None:
            return None, None
        D = self.families.queue(request, A, B, C, out)
        if D is not None:
            return D, None
        read = facts(A, B, C, out)
        if read is None:
            return None, None
        key = request, read[0]
        product = self.find(key, out, read[1])
        if product is None:
            return None, key
        try:
            D = product.run(A, out, read[1])
        except device.OutOfMemoryError:  # the call is validated again, and releases memory
            return None, key
        with lock:
            self.families.family(request).add(product.sequence, arenas, (A, B, C, D), product.extents)
        return D, key

    def keep(self, key: Any, entry: Any) -> None:
        """Add an entry; a key that is not hashable adds none."""
        if len(self) >= _MOST:
            self.clear()
        with suppress(TypeError):
            self[key] = entry

    def clear(self) -> None:
        """Drop all entries."""
        super().clear()
        self.families.clear()


_MOST = 256


def place(**operands: Matrix | None) -> dict[str, Matrix | None]:
    """Return operands "A", "B", "C" and "D" with placeholders for their addresses, for a recording."""
    return {
        name: None if X is None else replace(X, pointer=placeholder(name, alignment=X.pointer % 16), owner=None)
        for name, X in operands.items()
    }


def extent(X: Matrix | None) -> int:
    """Return the bytes from the first to the last entry of a matrix without negative strides."""
    if X is None or 0 in X.shape:
        return 0
    return X.dtype.itemsize * (1 + sum((n - 1) * step for n, step in zip(X.shape, X.strides, strict=True)))
