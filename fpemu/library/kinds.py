"""What kinds of orders a table has, told from the orders themselves: `summary`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fpemu.library.tables import Tiles
from fpemu.mma.order import KOrder
from fpemu.probing.naming import chains_of

if TYPE_CHECKING:
    from fpemu.library import Case

KINDS = {
    "KOrder": "a KOrder",
    "KOrder, halves": "a KOrder whose slices' sums are rounded to fp16",
    "blocks": "tree: slices of k, by an instruction with shorter blocks than the type's",
    "slices": "tree: slices of k joined in an order of their own, or gone on from",
    "interleaved": "tree: accumulators of the instruction that take turns along k",
    "lanes": "tree: multiply-adds of lanes that take turns along k",
    "runs": "tree: multiply-adds of lanes that take neighbours, or one product each",
    "place": "by the place in D: tiles with orders of their own (stream-K)",
}


def kind(case: Case) -> str:
    """The name in `KINDS` of a case's order."""
    order = case.order
    if isinstance(order, KOrder):
        return "KOrder, halves" if case.stored else "KOrder"
    if isinstance(order, Tiles):
        return "place"
    chains = chains_of(order)
    positions = [[k for block in chain.blocks for k in block] for chain in chains]
    gaps = any(max(ks) - min(ks) >= len(ks) for ks in positions)
    if all(chain.kind == "fma" for chain in chains):
        return "lanes" if gaps else "runs"
    if gaps:
        return "interleaved"
    full = max(len(block) for chain in chains for block in chain.blocks) == case.spec.block
    return "slices" if full or any(chain.start is not None for chain in chains) else "blocks"


def summary(cases: Iterable[Case] | None = None) -> dict[str, dict[str, int]]:
    """For each type of product, how many cases there are of each kind of order.

    Examples
    --------
    >>> from fpemu import library
    >>> sum(sum(kinds.values()) for kinds in summary().values()) == sum(1 for _ in library.orders())
    True
    """
    from fpemu import library  # which imports this package

    count = Counter((case.type, kind(case)) for case in (library.orders() if cases is None else cases))
    return {of: {k: count[of, k] for k in KINDS if count[of, k]} for of in dict.fromkeys(of for of, _ in count)}
