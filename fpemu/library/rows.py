"""Batch invariance of a library's product, from its orders alone."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from fpemu.arguments import choice, integer
from fpemu.errors import InputError
from fpemu.library import openblas, products, tables
from fpemu.library.tables import Layout, Tiles
from fpemu.probing.invariance import Invariance, ascending, grouped
from fpemu.probing.trees import sentence


def invariance(
    library: str,
    type: str,
    n: int,
    k: int,
    *,
    m: Iterable[int] = range(1, 65),
    layout: Layout = "TN",
    hardware: str | None = None,
    version: str | None = None,
) -> Invariance:
    """Return the numbers of rows M at which a library changes the summation order of an output row.

    Parameters
    ----------
    library : {"cublas", "openblas"}
        Library. "cublas": the M whose orders its table or its model has. "openblas": the first and the last row, on one
        thread.
    type : str
        Type of the product, as in `lookup`; "fp32" or "fp64" for OpenBLAS.
    n, k : int
        Columns of B, and length of the sums.
    m : iterable of int
        The numbers of rows, ascending.
    layout : {"TN", "NN"}
        Layout, as in `lookup`.
    hardware, version : str, optional
        GPU or kernel, and version of the library, as in `emulate`.

    Returns
    -------
    Invariance
        The intervals of M with equal orders, and the orders.

    Raises
    ------
    InputError
        Unknown names, or no tabulated product with these n, k and m.

    Examples
    --------
    >>> import fpemu
    >>> found = fpemu.library.invariance("openblas", "fp32", 40, 500, hardware="HASWELL", m=range(2, 30))
    >>> found.invariant
    False
    """
    choice("library", library, ("cublas", "openblas")), choice("layout", layout, tables.LAYOUTS)
    n, k, sizes = integer("n", n, 1, 2**20), integer("k", k, 1, 2**20), ascending(m)
    known: dict[Any, tuple[int, str]] = {}

    def index(key: Any, text: Any) -> int:
        if key not in known:
            known[key] = len(known), text()
        return known[key][0]

    def of_openblas(M: int) -> tuple[int, ...]:
        orders = openblas.element_orders(blocks, layout, (M, n, k))
        found = []
        for row in dict.fromkeys((0, M - 1)):
            lanes = np.zeros(n, np.int64)
            used = [orders.lanes]
            for rows, columns, others in orders.regions:
                if (rows == row).any():
                    used.append(others)
                    lanes[columns] = len(used) - 1
            key = (tuple(orders.panels), orders.adds, tuple(used), lanes.tobytes())
            other = int(np.argmax(lanes > 0))
            found.append(index(key, lambda: _in_words(blocks, (M, n, k), row, other, layout)))  # noqa: B023
        return tuple(dict.fromkeys(found))

    if library == "openblas":
        if type not in ("fp32", "fp64"):
            raise InputError(f"openblas has no products of type {type}: fp32 or fp64 is needed")
        blocks = openblas.blocking("sgemm" if type == "fp32" else "dgemm", hardware, version)
        intervals = grouped((M, of_openblas(M)) for M in sizes)
    else:
        choice("type of a product", type, tables.TYPES)
        gpu: Any = {"version": version, "hardware": hardware or "H200"}
        table = products._table("cublas", **gpu)
        groups = [g for g in table["cases"] if (g["type"], g["layout"]) == (type, layout)]
        tabulated = {row[0] for group in groups for row in group["rows"] if (row[1], row[2]) == (n, k)}
        shapes = np.array([(M, n, k) for M in sizes])
        answers = products.configurations("cublas", type, shapes, layout=layout, **gpu).tolist()
        answered = {M: tuple(row) for M, row in zip(sizes, answers, strict=True) if row[0] >= 0}
        known_orders: dict[Any, tuple[int, ...]] = {None: ()}  # none: an order that is not known

        def of_cublas(M: int) -> tuple[int, ...]:
            key = M if M in tabulated else answered.get(M)  # products of one K and configuration have one order
            if key not in known_orders:
                known_orders[key] = ()
                with suppress(InputError):  # a configuration without a known order
                    row = products.lookup("cublas", type, (M, n, k), layout=layout, **gpu)
                    lines = row.describe()[1 if isinstance(row.order, Tiles) else 0 :]
                    texts = (x.partition(" tiles: ")[2] or x for x in lines)
                    known_orders[key] = tuple(index(text, lambda text=text: text) for text in texts)
            return known_orders[key]

        intervals = grouped((M, of_cublas(M)) for M in sizes)
        if not known:
            raise InputError(
                f"cublas: no order of a {type} {layout} product with N = {n}, K = {k} and these M is known"
            )
    return Invariance(n, k, len(sizes), intervals, tuple(text for _, text in known.values()))


def _in_words(blocks: Any, shape: tuple[int, int, int], row: int, column: int, layout: Layout) -> str:
    """The order of a row in words: at its first column, and at one with other chains."""
    texts = [sentence(openblas.tree(blocks, shape, (row, j), layout=layout)) for j in dict.fromkeys((0, column))]
    return "; other columns: ".join(dict.fromkeys(texts))
