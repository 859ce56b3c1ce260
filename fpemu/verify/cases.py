"""Test cases as functions of a seed: the same on every machine, so that two machines compare results by digests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.mma.order import KOrder

Shape = tuple[int, ...]
Result = NDArray[Any] | str
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
    def products(self) -> int:
        """Number of multiply-adds."""
        return prod(np.broadcast_shapes(*self.lead)) * prod(self.sizes)

    def __str__(self) -> str:
        order = self.order if self.order is None or isinstance(self.order, KOrder) else type(self.order).__name__
        parts = [
            "×".join(map(str, self.sizes)),
            " and ".join(self.kinds),
            f"alpha {self.alpha:g}, beta {self.beta:g}",
            f"leading axes {self.lead}" if any(self.lead) else "",
            "" if order is None else str(order),
            " / ".join(self.layouts),
            ", ".join(f"{n} {v}" for n, v in self.options.items() if v and isinstance(v, str | int | tuple)),
        ]
        return ", ".join(part for part in parts if part)


@dataclass
class Computed:
    """Result of a case on the GPU."""

    result: Result
    kernel: str = ""  # name of the kernel that ran, to be listed in the outcome
    counts: Mapping[str, int] = field(default_factory=dict)  # added to the outcome's counts
    outside: int = 0  # elements outside the result's memory that the kernel changed
    facts: dict[str, Any] = field(default_factory=dict)  # that a replay of the case needs
    deferred: bool | None = None  # whether `fpemu.gpu.check` raised; None: no error was deferred by request


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


def arrange(x: NDArray[Any], layout: str) -> NDArray[Any]:
    """Return the same values in one of `LAYOUTS`; "repeated" returns the first row in place of every row."""
    if layout == "rows":
        return np.ascontiguousarray(x)
    if layout == "columns":
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "reversed":
        return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]
    if layout == "repeated":
        return np.broadcast_to(x[..., :1, :].copy(), x.shape)
    if layout == "spaced":
        wide = np.zeros((*x.shape[:-2], 2 * x.shape[-2], 3 * x.shape[-1]), x.dtype)
        view = wide[..., ::2, ::3]
    elif layout == "columns padded":
        return arrange(x.swapaxes(-1, -2), "rows padded").swapaxes(-1, -2)
    else:
        wide = np.full((*x.shape[:-1], x.shape[-1] + 5), np.nan, x.dtype)
        view = wide[..., : x.shape[-1]]
    view[...] = x
    return view


def codes(D: NDArray[Any]) -> NDArray[Any]:
    """Return the bit patterns of a result."""
    D = np.ascontiguousarray(D)
    return D.view(f"u{D.dtype.itemsize}")
