"""What a repeated call reads of its arguments: arrays on one GPU, without conversions and without validation.

The arrays are torch tensors, whose work is queued on torch's current stream, or arrays of other libraries that state
CUDA's default stream, as CuPy does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

from fpemu.gpu.runtime import callers, device
from fpemu.gpu.runtime.callers import capturing, is_torch, stream
from fpemu.gpu.runtime.matrices import Matrix, allocated, like
from fpemu.gpu.runtime.recording import placeholder
from fpemu.gpu.runtime.repeats import Families, classes
from fpemu.gpu.runtime.selection import current
from fpemu.gpu.runtime.sequence import Arenas, Sequence, arenas, lock

__all__ = ["Cache", "Read", "Recorded", "capturing", "extent", "facts_of", "near", "new", "place", "read", "room"]

_DEFAULT_STREAM = 1  # of an array interface


class Read(NamedTuple):
    """The arrays of a call.

    Attributes
    ----------
    key : tuple
        Everything but the addresses that the kernels depend on, hashable: shapes, strides and dtypes, then the
        addresses modulo 16, last the index of the GPU.
    pointers : list of int
        Addresses; 0: no array.
    stream : int
        Handle of the stream on which the kernels are queued.
    """

    key: tuple[Any, ...]
    pointers: list[int]
    stream: int

    def in_place(self, *matrices: Matrix | None) -> bool:
        """Return whether matrices lie where the arrays do, so that no one with entries is a copy."""
        return all(X is None or X.pointer == at for X, at in zip(matrices, self.pointers, strict=False))


def read(*arrays: Any) -> Read | None:
    """Read the arrays of a call, all on one GPU; the first one is never None.

    Returns
    -------
    Read or None
        None if an array is of another kind than `Read` describes, or must be converted.
    """
    if arrays[0].__class__ in classes():
        return _tensors(arrays)
    return _interfaces(arrays)


def _tensors(arrays: tuple[Any, ...]) -> Read | None:
    """Read tensors and parameters of torch."""
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
    return Read(tuple(values), pointers, stream(index))


def _interfaces(arrays: tuple[Any, ...]) -> Read | None:
    """Read arrays with ``__cuda_array_interface__`` on the current GPU that are ready on the default stream."""
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
    """Return what kernels depend on, for matrices on the current GPU."""
    values: list[Any] = []
    for X in matrices:
        values += (None,) if X is None else (X.shape, X.strides, X.dtype, X.pointer & 15)
    return *values, current()


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


def new(X: Any, shape: tuple[int, ...], index: int) -> tuple[Any, int]:
    """Return a new array with the kind, the dtype and the GPU of X, and its address.

    Raises
    ------
    OutOfMemoryError
        Memory does not suffice.
    """
    if is_torch(X):
        with allocated(prod(shape) * X.dtype.itemsize):
            D = X.new_empty(shape)
        return D, D.data_ptr()
    with device.entered(index):
        matrix, D = like(X, shape, X.__cuda_array_interface__["typestr"])
    return D, matrix.pointer


def near(pointers: list[int], extents: Iterable[int]) -> bool:
    """Return whether the byte range of the last operand meets that of another one, so that they may share memory."""
    *others, (d, length) = zip(pointers, extents, strict=True)
    return any(p < d + length and d < p + extent for p, extent in others)


@dataclass(eq=False)
class Recorded:
    """Recorded work with one output, for arrays with the key that it was recorded for.

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

    def run(self, A: Any, out: Any, read: Read) -> Any:
        """Queue the work and return the output: `out`, else a new array like A."""
        D, pointers = out, read.pointers
        if D is None:
            D, pointers[3] = new(A, self.shape, self.sequence.index)
        with lock:
            work, zeros, owner = room(self.sequence, read.stream)
            self.sequence.queue([*pointers, work, zeros, 0], read.stream, capture=owner is not None)
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

    def repeat(self, request: Any, A: Any, B: Any, C: Any, out: Any) -> tuple[Any, Read | None]:
        """Queue a call whose kernels are recorded, as an instance of `Recorded`.

        Parameters
        ----------
        request : object
            All arguments but the arrays; None: the kernels depend on more.
        A, B, C, out : arrays, or None
            Arrays of the call.

        Returns
        -------
        D : array or None
            Output; None if nothing is queued.
        arrays : Read or None
            The arrays, whose key includes the request; None if the kernels cannot be recorded.
        """
        if request is None:
            return None, None
        D = self.families.queue(request, A, B, C, out)
        if D is not None:
            return D, None
        arrays = read(A, B, C, out)
        if arrays is None:
            return None, None
        arrays = arrays._replace(key=(request, arrays.key))
        product = self.find(arrays.key, out, arrays.pointers)
        if product is None:
            return None, arrays
        try:
            D = product.run(A, out, arrays)
        except device.OutOfMemoryError:  # the call is validated again, and releases memory
            return None, arrays
        with lock:
            self.families.family(request).add(product.sequence, arenas, (A, B, C, D), product.extents)
        return D, arrays

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
