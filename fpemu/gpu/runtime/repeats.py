"""Calls on torch tensors that repeat an earlier one: the compiled `native.call` recognises and queues them.

An entry holds what the kernels of a recorded product depend on: device, dtype, shape and strides of the tensors, and
their addresses modulo 16. `native.call` reads these of a call's tensors, compares them with the entries of a family,
and queues the sequence of the entry that fits on the current stream, in the stream's workspace. Where none fits, where
the output may share memory with an operand, where the stream has no workspace yet or is captured, it queues nothing,
and Python code follows.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.runtime import native
from fpemu.gpu.runtime.sequence import Arenas, Sequence, lock

__all__ = ["Families", "Repeats", "classes"]

_MOST, _MOST_FAMILIES = 64, 256  # entries of a family; families of a function
_MATCHED, _GRAPHS = native.FAMILY.index("matched"), native.ENTRY.index("graphs")


def classes() -> tuple[Any, ...]:
    """Return the classes of torch whose instances a repeated call reads: tensors and parameters, no other subclass."""
    torch = sys.modules.get("torch")
    if torch is None:
        return ()
    return torch.Tensor, getattr(getattr(torch, "nn", torch), "Parameter", torch.Tensor)


def _no_call(address: int, A: Any, B: Any, C: Any, out: Any) -> int:
    """Stand for `native.call` where there is none, or no entry."""
    return native.UNKNOWN


class Repeats:
    """A family of sequences that calls with the same request may repeat.

    Attributes
    ----------
    call : callable
        `native.call`; takes `address`, A, B, C and out: tensors, or None where there is no tensor.
    address : int
        Address of the family's record.
    kinds : tuple of type
        Classes of the tensors.
    shapes : dict
        Shapes of the outputs by the shapes of A, B and C; None where there is no tensor.
    """

    def __init__(self) -> None:
        self.call: Callable[..., int] = _no_call
        self.address = 0
        self.kinds: tuple[Any, ...] = ()
        self.shapes: dict[Any, tuple[int, ...]] = {}
        self._entries: list[tuple[Sequence, NDArray[np.int64], NDArray[np.int64], Any]] = []

    def add(
        self,
        sequence: Sequence,
        arenas: Arenas,
        tensors: tuple[Any, ...],
        extents: tuple[int, ...],
        constants: Mapping[int, int] = MappingProxyType({}),
        prepared: int = 0,
    ) -> None:
        """Add a sequence that has been queued on torch tensors, if the compiled call exists; the caller holds the lock.

        Nothing is added for other arrays, or for a sequence that the family has already.

        Parameters
        ----------
        sequence : Sequence
            Kernels.
        arenas : Arenas
            Workspaces of the streams.
        tensors : tuple
            A, B, C and the output of the call; None where there is none.
        extents : tuple of int
            Bytes from the first to the last entry of each.
        constants : mapping of int to int
            Addresses of the operands that every call of this family shares, by their position.
        prepared : int
            Address of an operand prepared in advance.
        """
        if tensors[3].__class__ not in classes() or any(sequence is added for added, *_ in self._entries):
            return
        kind, parameter = classes()
        functions, interface = native.calls(), native.exchange(kind)
        if functions is None or functions[1] is None or interface is None or not sequence.address:
            return
        words: list[int] = []
        for i, (X, extent) in enumerate(zip(tensors, extents, strict=True)):
            operand = _operand(X, extent, interface[0]) if i not in constants else _constant(constants[i], extent)
            if operand is None:
                return
            words += operand
        regions = np.zeros(native.REGIONS, np.int64)
        head = native.record(
            native.ENTRY,
            sequence=sequence.address,
            regions=regions.ctypes.data,
            prepared=prepared,
            arenas=0 if sequence.alone else arenas.address(sequence.index),
            work=sequence.work,
            zeros=sequence.zeros,
            graphs=int(sequence.graphs),
            device=sequence.index,
        )
        entry = np.concatenate([head, np.array(words, np.uint64).view(np.int64)])
        shapes = tuple(getattr(X, "shape", None) for X in tensors[:3]), tuple(tensors[3].shape)
        self._entries = [*self._entries, (sequence, entry, regions, shapes)][-_MOST:]
        self.shapes = dict(each for *_, each in self._entries)
        self.kinds = kind, parameter
        self._list = np.array([entry.ctypes.data for _, entry, *_ in self._entries], np.int64)
        self._is_neg = kind.is_neg
        self._record = native.record(
            native.FAMILY,
            count=len(self._entries),
            entries=self._list.ctypes.data,
            read=interface[0],
            stream=interface[1],
            type=id(kind),
            parameter=id(parameter),
            is_neg=id(self._is_neg),
        )
        self.address, self.call = int(self._record.ctypes.data), functions[1]

    def new(self, A: Any, B: Any, C: Any) -> Any:
        """Return a new output for a call that may repeat an earlier one, on torch's current stream; else None."""
        if A.__class__ not in self.kinds:
            return None
        try:
            shape = self.shapes.get((A.shape, B.shape, None if C is None else C.shape))
            return None if shape is None else A.new_empty(shape)
        except (AttributeError, TypeError, RuntimeError):  # B or C is no array, or memory does not suffice
            return None

    def queue(self, A: Any, B: Any, C: Any, D: Any) -> Any:
        """Queue a call that repeats an earlier one and return its output D; None: nothing is queued."""
        with lock:
            result = self.call(self.address, A, B, C, D)
            if result > 0:
                self.follow(result)
        return D if result >= 0 else None

    def follow(self, result: int) -> None:
        """Raise GpuError for a failed result of `call`, or note the addresses of launches for a graph."""
        sequence, entry, regions, _ = self._entries[self._record[_MATCHED]]
        addresses = tuple(regions.view(np.uint64).tolist()) if entry[_GRAPHS] else None
        sequence.follow(result, addresses)
        entry[_GRAPHS] = int(sequence.graphs)

    def clear(self) -> None:
        """Remove all entries."""
        self.call, self.address = _no_call, 0
        self._entries.clear()
        self.shapes.clear()


class Families(dict[Any, Repeats]):
    """Families of the sequences of a function, by the request: all arguments but the arrays."""

    def queue(self, request: Any, A: Any, B: Any, C: Any, out: Any) -> Any:
        """Queue a call that repeats an earlier one and return its output; None: nothing is queued."""
        try:
            family = self.get(request)
        except TypeError:  # an argument is not hashable
            return None
        return None if family is None else family.queue(A, B, C, family.new(A, B, C) if out is None else out)

    def family(self, request: Any) -> Repeats:
        """Return the family of a request, a new one if there is none; all are dropped if there are too many."""
        if request not in self and len(self) >= _MOST_FAMILIES:
            self.clear()
        return self.setdefault(request, Repeats())


def _operand(X: Any, extent: int, read: int) -> list[int] | None:
    """Return the words of a tensor, or of None; None if it has too many axes or cannot be read."""
    if X is None:
        return _constant(0, 0)
    tensor = (ctypes.c_uint64 * 6)()
    function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(read)
    if function(X, ctypes.addressof(tensor)):
        return None
    pointer, device, kind, shape, strides, offset = tensor
    axes = int(X.dim())
    if axes > native.AXES or not strides:
        return None
    padding = [0] * (native.AXES - axes)
    lengths = [*(ctypes.c_uint64 * axes).from_address(shape), *padding] if axes else padding
    steps = [*(ctypes.c_uint64 * axes).from_address(strides), *padding] if axes else padding
    return [1, device, kind, axes, (pointer + offset) % 16, extent, *lengths, *steps]


def _constant(pointer: int, extent: int) -> list[int]:
    """Return the words of an operand that is no tensor of the call."""
    return [0, pointer, 0, 0, 0, extent, *[0] * (2 * native.AXES)]
