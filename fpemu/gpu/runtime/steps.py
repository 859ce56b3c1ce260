"""The steps of a call as data: launches, fills and products of cuBLAS, whose pointers are addresses in regions.

A kernel returns its steps once for the layouts of its operands; `fpemu.gpu.runtime.plan` queues them with the addresses
of every call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

REGIONS = ("A", "B", "C", "D", "work", "zeros", "prepared", "counts")
"""Memory that steps address: operands and result, workspace, workspace that is zero before and after the steps, an
operand that was prepared in advance, and the counters of entries out of range"""
_ALIGNMENT = 1024  # bytes, of the blocks of a workspace: TMA needs 128, a swizzled tile 1024


@dataclass(frozen=True, slots=True)
class Address:
    """An address in a region, whose own address each call states.

    Examples
    --------
    >>> address = Address("A", alignment=4) + 8
    >>> address.offset, address % 16
    (8, 12)
    """

    region: str  # of `REGIONS`, or "cleared": the end of the workspace, which is set to zero before the first step
    offset: int = 0  # bytes
    alignment: int = 0  # of the region's address, modulo 16

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
    """The workspace of a plan, as its steps allocate it: the bytes of each region, blocks in "work" or "prepared"."""

    def __init__(self, region: str = "work") -> None:
        self.region = region
        self.nbytes = {"work": 0, "zeros": 0, "prepared": 0, "cleared": 0}
        self.fills: list[Fill] = []  # of cleared blocks, before all other steps

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

    Pointers are "u8"; `nested` are further types by name.

    Examples
    --------
    >>> fields("u8 A B, i4 rows, 4u8 words").itemsize
    56
    """
    parts = (part.split() for part in text.split(","))
    return np.dtype([(name, nested.get(kind, kind)) for kind, *names in parts for name in names], align=True)


class Struct:
    """A parameter structure: a dtype, and values by field, which `pack` takes; other fields are zero.

    None is a null pointer. The value of a field with a shape is a sequence of values.
    """

    def __init__(self, dtype: np.dtype[Any], values: Mapping[str, Any]) -> None:
        self.dtype, self._values = dtype, dict(values)

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[name] = value

    def __getitem__(self, name: str) -> Any:
        """Return the value of a field: an `Address`, or a number of the field's type."""
        value = self._values.get(name)
        value = getattr(value, "pointer", value)
        return value if isinstance(value, Address) else self.dtype[name].type(value or 0)

    def changed(self, **values: Any) -> Struct:
        """Return a copy with other values of some fields."""
        return Struct(self.dtype, self._values | values)

    def pack(self) -> tuple[bytes, dict[int, Any]]:
        """Return the bytes, and the addresses within, by their offsets."""
        data, slots = bytearray(self.dtype.itemsize), dict[int, Any]()
        for name, value in self._values.items():
            kind, at = self.dtype.fields[name][:2]  # type: ignore[index]
            for each in value if kind.shape else (value,):
                item = getattr(each, "pointer", each)
                if not isinstance(item, Address | Struct):
                    item = np.array(0 if item is None else item, kind.base)
                packed, within = pack(item)
                data[at : at + len(packed)] = packed
                slots |= {at + offset: address for offset, address in within.items()}
                at += kind.base.itemsize
        return bytes(data), slots


@dataclass(frozen=True)
class TensorMap:
    """A tensor for TMA, a `__grid_constant__` parameter of a kernel (hopper.cuh: TensorMap)."""

    pointer: Any  # an Address or an integer, a multiple of 16
    itemsize: int  # bytes of an element
    shape: tuple[int, ...]  # the last axis is contiguous; elements of a tile outside of the shape are zero
    strides: tuple[int, ...]  # bytes between indices of all axes but the last, multiples of 16
    box: tuple[int, ...]  # of a tile, without leading axes of length 1; its rows are 128 bytes, swizzled for wgmma


@dataclass(frozen=True, eq=False)
class Launch:
    """The launch of a kernel."""

    module: Any  # `fpemu.gpu.runtime.modules.Module`
    kernel: str
    grid: Any  # thread blocks: an integer, or a tuple of up to three
    block: Any  # threads of each, as the grid
    arguments: tuple[Any, ...]  # as `pack` takes them; the buffers among them are kept alive
    shared: int = 0  # bytes of dynamic shared memory
    cluster: int = 1  # thread blocks in a cluster, along x
    overlap: bool = False  # the kernel may start before the one queued before it has ended, and waits where it has to


@dataclass(frozen=True)
class Fill:
    """Set the bytes of a block."""

    pointer: Any
    byte: int
    nbytes: int


@dataclass(frozen=True)
class Gemm:
    """The products D = A B^T of a batch by cuBLAS: A (M, K), B (N, K), D (M, N).

    int8 requires that K and the row strides are multiples of 16. The operands are `fpemu.gpu.runtime.cublas.Stack`; a
    batch stride of 0 uses the same matrix in every product.
    """

    kind: str  # of `fpemu.gpu.runtime.cublas.KINDS`
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

    The value is a `Struct`, an `Address`, an object with a pointer, a NumPy scalar or array (structs too) in its own
    type, a sequence of these (adjacent in one parameter), a Python int as a `long long`, or a float as a `double`.

    Examples
    --------
    >>> pack(Address("A", 8))[1], pack(np.int32(3))
    ({0: Address(region='A', offset=8, alignment=0)}, (b'\\x03\\x00\\x00\\x00', {}))
    """
    if isinstance(value, TensorMap):
        return bytes(128), {0: value}
    value = getattr(value, "pointer", value)
    if isinstance(value, Address):
        return bytes(8), {0: value}
    if isinstance(value, Struct):
        return value.pack()
    if isinstance(value, list | tuple):
        data, slots = b"", dict[int, Any]()
        for each in value:
            more, within = pack(each)
            slots |= {len(data) + at: target for at, target in within.items()}
            data += more
        return data, slots
    if isinstance(value, np.ndarray | np.generic):
        return value.tobytes(), {}
    if isinstance(value, float):
        return np.float64(value).tobytes(), {}
    return int(value).to_bytes(8, "little", signed=value < 0), {}
