"""Batch invariance: the numbers of rows M for which the summation order of an output row of a GEMM changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu._system import in_ieee
from fpemu.arguments import choice, flag, integer, integers
from fpemu.errors import InputError
from fpemu.mma.spec import MmaSpec
from fpemu.probing.callables import CheckedCallable, bits
from fpemu.probing.reveal import Layout, reveal
from fpemu.probing.trees import sentence
from fpemu.rounding import _round_to

_LISTED = 12  # intervals in the text


@dataclass(frozen=True)
class Interval:
    """Successive numbers of rows for which the rows of D have the same summation orders.

    Attributes
    ----------
    first, last : int
        The first and the last of these numbers of rows M.
    orders : tuple of int
        Indices of the orders of the rows of D, into `Invariance.orders`: one, or several if rows differ.
    """

    first: int
    last: int
    orders: tuple[int, ...]

    def __str__(self) -> str:
        span = f"M = {self.first}" + f" to {self.last}" * (self.last > self.first)
        several = "orders" if len(self.orders) > 1 else "order"
        return f"{span}: {several} {', '.join(str(n + 1) for n in self.orders)}"


@dataclass(frozen=True)
class Invariance:
    """Summation orders of the rows of a GEMM against its number of rows M.

    Attributes
    ----------
    n, k : int
        Columns of D, and length of the sums.
    count : int
        Number of compared M.
    intervals : tuple of Interval
        Successive M with the same orders.
    orders : tuple of str
        Each order in words, or the reason why it is not known.
    """

    n: int
    k: int
    count: int
    intervals: tuple[Interval, ...]
    orders: tuple[str, ...]

    @property
    def invariant(self) -> bool:
        """Whether every row of D has the same order for every M."""
        return len(self.orders) == 1

    @property
    def first_break(self) -> int | None:
        """The smallest M of the given ones at which a row has another order than the first row of the first M."""
        return next((i.first for i in self.intervals if i.orders != (0,)), None)

    def __str__(self) -> str:
        what = f"N = {self.n}, K = {self.k}, {self.count} values of M from {self.intervals[0].first}"
        if self.invariant:
            return f"batch-invariant: one order; {what} to {self.intervals[-1].last}\norder 1: {self.orders[0]}"
        title = f"NOT batch-invariant: {len(self.orders)} orders, the first change at M = {self.first_break}"
        lines = [f"{title}; {what} to {self.intervals[-1].last}", *map(str, self.intervals[:_LISTED])]
        lines += [f"and {len(self.intervals) - _LISTED} more intervals"] * (len(self.intervals) > _LISTED)
        return "\n".join([*lines, *(f"order {i + 1}: {text}" for i, text in enumerate(self.orders))])


@in_ieee
def invariance(
    gemm: Callable[[Any, Any], Any],
    n: int,
    k: int,
    *,
    m: Iterable[int] = range(1, 65),
    spec: MmaSpec | None = None,
    fmt: str | None = None,
    out: str | None = None,
    layout: Layout = "NN",
    orders: bool = True,
    seed: int = 0,
    report: Callable[..., None] | None = None,
) -> Invariance:
    """Find the numbers of rows M at which a GEMM changes the summation order of an output row.

    Parameters
    ----------
    gemm : callable (A, B) -> D
        As in `fpemu.probing.reveal`.
    n, k : int
        Columns of B, and length of the sums.
    m : iterable of int
        The numbers of rows, ascending.
    spec : MmaSpec, optional
        The presumed instruction of the GEMM.
    fmt, out : str, optional
        Formats of the operands and of D, as in `fpemu.probing.reveal`.
    layout : {"NN", "TN", "NT", "TT"}
        Layout of A and B, as in `fpemu.probing.reveal`.
    orders : bool
        Whether to reveal each order by probes; else only the intervals are found.
    seed : int
        Seed of the operands.
    report : callable, optional
        Called with the number of calls after each.

    Returns
    -------
    Invariance
        The intervals of M with equal orders, and the orders.

    Raises
    ------
    InputError
        Numbers of rows that do not ascend, a callable that raises or changes its operands, or an unknown format.

    Notes
    -----
    All rows of A are one random row, so that rows of D with one order have the same bits, for each M. Two orders whose
    sums are equal in all n columns are not distinguished.

    Examples
    --------
    >>> import fpemu
    >>> def gemm(A, B):
    ...     return fpemu.simt.gemm(A, B, order=fpemu.mma.KOrder(split=32 if len(A) < 5 else None))
    >>> print(invariance(gemm, 8, 64, m=range(1, 9)))
    NOT batch-invariant: 2 orders, the first change at M = 5; N = 8, K = 64, 8 values of M from 1 to 8
    M = 1 to 4: order 1
    M = 5 to 8: order 2
    order 1: two chains of 32 products, then added
    order 2: one chain of 64 products
    """
    sizes = ascending(m)
    n, k, seed = integer("n", n, 1, 2**20), integer("k", k, 1, 2**20), integer("seed", seed, 0)
    flag("orders", orders), choice("layout", layout, ("NN", "TN", "NT", "TT"))
    to = formats.get(fmt or (str(spec.a_format) if spec is not None else "fp32"))
    rng = np.random.default_rng(seed)
    row, B = (_round_to(rng.standard_normal(shape), to).astype(to.dtype) for shape in ((1, k), (k, n)))
    call = CheckedCallable(gemm, report=report, layout=layout)
    found: list[NDArray[Any]] = []
    places: list[tuple[int, int, int]] = []  # for each order, an M, a row and a column that shows it

    def orders_of(M: int) -> tuple[int, ...]:
        D = bits(call(np.repeat(row, M, axis=0), B))
        left, seen = np.arange(M), []
        while left.size:
            first = D[left[0]]
            index = next((i for i, known in enumerate(found) if np.array_equal(known, first)), len(found))
            if index == len(found):
                column = int(np.argmax(first != found[0])) if found else 0
                found.append(first.copy())
                places.append((M, int(left[0]), column))
            seen.append(index)
            left = left[(D[left] != first).any(axis=1)]
        return tuple(seen)

    intervals = grouped((M, orders_of(M)) for M in sizes)
    texts = []
    for M, i, j in places if orders else ():
        try:
            shape: Any = {"shape": (M, n), "at": (i, j), "layout": layout}
            texts.append(sentence(reveal(gemm, k, spec, fmt=fmt, out=out, **shape).tree))
        except InputError as problem:
            texts.append(f"not revealed: {problem}")
    return Invariance(n, k, len(sizes), intervals, tuple(texts) if orders else ("not probed",) * len(places))


def ascending(m: Any) -> tuple[int, ...]:
    """Numbers of rows, or one, as a tuple."""
    sizes = integers("m", tuple(m) if isinstance(m, Iterable) else m, 1, 2**20, one=True)
    if not sizes or any(a >= b for a, b in pairwise(sizes)):
        raise InputError("m must be ascending numbers of rows, as range(1, 65)")
    return sizes


def grouped(rows: Iterable[tuple[int, Sequence[int]]]) -> tuple[Interval, ...]:
    """Successive M with the same orders as one interval."""
    intervals: list[Interval] = []
    for M, orders in rows:
        if intervals and intervals[-1].orders == tuple(orders):
            intervals[-1] = Interval(intervals[-1].first, M, tuple(orders))
        else:
            intervals.append(Interval(M, M, tuple(orders)))
    return tuple(intervals)
