"""The parts that a product's work is made of, and how much of a matrix instruction covers a product."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fpemu.mma import MmaSpec

BYTES = {"fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4, "fp64": 8, "int32": 4, "int8": 1}
"""Of a stored number; one for the formats that are not here."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One kernel, or several equal ones.

    Attributes
    ----------
    name : str
        Name of the phase.
    products : mapping of str to float
        Operations of matrix products by format of their inputs, a multiply-add being two; padding included.
    vector : mapping of str to float
        Instructions of the ordinary cores by format, an element each.
    read, written : float
        Bytes read from and written to memory.
    """

    name: str
    products: Mapping[str, float] = field(default_factory=dict)
    vector: Mapping[str, float] = field(default_factory=dict)
    read: float = 0.0
    written: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Work:
    """Work of one product by a scheme.

    Attributes
    ----------
    scheme : str
        Name of the scheme.
    operand : str
        Format of A, B and the result.
    architecture : str or None
        Architecture of the matrix units; None: ordinary cores.
    shape : (int, int, int)
        M, N, K.
    phases : tuple of Phase
        Kernels in order.
    instructions : mapping of str to float
        Matrix instructions by name.
    products : int
        Products of words, slices or residues.
    words : (int, int)
        Words, slices or residues of A and of B.
    resident : float
        Bytes that are in memory at the same time, at least: operands, words, result, products waiting to be summed.
    """

    scheme: str
    operand: str
    architecture: str | None
    shape: tuple[int, int, int]
    phases: tuple[Phase, ...]
    instructions: Mapping[str, float]
    products: int
    words: tuple[int, int]
    resident: float

    @property
    def operations(self) -> float:
        """Of all matrix products."""
        return sum(sum(phase.products.values()) for phase in self.phases)

    @property
    def vector(self) -> float:
        """Instructions of the ordinary cores."""
        return sum(sum(phase.vector.values()) for phase in self.phases)

    @property
    def bytes(self) -> float:
        """Read and written."""
        return sum(phase.read + phase.written for phase in self.phases)

    @property
    def nominal(self) -> float:
        """2 M N K."""
        M, N, K = self.shape
        return 2.0 * M * N * K


def along(length: int, cuts: list[int], k: int) -> int:
    """Instructions of length k that cover `length` cut into pieces, these into smaller ones."""
    if not cuts:
        return -(-length // k)
    whole, rest = divmod(length, cuts[0])
    return whole * along(cuts[0], cuts[1:], k) + (along(rest, cuts[1:], k) if rest else 0)


def across(spec: MmaSpec, M: int, N: int) -> float:
    """Instructions that cover M × N, in units of the widest: an instruction with fewer columns is a part of one."""
    m, n, step = tile(spec)
    ways = ((M, N), (N, M))
    return min(-(-a // m) * (-(-b // step) * step) / n for a, b in ways)


def tile(spec: MmaSpec) -> tuple[int, int, int]:
    """Rows, columns, and what the columns are a multiple of; 16, 16, 16 for an instruction that names no shape."""
    found = re.fullmatch(r"m(\d+)n(\d+|N)k\d+", spec.shape)
    if found is None:
        return 16, 16, 16
    m = int(found[1])
    return (m, 256, 8 if m == 64 else 16) if found[2] == "N" else (m, int(found[2]), int(found[2]))


def operations(spec: MmaSpec) -> float:
    m, n, _ = tile(spec)
    return 2.0 * m * n * spec.k


def areas(M: int, N: int, K: int) -> tuple[int, int, int]:
    """Elements of A, of B, of the result."""
    return M * K, K * N, M * N


def unit(spec: MmaSpec) -> str:
    """The format that names the unit: all fp8, fp6 and fp4 formats run at the rate of fp8, converted ones at fp16's."""
    name = str(spec.a_format)
    if spec.arithmetic == "via-half":
        return "fp16"
    return "fp8" if re.fullmatch(r"e\dm\d(fnuz)?", name) else name


def width(fmt: Any) -> int:
    """Bytes of a stored number."""
    return BYTES.get(str(fmt), 1)
