"""The order of a library's product, revealed and said as a table of `fpemu.library.tables` does.

Where the order depends on the place in D (stream-K: the tiles of the last wave are cut in other ways), it is revealed
at places whose bits no order known gives, until all are explained; tiles that have one order each make the map.
"""

from __future__ import annotations

from itertools import groupby, product
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fpemu import library
from fpemu.errors import InputError
from fpemu.library import recorded, tables
from fpemu.mma import MmaSpec
from fpemu.mma import tree as trees
from fpemu.mma.tree import Sum
from fpemu.probing.naming import identical, name_order
from fpemu.probing.reveal import Revealed, reveal

_CPU = 4e9  # multiply-adds of a product that is emulated whole on the CPU, at most
_TRIES = 100  # places of D at most where the order is revealed
_SIDES = (512, 384, 256, 192, 128, 96, 64, 48, 32, 16, 8)  # rows and columns that a tile of D may have


class Calls(Protocol):
    """What `find` asks: a `Product`, or a stand-in for one."""

    kind: str
    M: int
    N: int
    K: int
    probes: int

    def __call__(self, base: NDArray[Any], where: NDArray[Any], value: NDArray[Any], b: float, /) -> NDArray[Any]: ...

    def at(self, row: int, column: int) -> Calls:
        """The same product, with probes that are read at about this place of D."""

    def run(self, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """A, B and D of the operands of a seed."""

    def sampled(self, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], str]:
        """A[rows], B[:, columns] and D at `fpemu.library.recorded.places`, and the digest of all of D."""


def find(asked: Calls, seed: int, *, device: Any = None) -> tuple[dict[str, Any], str]:
    """The order of a product as data of a table, and "same" or "differs" of its D by that order.

    Parameters
    ----------
    asked : Product, or a stand-in
    seed : int
        Of the operands that the order is checked with.
    device : {"cpu", "cuda"}, optional
        Where to emulate.

    Raises
    ------
    InputError, TimeoutError
        The answers fit no tree anywhere.
    """
    mode = arithmetic(asked)
    extra = {} if mode == asked.kind else {"as": mode}
    spec = library.spec_of(mode)
    data: dict[str, Any] | None
    try:
        data = {**said(revealed(asked, spec), spec), **extra}
    except InputError as problem:
        if "fit no tree" not in str(problem):
            raise
        data = None
    A, B, D = asked.run(seed)
    if data is not None:
        rows, columns = recorded.places(asked.M, asked.N)
        sample = library.predict(case(asked, data), A, B, rows, columns)
        if same(sample, D[rows][:, columns]).all():
            return data, "same"
    tiled = _by_place(asked, data, extra, spec, A, B, D, device)
    if tiled is not None:
        return {**tiled, **extra}, "same"
    if data is None:
        raise InputError("the answers fit no tree, and D is too large to be taken apart by places on the CPU")
    return data, "differs"


def arithmetic(asked: Calls) -> str:
    """The product's type, or "fp32" where fp32 inputs are not rounded to tf32: a thin product may run on fp32 units."""
    if asked.kind != "tf32":
        return asked.kind
    d = asked(np.zeros(asked.K), np.zeros((1, 1), np.int64), np.array([[1 + 2.0**-20]]), 1.0)
    return "tf32" if d[0] == 1.0 else "fp32"


def revealed(asked: Any, spec: MmaSpec) -> Revealed:
    """What the probes of a product say."""
    return reveal(asked, asked.K, spec, out="fp16" if asked.kind == "fp16->fp16" else None)


def said(found: Revealed, spec: MmaSpec) -> dict[str, Any]:
    """What was revealed, as data of a table."""
    if found.order is not None:
        return tables.encode(found.order)
    tree = found.tree
    if isinstance(tree, Sum) and tree.stored is not None and tree.fmt is None:
        whole = trees.canonical(Sum(tree.parts), trees.exact_products(spec))
        order = name_order(whole, found.k, spec)
        if order is not None and order.split is not None and order.promote is None and order.join == "ascending":
            again = trees.from_order(order, found.k, spec)
            kept = Sum(again.parts, None, tree.stored) if isinstance(again, Sum) else again
            if identical(trees.canonical(kept, trees.exact_products(spec)), tree):
                return {**tables.encode(order), "stored": tree.stored}
    return tables.encode(tree)


def case(asked: Calls, data: dict[str, Any]) -> library.Case:
    """A product with an order, of no version of the library."""
    made = tables.Builder({})
    number = made.order(data)
    head = {"library": "", "version": "", "hardware": "", "seed": 0, "orders": made.orders}
    return library.case_of(head, asked.kind, "NN", (asked.M, asked.N, asked.K), made.orders[number])


def same(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.bool_]:
    """Where two arrays have the same bits."""
    x, y = (np.ascontiguousarray(v) for v in (x, y))
    return np.asarray(x.view(f"u{x.itemsize}") == y.view(f"u{y.itemsize}"))


def _by_place(
    asked: Calls,
    first: dict[str, Any] | None,
    extra: dict[str, Any],
    spec: MmaSpec,
    A: NDArray[Any],
    B: NDArray[Any],
    D: NDArray[Any],
    device: Any,
) -> dict[str, Any] | None:
    """A map of tiles: orders revealed at places where none known gives D's bits, until all are explained."""
    if device is None and asked.M * asked.N * asked.K > _CPU:
        return None
    orders: list[dict[str, Any]] = []
    matches: list[NDArray[np.bool_]] = []
    draw = np.random.default_rng(asked.K)
    left = np.ones(D.shape, bool)
    waiting = [] if first is None else [first]
    for _ in range(_TRIES):
        if not waiting:
            r, c = np.argwhere(left)[draw.integers(int(left.sum()))]
            try:
                waiting.append({**said(revealed(asked.at(int(r), int(c)), spec), spec), **extra})
            except InputError:
                continue
            except TimeoutError:
                break
        data = waiting.pop()
        match = same(library.predict(case(asked, data), A, B, device=device), D)
        if data not in orders and (match & left).any():
            orders.append(data)
            matches.append(match)
            left &= ~match
        if not left.any():
            tiled = _tiled(orders, np.array(matches))
            if tiled is not None:
                return tiled
            raise InputError(f"{len(orders)} orders give all of D, but in no tiles")
    raise InputError(
        f"the order depends on the place in D: {len(orders)} orders were found, and {left.sum()} of {D.size} entries"
        f" are of none of them, first at {tuple(np.argwhere(left)[0].tolist())}"
    )


def _tiled(orders: list[dict[str, Any]], matches: NDArray[np.bool_]) -> dict[str, Any] | None:
    """The largest tiles that have one order each."""
    _, M, N = matches.shape
    sides = sorted(product(_SIDES, _SIDES), key=lambda side: -side[0] * side[1])
    for rows, columns in sides:
        whole = np.logical_and.reduceat(matches, np.arange(0, M, rows), axis=1)
        whole = np.logical_and.reduceat(whole, np.arange(0, N, columns), axis=2)
        if whole.any(axis=0).all():
            of = [orders[n] for n in whole.argmax(axis=0).ravel()]
            return {"tiles": [rows, columns], "map": [[part, len(list(run))] for part, run in groupby(of)]}
    return None
