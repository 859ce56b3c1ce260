"""The phases of a product's work, and the number of matrix instructions that cover a product."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fpemu.mma import MmaSpec
from fpemu.schemes.base import Scheme
from fpemu.schemes.words import Word

Shape = tuple[int, int, int]
"""M, N, K"""
BYTES = {"fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4, "fp64": 8, "int32": 4, "int8": 1}
"""Bytes of a stored number; one for all other formats."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A kernel, or several equal kernels.

    Attributes
    ----------
    name : str
        Name of the phase.
    products : mapping of str to float
        Operations of matrix products by format of their inputs, a multiply-add being two; padding included.
    vector : mapping of str to float
        Instructions of the ordinary cores by format, one element each.
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
        Least number of bytes in memory at the same time: operands, words, result, products not yet summed.
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
        """Operations of all matrix products."""
        return sum(sum(phase.products.values()) for phase in self.phases)

    @property
    def vector(self) -> float:
        """Instructions of the ordinary cores, one element each."""
        return sum(sum(phase.vector.values()) for phase in self.phases)

    @property
    def bytes(self) -> float:
        """Bytes read and written."""
        return sum(phase.read + phase.written for phase in self.phases)

    @property
    def nominal(self) -> float:
        """2 M N K, the operations of the product that the scheme emulates."""
        M, N, K = self.shape
        return 2.0 * M * N * K


def counted(
    scheme: Scheme,
    spec: MmaSpec | None,
    shape: Shape,
    phases: Sequence[Phase],
    *,
    resident: float,
    instructions: float = 0.0,
    products: int = 1,
    words: tuple[int, int] = (1, 1),
) -> Work:
    """The work of a scheme on an instruction; None: on ordinary cores."""
    return Work(
        scheme=scheme.name,
        operand=scheme.operand.name,
        architecture=None if spec is None else spec.architecture,
        shape=shape,
        phases=tuple(phases),
        instructions={} if spec is None else {spec.name: float(instructions)},
        products=products,
        words=words,
        resident=resident,
    )


def split_operations(rules: Sequence[Word], scales_rows: bool) -> float:
    """Vector operations per element for its words."""
    return 1.0 * len(rules) + sum(1 for word in rules if word.exponent) + 2 * (len(rules) - 1) + 2 * scales_rows


def across(spec: MmaSpec, M: int, N: int) -> float:
    """Instructions that cover M × N, in units of the widest: an instruction with fewer columns counts as a fraction."""
    m, n, step = tile(spec)
    ways = ((M, N), (N, M))
    return min(-(-a // m) * (-(-b // step) * step) / n for a, b in ways)


def tile(spec: MmaSpec) -> tuple[int, int, int]:
    """Rows, columns, and the unit of the columns; 16, 16, 16 for an instruction without a named shape."""
    name = re.fullmatch(r"m(\d+)n(\d+|N)k\d+", spec.shape)
    if name is None:
        return 16, 16, 16
    m = int(name[1])
    return (m, 256, 8 if m == 64 else 16) if name[2] == "N" else (m, int(name[2]), int(name[2]))


def operations(spec: MmaSpec) -> float:
    """Operations of one instruction."""
    m, n, _ = tile(spec)
    return 2.0 * m * n * spec.k


def areas(M: int, N: int, K: int) -> tuple[int, int, int]:
    """Elements of A, of B, of the result."""
    return M * K, K * N, M * N


def unit(spec: MmaSpec) -> str:
    """The format that names the unit: fp8, fp6 and fp4 run at the rate of fp8, converted formats like fp16."""
    name = str(spec.issued.a_format)
    return "fp8" if re.fullmatch(r"e\dm\d(fnuz)?", name) else name


def width(fmt: Any) -> int:
    """Bytes of a stored number."""
    return BYTES.get(str(fmt), 1)
