"""The summation order of a library's product, revealed by probes, as an entry of a table.

Where the order depends on the position in D (stream-K cuts the tiles of the last wave in other ways), it is revealed at
positions where no known order gives the bits of D, until every entry is explained; tiles with one order form the map.
"""

from __future__ import annotations

from itertools import groupby, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.library import tables
from fpemu.library.cublas import CublasProduct
from fpemu.library.emulation import predict
from fpemu.library.tables import Product, instruction, sample_indices
from fpemu.mma import MmaSpec
from fpemu.mma import tree as trees
from fpemu.mma.device import Device
from fpemu.mma.tree import Sum, identical
from fpemu.probing.callables import bits
from fpemu.probing.reveal import Revealed, reveal
from fpemu.probing.trees import name_order

_CPU = 4e9  # largest number of multiply-adds of a product emulated on the CPU
_TRIES = 100  # largest number of positions of D at which the order is revealed
_SIDES = (512, 384, 256, 192, 128, 96, 64, 48, 32, 16, 8)  # possible heights and widths of a tile of D


def find(probed: CublasProduct, seed: int, *, device: Device = "cpu") -> tuple[dict[str, Any], bool]:
    """The order of a product as an entry of a table, and whether it reproduces the product of the seed's operands.

    Raises
    ------
    InputError, TimeoutError
        The probes fit no summation tree at any position.
    """
    mode = _arithmetic(probed)
    extra = {} if mode == probed.kind else {"as": mode}
    spec = instruction(mode)
    entry: dict[str, Any] | None
    try:
        entry = {**_entry(_revealed(probed, spec), spec), **extra}
    except InputError as problem:
        if "fit no tree" not in str(problem):
            raise
        entry = None
    A, B, D = probed.run(seed)
    if entry is not None:
        rows, columns = sample_indices(probed.M, probed.N)
        sample = predict(tabulated(probed, entry), A, B, rows, columns)
        if (bits(sample) == bits(D[rows][:, columns])).all():
            return entry, True
    if device != "cpu" or probed.M * probed.N * probed.K <= _CPU:
        return {**_by_position(probed, entry, extra, spec, A, B, D, device), **extra}, True
    if entry is None:
        raise InputError("the results fit no tree, and D is too large for a search by positions on the CPU")
    return entry, False


def _arithmetic(probed: CublasProduct) -> str:
    """The product's type; "fp32" if fp32 inputs are not rounded to tf32, as in thin products on CUDA cores."""
    if probed.kind != "tf32":
        return probed.kind
    d = probed(np.zeros(probed.K), np.zeros((1, 1), np.int64), np.array([[1 + 2.0**-20]]), 1.0)
    return "tf32" if d[0] == 1.0 else "fp32"


def _revealed(probed: CublasProduct, spec: MmaSpec) -> Revealed:
    return reveal(probed, probed.K, spec, out="fp16" if probed.kind == "fp16->fp16" else None)


def _entry(revealed: Revealed, spec: MmaSpec) -> dict[str, Any]:
    """A revealed order as an entry of a table: a KOrder, with "stored" if that explains the tree, or the tree."""
    if revealed.order is not None:
        return tables.encode(revealed.order)
    tree, exact = revealed.tree, trees.exact_products(spec)
    if isinstance(tree, Sum) and tree.stored is not None and tree.fmt is None:
        order = name_order(trees.canonical(Sum(tree.parts), exact), revealed.k, spec)
        if order is not None and order.split is not None and order.promote is None and order.join == "ascending":
            again = trees.from_order(order, revealed.k, spec)
            kept = Sum(again.parts, None, tree.stored) if isinstance(again, Sum) else again
            if identical(trees.canonical(kept, exact), tree):
                return {**tables.encode(order), "stored": tree.stored}
    return tables.encode(tree)


def tabulated(probed: CublasProduct, entry: dict[str, Any]) -> Product:
    """The product with an order, for emulation."""
    table = {"library": "", "version": "", "hardware": "", "seed": 0, "orders": []}
    return tables.product_of(table, probed.kind, "NN", (probed.M, probed.N, probed.K), entry)


def _by_position(
    probed: CublasProduct,
    first: dict[str, Any] | None,
    extra: dict[str, Any],
    spec: MmaSpec,
    A: NDArray[Any],
    B: NDArray[Any],
    D: NDArray[Any],
    device: Device,
) -> dict[str, Any]:
    """A map of tiles: orders are revealed at unexplained positions until every entry of D is explained."""
    orders: list[dict[str, Any]] = []
    matches: list[NDArray[np.bool_]] = []
    draw = np.random.default_rng(probed.K)
    unexplained = np.ones(D.shape, bool)
    for turn in range(_TRIES):
        if turn == 0 and first is not None:
            entry = first
        else:
            r, c = np.argwhere(unexplained)[draw.integers(int(unexplained.sum()))]
            try:
                entry = {**_entry(_revealed(probed.at(int(r), int(c)), spec), spec), **extra}
            except InputError:
                continue
            except TimeoutError:
                break
        match = bits(predict(tabulated(probed, entry), A, B, device=device)) == bits(D)
        if entry not in orders and (match & unexplained).any():
            orders.append(entry)
            matches.append(match)
            unexplained &= ~match
        if not unexplained.any():
            return _tiled(orders, np.array(matches))
    raise InputError(
        f"the order depends on the position in D: {len(orders)} orders were revealed, and they do not explain"
        f" {unexplained.sum()} of {D.size} entries, first at {tuple(np.argwhere(unexplained)[0].tolist())}"
    )


def _tiled(orders: list[dict[str, Any]], matches: NDArray[np.bool_]) -> dict[str, Any]:
    """The largest tiles with one order each."""
    _, M, N = matches.shape
    for rows, columns in sorted(product(_SIDES, _SIDES), key=lambda side: -side[0] * side[1]):
        whole = np.logical_and.reduceat(matches, np.arange(0, M, rows), axis=1)
        whole = np.logical_and.reduceat(whole, np.arange(0, N, columns), axis=2)
        if whole.any(axis=0).all():
            of = [orders[n] for n in whole.argmax(axis=0).ravel()]
            return {"tiles": [rows, columns], "map": [[entry, len(list(run))] for entry, run in groupby(of)]}
    raise InputError(f"{len(orders)} orders explain all of D, but not by tiles")
