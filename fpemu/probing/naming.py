"""The `KOrder` that stands for a summation tree, if one does."""

from __future__ import annotations

from collections.abc import Sequence

from fpemu.mma import tree as trees
from fpemu.mma.order import KOrder
from fpemu.mma.spec import MmaSpec
from fpemu.mma.tree import Chain, Sum, Tree


def name_order(tree: Tree, K: int, spec: MmaSpec) -> KOrder | None:
    """The `KOrder` that stands for a tree, or None.

    None too for some orders with a `promote` that is not a multiple of their `tile`: the tree is what there is then.
    """
    exact = trees.exact_products(spec)
    tree = trees.canonical(tree, exact)
    chains = chains_of(tree)
    shape = sorted((c.blocks[0][0], sum(map(len, c.blocks)), len(c.blocks[0])) for c in chains if _long(c))
    if any(max(ks) - min(ks) >= len(ks) for ks in ([k for b in c.blocks for k in b] for c in chains)):
        return None  # a KOrder has no gaps
    blocks = any(len(block) > 1 for c in chains for block in c.blocks)
    lengths, tiles = _below(tree), _tiles(chains, spec)
    for promote in (None, *lengths):
        for split in (None, *lengths):
            for tile, residue_first in tiles:
                order = KOrder(split, tile, residue_first, promote)
                if 1 in (split, promote):
                    if blocks or tile is not None:  # one position at a time: no tile makes a difference
                        continue
                elif _shape(order, K, spec) != shape:
                    continue
                for join in ("ascending", "pairwise", "descending") if split else ("ascending",):
                    order = KOrder(split, tile, residue_first, promote, join)
                    if identical(trees.canonical(trees.from_order(order, K, spec), exact), tree):
                        return order
    return None


def identical(x: Tree, y: Tree) -> bool:
    """``x == y``, for trees nested however deep."""
    stack: list[tuple[Tree | None, Tree | None]] = [(x, y)]
    while stack:
        one, two = stack.pop()
        if isinstance(one, Sum) and isinstance(two, Sum):
            if (one.fmt, one.stored, len(one.parts)) != (two.fmt, two.stored, len(two.parts)):
                return False
            stack.extend(zip(one.parts, two.parts, strict=True))
        elif isinstance(one, Chain) and isinstance(two, Chain):
            if (one.kind, one.blocks) != (two.kind, two.blocks):
                return False
            stack.append((one.start, two.start))
        elif one is not two:
            return False
    return True


def _long(chain: Chain) -> bool:
    return sum(map(len, chain.blocks)) > 1


def chains_of(tree: Tree) -> list[Chain]:
    """The chains of a tree."""
    found, stack = [], [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, Sum):
            stack.extend(node.parts)
        else:
            found.append(node)
            stack.extend([node.start] if node.start is not None else [])
    return found


def _below(tree: Tree) -> list[int]:
    """Lengths that a slice or a promotion may have: what lies with k = 0 in the sums, and 1.

    Of each sum its part that holds 0, the first of another size (where a residue comes first), and the parts up to
    that, without and with it.
    """
    sizes = []
    node: Tree | None = tree
    while node is not None:
        if isinstance(node, Sum):
            parts = [(min(trees.leaves(p)), sum(1 for _ in trees.leaves(p)), p) for p in node.parts]
            parts.sort(key=lambda part: part[0])
            same = next((i for i, part in enumerate(parts) if part[1] != parts[0][1]), len(parts))
            before = same * parts[0][1]
            other = parts[min(same, len(parts) - 1)][1]
            sizes += [parts[0][1], other, before, before + other]
            node = parts[0][2]
        else:
            node = node.start if node.start is not None and 0 in trees.leaves(node.start) else None
            sizes += [sum(1 for _ in trees.leaves(node))] if node is not None else []
    return list(dict.fromkeys([*sizes, 1]))


def _tiles(chains: Sequence[Chain], spec: MmaSpec) -> list[tuple[int | None, bool]]:
    """Tiles that could have cut the chains as they are cut."""
    out: list[tuple[int | None, bool]] = [(None, False)]
    cuts = dict.fromkeys(tuple(map(len, c.blocks)) for c in sorted(chains, key=lambda c: c.blocks[0]))
    for sizes in list(cuts)[:4]:
        short = next((i for i, size in enumerate(sizes) if size != spec.block), None)
        if short is None:
            continue
        length, end = sum(sizes), sum(sizes[: short + 1])
        known = [t for t in (64, 32, 128, 16, 256) if t > end]
        others = [t for t in range(end + 1, length) if (length - end) % t == 0 and t not in known][:50]
        out += [(t, True) for t in known if (length - end) % t == 0]
        out += [(end, False), *((t, True) for t in others)]
    return list(dict.fromkeys(out))


def _shape(order: KOrder, K: int, spec: MmaSpec) -> list[tuple[int, int, int]]:
    parts = [ranges for slices in order.segments(K) for ranges in slices]
    rows = [(r[0][0], r[-1][1] - r[0][0], min(spec.block, r[0][1] - r[0][0])) for r in parts]
    return sorted(row for row in rows if row[1] > 1)
