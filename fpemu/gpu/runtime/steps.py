"""The steps of a call as data: launches, fills and products of cuBLAS, whose pointers are addresses in regions.

A kernel returns its steps once for the layouts of its operands; `fpemu.gpu.runtime.plan` queues them with the addresses
of every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "REGIONS",
    "Address",
    "Block",
    "Fill",
    "Gemm",
    "Launch",
    "Memory",
    "Step",
    "Struct",
    "TensorMap",
    "fields",
    "pack",
]

REGIONS = ("A", "B", "C", "D", "work", "zeros", "prepared", "counts")
"""Memory that steps address: operands and result, workspace, workspace that is zero before and after the steps, an
operand that was prepared in advance, and the counters of entries out of range"""
_ALIGNMENT = 1024  # bytes, of the blocks of a workspace: TMA needs 128, a swizzled tile 1024


@dataclass(frozen=True, slots=True)
class Address:
    """An address in a region, whose own address each call states.

    Parameters
    ----------
    region : str
        One of `REGIONS`, or "cleared": the end of the workspace, which is set to zero before the first step.
    offset : int
        Bytes from the address of the region.
    alignment : int
        Address of the region modulo 16.

    Examples
    --------
    >>> address = Address("A", alignment=4) + 8
    >>> address.offset, address % 16
    (8, 12)
    """

    region: str
    offset: int = 0
    alignment: int = 0

    def __add__(self, nbytes: int) -> Address:
        return Address(self.region, self.offset + int(nbytes), self.alignment)

    def __mod__(self, divisor: int) -> int:
        return (self.alignment + self.offset) % divisor


@dataclass(frozen=True)
class Block:
    """Some bytes of a workspace."""

    pointer: Address
    nbytes: int


class Memory:
    """The workspace of a plan, as its steps allocate it.

    Parameters
    ----------
    region : {"work", "prepared"}
        Region of the blocks.

    Attributes
    ----------
    nbytes : dict of str to int
        Bytes of each region.
    fills : list of Fill
        Fills of cleared blocks, which come before all other steps.
    """

    def __init__(self, region: str = "work") -> None:
        self.region = region
        self.nbytes = {"work": 0, "zeros": 0, "prepared": 0, "cleared": 0}
        self.fills: list[Fill] = []

    def block(self, nbytes: int) -> Block:
        """Return a block whose content is undefined."""
        return self._of(self.region, nbytes)

    def zeros(self, nbytes: int) -> Block:
        """Return a block of zeros, for kernels that leave zeros in it."""
        return self._of("zeros", nbytes)

    def cleared(self, nbytes: int) -> Block:
        """Return a block that is set to zero before the first step."""
        if self.region == "work":  # all such blocks are adjacent, and one fill clears them
            return self._of("cleared", nbytes)
        block = self.block(nbytes)
        self.fills.append(Fill(block.pointer, 0, nbytes))
        return block

    def _of(self, region: str, nbytes: int) -> Block:
        start = self.nbytes[region]
        self.nbytes[region] = start + -(-max(nbytes, 16) // _ALIGNMENT) * _ALIGNMENT
        return Block(Address(region, start), nbytes)


def fields(text: str, **nested: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a C structure: in each part of a text a type, as NumPy names it, and the fields of this type.

    Parameters
    ----------
    text : str
        Parts, separated by commas; pointers are "u8".
    **nested : np.dtype
        Further types by name.

    Examples
    --------
    >>> fields("u8 A B, i4 rows, 4u8 words").itemsize
    56
    """
    parts = (part.split() for part in text.split(","))
    return np.dtype([(name, nested.get(kind, kind)) for kind, *names in parts for name in names], align=True)


class Struct:
    """A parameter structure: its bytes, and the addresses that its pointer fields hold.

    Parameters
    ----------
    dtype : np.dtype
        Fields of the structure.
    values : mapping
        Values by field; an `Address`, a nested `Struct`, an object with a pointer, a number, None for a null, or a
        sequence of these for a field with a shape. Fields that are not named are zero.
    """

    def __init__(self, dtype: np.dtype[Any], values: Mapping[str, Any]) -> None:
        self.data = np.zeros(1, dtype)
        self.slots: dict[int, Address] = {}
        self.keep: list[Any] = []  # owners of the memory that pointers refer to
        for name, value in values.items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        kind, offset = self.data.dtype.fields[name][:2]
        if kind.shape:
            for i, each in enumerate(value):
                self._set(self.data[name][0][i : i + 1], kind.base, offset + i * kind.base.itemsize, each)
        else:
            self._set(self.data[name], kind, offset, value)

    def _set(self, where: NDArray[Any], kind: np.dtype[Any], offset: int, value: Any) -> None:
        if hasattr(value, "pointer"):
            self.keep.append(value)
            value = value.pointer
        for old in [at for at in self.slots if offset <= at < offset + kind.itemsize]:
            del self.slots[old]
        if isinstance(value, Address):
            where[0] = 0
            self.slots[offset] = value
        elif isinstance(value, Struct):
            where[0] = value.data[0]
            self.slots |= {offset + at: address for at, address in value.slots.items()}
            self.keep += value.keep
        else:
            where[0] = 0 if value is None else value

    def __getitem__(self, name: str) -> Any:
        """Return the value of a field; an `Address` if it holds one."""
        offset = self.data.dtype.fields[name][1]
        return self.slots.get(offset, self.data[name][0])

    def changed(self, **values: Any) -> Struct:
        """Return a copy with other values of some fields."""
        result = Struct(self.data.dtype, {})
        result.data[:], result.slots, result.keep = self.data, dict(self.slots), [*self.keep]
        for name, value in values.items():
            result[name] = value
        return result


@dataclass(frozen=True)
class TensorMap:
    """A tensor for TMA, a `__grid_constant__` parameter of a kernel (hopper.cuh: TensorMap).

    Parameters
    ----------
    pointer : Address or int
        A multiple of 16.
    itemsize : int
        Bytes of an element.
    shape : tuple of int
        The last axis is contiguous; elements of a tile outside of the shape are zero.
    strides : tuple of int
        Bytes between consecutive indices of all axes but the last, multiples of 16.
    box : tuple of int
        Shape of a tile, without leading axes of length 1; its rows are 128 bytes, swizzled for wgmma.
    """

    pointer: Any
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Launch:
    """The launch of a kernel.

    Parameters
    ----------
    module : Module
        Module of the kernel, `fpemu.gpu.runtime.modules.Module`.
    kernel : str
        Its name.
    grid, block : int or tuple of up to three
        Thread blocks, and threads of each.
    arguments : tuple
        Parameters, as `pack` takes them; the buffers among them are kept alive.
    shared : int
        Bytes of dynamic shared memory.
    cluster : int
        Thread blocks in a cluster, along x.
    overlap : bool
        The kernel may start before the one queued before it has ended: it waits by itself where it has to.
    """

    module: Any
    kernel: str
    grid: Any
    block: Any
    arguments: tuple[Any, ...]
    shared: int = 0
    cluster: int = 1
    overlap: bool = False


@dataclass(frozen=True)
class Fill:
    """Set the bytes of a block."""

    pointer: Any
    byte: int
    nbytes: int


@dataclass(frozen=True)
class Gemm:
    """A product of cuBLAS, with the arguments of `fpemu.gpu.runtime.cublas.Blas.gemm`."""

    kind: str
    M: int
    N: int
    K: int
    A: Any
    B: Any
    D: Any
    batch: int = 1


Step = Launch | Fill | Gemm


def pack(value: Any) -> tuple[bytes, dict[int, Any]]:
    """Return the bytes of a kernel parameter, and the addresses and tensor maps within, by their offsets.

    Parameters
    ----------
    value : object
        A `Struct`, an `Address`, an object with a pointer, a NumPy scalar or array (structs too) in its own type, a
        sequence of `Struct` or `TensorMap` (adjacent in one parameter), a Python int as a `long long`, a float as a
        `double`.

    Examples
    --------
    >>> pack(Address("A", 8))[1], pack(np.int32(3))
    ({0: Address(region='A', offset=8, alignment=0)}, (b'\\x03\\x00\\x00\\x00', {}))
    """
    value = getattr(value, "pointer", value) if not isinstance(value, TensorMap) else value
    if isinstance(value, Address):
        return bytes(8), {0: value}
    if isinstance(value, Struct):
        return value.data.tobytes(), dict(value.slots)
    if isinstance(value, TensorMap):
        return bytes(128), {0: value}
    if isinstance(value, list | tuple):
        return _adjacent(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tobytes(), {}
    if isinstance(value, float):
        return np.float64(value).tobytes(), {}
    return (np.uint64 if value > np.iinfo(np.int64).max else np.int64)(value).tobytes(), {}


def _adjacent(values: Sequence[Any]) -> tuple[bytes, dict[int, Any]]:
    data, slots = b"", dict[int, Any]()
    for value in values:
        more, within = pack(value)
        slots |= {len(data) + at: target for at, target in within.items()}
        data += more
    return data, slots
