"""Batch invariance: the sizes and settings for which the summation order of an output row of a GEMM changes."""

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
    """Successive numbers of rows, or values of another variable, for which the rows of D have the same orders.

    Attributes
    ----------
    first, last : int
        The first and the last of these values.
    orders : tuple of int
        Indices of the orders of the rows of D, into `Invariance.orders`: one, several if rows differ, or none if the
        order is not known.
    name : str
        Name of the variable.
    """

    first: Any
    last: Any
    orders: tuple[int, ...]
    name: str = "M"

    def __str__(self) -> str:
        span = f"{self.name} = {self.first}" + f" to {self.last}" * (self.last != self.first)
        if not self.orders:
            return f"{span}: order not known"
        several = "orders" if len(self.orders) > 1 else "order"
        return f"{span}: {several} {', '.join(str(n + 1) for n in self.orders)}"


@dataclass(frozen=True)
class Invariance:
    """Summation orders of the rows of a GEMM against its number of rows M, or another variable.

    Attributes
    ----------
    n, k : int
        Columns of D, and length of the sums.
    count : int
        Number of compared values.
    intervals : tuple of Interval
        Successive values with the same orders.
    orders : tuple of str
        Each order in words, or the reason why it is not known.
    m : int or None
        Rows of D, if another variable than M was varied.
    """

    n: int
    k: int
    count: int
    intervals: tuple[Interval, ...]
    orders: tuple[str, ...]
    m: int | None = None

    @property
    def invariant(self) -> bool:
        """Whether every row of D has the same known order for every value."""
        return len(self.orders) == 1 and all(interval.orders for interval in self.intervals)

    @property
    def first_break(self) -> Any:
        """The first value at which a row has another order than the first row of the first value, or None."""
        return next((i.first for i in self.intervals if i.orders not in ((), (0,))), None)

    def __str__(self) -> str:
        name = self.intervals[0].name
        sizes = [f"{n} = {x}" for n, x in (("M", self.m), ("N", self.n), ("K", self.k)) if x is not None and n != name]
        what = f"{', '.join(sizes)}, {self.count} values of {name} from {self.intervals[0].first}"
        kind = "batch-invariant" if name == "M" else "invariant"
        if self.invariant:
            return f"{kind}: one order; {what} to {self.intervals[-1].last}\norder 1: {self.orders[0]}"
        title = f"NOT {kind}: {len(self.orders)} orders, the first change at {name} = {self.first_break}"
        if self.first_break is None:
            title = f"{kind} or not: one order, and orders that are not known"
        lines = [f"{title}; {what} to {self.intervals[-1].last}", *map(str, self.intervals[:_LISTED])]
        lines += [f"and {len(self.intervals) - _LISTED} more intervals"] * (len(self.intervals) > _LISTED)
        return "\n".join([*lines, *(f"order {i + 1}: {text}" for i, text in enumerate(self.orders))])


@in_ieee
def invariance(
    gemm: Callable[..., Any],
    n: int,
    k: int,
    *,
    m: int | Iterable[int] = range(1, 65),
    vary: str = "m",
    values: Sequence[Any] = (),
    spec: MmaSpec | None = None,
    fmt: str | None = None,
    out: str | None = None,
    layout: Layout = "NN",
    orders: bool = True,
    seed: int = 0,
    report: Callable[..., None] | None = None,
) -> Invariance:
    """Find the numbers of rows M, or the values of another variable, at which a GEMM changes its summation order.

    Parameters
    ----------
    gemm : callable (A, B) -> D
        As in `fpemu.probing.reveal`.
    n, k : int
        Columns of B, and length of the sums.
    m : int or iterable of int
        The numbers of rows, ascending; one number to vary something else.
    vary : str
        "m"; "n"; "k": zeros pad the operands to the length; "alignment": NumPy arrays that begin so many bytes after an
        address divisible by 4096; or a keyword of `gemm`, such as "workspace", "stream" or "ranks".
    values : sequence
        Values of another variable than M; ascending sizes for N and K.
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
        The intervals with equal orders, and the orders.

    Raises
    ------
    InputError
        Numbers of rows that do not ascend, a callable that raises or changes its operands, or an unknown format.

    Notes
    -----
    All rows of A are one random row, so that rows of D with one order have the same bits, for each M; to vary N, all
    columns of B are one random column, and columns of D are compared. Two orders whose sums are equal in all compared
    entries are not distinguished.

    Examples
    --------
    >>> import fpemu
    >>> def gemm(A, B, split=None):
    ...     return fpemu.simt.gemm(A, B, order=fpemu.mma.KOrder(split=32 if len(A) < 5 else split))
    >>> print(invariance(gemm, 8, 64, m=range(1, 9)))
    NOT batch-invariant: 2 orders, the first change at M = 5; N = 8, K = 64, 8 values of M from 1 to 8
    M = 1 to 4: order 1
    M = 5 to 8: order 2
    order 1: two chains of 32 products, then added
    order 2: one chain of 64 products
    >>> invariance(gemm, 8, 64, m=8, vary="split", values=[16, 32]).first_break
    32
    """
    sizes = ascending(m)
    n, k, seed = integer("n", n, 1, 2**20), integer("k", k, 1, 2**20), integer("seed", seed, 0)
    flag("orders", orders), choice("layout", layout, ("NN", "TN", "NT", "TT"))
    if vary != "m" and (len(sizes) > 1 or not values):
        raise InputError(f"vary={vary!r} needs its values=, and one number of rows as m=")
    tried: Sequence[Any] = {"m": sizes, "n": values, "k": values}.get(vary, values)
    tried = ascending(tried, vary) if vary in ("m", "n", "k") else tuple(tried)
    if vary == "alignment":
        tried = integers("alignment", tried, 0, 4095)
    to = formats.get(fmt or (str(spec.a_format) if spec is not None else "fp32"))
    rng = np.random.default_rng(seed)
    length = tried[0] if vary == "k" else k  # of the numbers before the zeros
    line, others = (
        _round_to(rng.standard_normal((length, x)), to).astype(to.dtype) for x in (1, sizes[0] if vary == "n" else n)
    )
    found: list[NDArray[Any]] = []
    places: list[tuple[Any, int, int]] = []  # for each order, a value, a row and a column that shows it
    calls = 0

    def product(value: Any) -> tuple[CheckedCallable, tuple[int, int, int]]:
        """The function for a value, and its sizes."""
        given = {} if vary in ("m", "n", "k", "alignment") else {vary: value}

        def call(A: Any, B: Any) -> Any:
            operands = [_shifted(x, value) for x in (A, B)] if vary == "alignment" else [A, B]
            return gemm(*operands, **given)

        shape = {"m": sizes[0], "n": n, "k": k} | ({vary: value} if vary in ("m", "n", "k") else {})
        return CheckedCallable(call, report=report and counted, layout=layout), (shape["m"], shape["n"], shape["k"])

    def counted(_: int) -> None:
        nonlocal calls
        calls += 1
        report and report(calls)

    def orders_of(value: Any) -> tuple[int, ...]:
        call, (M, N, K) = product(value)
        one, many = (np.concatenate([x, np.zeros((K - length, x.shape[1]), x.dtype)]) for x in (line, others))
        alike = np.repeat(one, N if vary == "n" else M, axis=1)
        D = bits(call(many.T, alike).T if vary == "n" else call(alike.T, many))
        left, seen = np.arange(len(D)), []
        while left.size:
            first = D[left[0]]
            index = next((i for i, known in enumerate(found) if np.array_equal(known, first)), len(found))
            if index == len(found):
                entry = int(np.argmax(first != found[0])) if found else 0
                found.append(first.copy())
                places.append((value, *((entry, int(left[0])) if vary == "n" else (int(left[0]), entry))))
            seen.append(index)
            left = left[(D[left] != first).any(axis=1)]
        return tuple(seen)

    name = vary.upper() if vary in ("m", "n", "k") else vary
    intervals = grouped(((value, orders_of(value)) for value in tried), name)
    texts = []
    for value, i, j in places if orders else ():
        call, (M, N, K) = product(value)
        try:
            shape: Any = {"shape": (M, N), "at": (i, j), "layout": layout}
            texts.append(sentence(reveal(call.gemm, K, spec, fmt=fmt, out=out, **shape).tree))
        except InputError as problem:
            texts.append(f"not revealed: {problem}")
    known = tuple(texts) if orders else ("not probed",) * len(places)
    return Invariance(n, k, len(tried), intervals, known, None if vary == "m" else sizes[0])


def _shifted(x: NDArray[Any], offset: int) -> NDArray[Any]:
    """A copy that begins `offset` bytes after an address divisible by 4096."""
    memory = np.empty(x.nbytes + 8192, np.uint8)
    start = -memory.ctypes.data % 4096 + offset
    strides: Any = "F" if x.flags.f_contiguous and not x.flags.c_contiguous else "C"
    copy = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape, order=strides)
    copy[...] = x
    return copy


def ascending(m: Any, name: str = "m") -> tuple[int, ...]:
    """Numbers of rows, or one, as a tuple."""
    sizes = integers(name, tuple(m) if isinstance(m, Iterable) else m, 1, 2**20, one=True)
    if not sizes or any(a >= b for a, b in pairwise(sizes)):
        raise InputError(f"{name} must be ascending numbers, as range(1, 65)")
    return sizes


def grouped(rows: Iterable[tuple[Any, Sequence[int]]], name: str = "M") -> tuple[Interval, ...]:
    """Successive M with the same orders as one interval."""
    intervals: list[Interval] = []
    for M, orders in rows:
        if intervals and intervals[-1].orders == tuple(orders):
            intervals[-1] = Interval(intervals[-1].first, M, tuple(orders), name)
        else:
            intervals.append(Interval(M, M, tuple(orders), name))
    return tuple(intervals)
