"""Classification of tabulated orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fpemu.library.product import Product, Tiles
from fpemu.mma.order import KOrder
from fpemu.probing.naming import chains_of

KINDS = {
    "KOrder": "a KOrder",
    "KOrder, halves": "a KOrder with partial sums rounded to fp16",
    "blocks": "tree: split-K by an instruction with shorter blocks than the type's",
    "slices": "tree: split-K with another reduction, or chains that start from a partial sum",
    "interleaved": "tree: interleaved accumulators of the instruction",
    "lanes": "tree: interleaved lanes of fused multiply-adds",
    "runs": "tree: lanes of fused multiply-adds over contiguous k, or single products",
    "place": "orders that depend on the tile of D (stream-K)",
}


def kind(product: Product) -> str:
    """The name in `KINDS` of a product's order."""
    order = product.order
    if isinstance(order, KOrder):
        return "KOrder, halves" if product.stored else "KOrder"
    if isinstance(order, Tiles):
        return "place"
    chains = chains_of(order)
    positions = [[k for block in chain.blocks for k in block] for chain in chains]
    gaps = any(max(ks) - min(ks) >= len(ks) for ks in positions)
    if all(chain.kind == "fma" for chain in chains):
        return "lanes" if gaps else "runs"
    if gaps:
        return "interleaved"
    full = max(len(block) for chain in chains for block in chain.blocks) == product.spec.block
    return "slices" if full or any(chain.start is not None for chain in chains) else "blocks"


def summary(products: Iterable[Product]) -> dict[str, dict[str, int]]:
    """The number of products of each kind of order, for each type.

    Examples
    --------
    >>> from fpemu.library import lookup
    >>> summary([lookup("cublas", "fp16", (512, 512, 8192))])
    {'fp16': {'KOrder': 1}}
    """
    count = Counter((product.type, kind(product)) for product in products)
    return {of: {k: count[of, k] for k in KINDS if count[of, k]} for of in dict.fromkeys(of for of, _ in count)}
