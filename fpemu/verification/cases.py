"""Test cases as functions of a seed, the same on every machine, their products, and the memory layouts of operands."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.mma import KOrder, MmaSpec
from fpemu.mma import operand_streams as streams
from fpemu.mma.codes import values

Array = NDArray[Any]
Shape = tuple[int, ...]
Operands = tuple[Array, Array, Array | None]
"""A, B and C; None without a C"""
Result = Array | str
"""Codes of a result, or the text of the error that the caller of the product caused"""
LAYOUTS = ("rows", "columns", "rows padded", "columns padded", "spaced", "reversed", "repeated")
"""Memory layouts of an operand; padded: with a leading dimension; repeated: the first row, with a row stride of 0"""


@dataclass(frozen=True)
class Case:
    """One product of a suite: everything but the operands, which are drawn from `key`."""

    subject: Any  # the instruction, scheme, format or kind of product under test
    number: int  # index in its group
    key: int
    sizes: tuple[int, int, int]  # M, N, K
    kinds: tuple[str, ...] = ()  # classes of `fpemu.mma.operand_streams` of the operands
    layouts: tuple[str, ...] = ()
    lead: tuple[Shape, Shape, Shape] = ((), (), ())  # leading axes of A, B and C
    order: Any = None  # KOrder or tree; None: the kernel's own
    alpha: complex = 1.0
    beta: complex = 0.0  # 0: there is no C
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)  # further choices of the suite

    @property
    def shape(self) -> Shape:
        """Shape of D."""
        return (*np.broadcast_shapes(*self.lead[: 3 if self.beta else 2]), *self.sizes[:2])

    @property
    def products(self) -> int:
        """Number of multiply-adds."""
        return prod((*np.broadcast_shapes(*self.lead), *self.sizes))

    def __str__(self) -> str:
        shown = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("subject", "number", "key")}
        shown["options"] = {n: v for n, v in self.options.items() if v and isinstance(v, str | int | tuple)}
        return ", ".join(f"{name} {value}" for name, value in shown.items() if value not in ((), {}, None))


class Computed(NamedTuple):
    """Result of a product on the GPU."""

    result: Result
    outside: int = 0  # bytes beside the result and in the operands that the calls changed
    deferred: bool | None = None  # whether `fpemu.gpu.check` raised; None: the calls deferred no error


@dataclass
class Product(ABC):
    """A case with its operands and its kernel: the result on the GPU, and the expected results."""

    case: Case
    _: KW_ONLY
    paths: Sequence[str] = ("",)  # that compute it
    counts: Sequence[str] = ()  # names of counts that include it
    kernel: str | None = None
    replay: Any = None  # a JSON value from which `ProductSuite.product` returns the same emulation without a GPU

    @abstractmethod
    def compute(self, path: str) -> Computed:
        """Compute the product on the GPU by a path."""

    @abstractmethod
    def emulate(self) -> Result:
        """Compute the product without a GPU."""

    def expected(self, path: str) -> tuple[dict[str, Result], bool | None]:
        """Return the results that a path must return by implementation, and whether `fpemu.gpu.check` must raise."""
        return {"the emulation": self.emulate()}, None


def shapes(text: str) -> list[tuple[int, int, int]]:
    """Return the sizes in "128x128x64 1x1x1"."""
    return [(int(x), int(y), int(z)) for x, y, z in (sizes.split("x") for sizes in text.split())]


class Draw:
    """Numbers as a function of a seed and names: SHA-256 of both and of the count of numbers drawn before."""

    def __init__(self, seed: int, *names: object) -> None:
        self._base, self._count = " ".join(map(str, (seed, *names))), 0

    def word(self) -> int:
        """64 bits."""
        self._count += 1
        return int.from_bytes(hashlib.sha256(f"{self._base} {self._count}".encode()).digest()[:8], "big")

    def below(self, n: int) -> int:
        """0 to n - 1."""
        return self.word() % n

    def between(self, low: int, high: int) -> int:
        """`low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def pick(self, options: Sequence[Any]) -> Any:
        """One of the options."""
        return options[self.below(len(options))]

    def shuffled(self, n: int) -> list[int]:
        """0 to n - 1 in random order."""
        return sorted(range(n), key=[self.word() for _ in range(n)].__getitem__)

    def order(self, splits: Sequence[int | None], promotes: Sequence[int | None] = (None,)) -> KOrder:
        """A split-K order with a length of the chains and an interval of promotion from these."""
        tile, split = self.pick((None, 16, 33)), self.pick(splits)
        residue_first = tile is not None and bool(self.below(2))
        promote = self.pick(promotes) if len(promotes) > 1 else None
        join = self.pick(("ascending", "descending", "pairwise"))
        return KOrder(split=split, tile=tile, residue_first=residue_first, promote=promote, join=join)


def drawn(spec: MmaSpec, letter: str, kind: str, key: int, shape: Shape, first: int = 0) -> Array:
    """Draw values of A, B by its columns, or C, of shape (..., rows, columns), in a class of operands.

    The matrices are those from `first` on of `fpemu.mma.operand_streams`.
    """
    *lead, rows, columns = shape
    codes = streams.operand(spec, letter, kind, key, first, prod(lead), rows, columns)
    return values(codes, streams.formats(spec)["ABC".index(letter)]).reshape(shape)


def arrange(x: Array, layout: str, pad: int = 5) -> Array:
    """Return the same values in one of `LAYOUTS`, padded by so many elements; "repeated" repeats the first row."""
    if layout == "rows":
        return np.ascontiguousarray(x)
    if layout.startswith("columns"):
        return arrange(x.swapaxes(-1, -2), layout.replace("columns", "rows"), pad).swapaxes(-1, -2)
    if layout == "reversed":
        return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]
    if layout == "repeated":
        return np.broadcast_to(x[..., :1, :].copy(), x.shape)
    *lead, rows, columns = x.shape
    wide = np.empty((*lead, 2 * rows, 3 * columns) if layout == "spaced" else (*lead, rows, columns + pad), x.dtype)
    wide.view(np.uint8)[...] = 0xFF  # NaN
    view = wide[..., ::2, ::3] if layout == "spaced" else wide[..., :columns]
    view[...] = x
    return view


def codes(D: Array) -> Array:
    """Return the bit patterns of a result."""
    D = np.ascontiguousarray(D)
    return D.view(f"u{D.dtype.itemsize}")
