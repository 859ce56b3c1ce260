"""The `KOrder` equal to a summation tree, if there is one."""

from __future__ import annotations

from collections.abc import Sequence

from fpemu.mma import tree as trees
from fpemu.mma.order import KOrder
from fpemu.mma.spec import MmaSpec
from fpemu.mma.tree import Chain, Sum, Tree


def name_order(tree: Tree, K: int, spec: MmaSpec) -> KOrder | None:
    """The `KOrder` equal to a tree; None if none is found (also for some orders with both `tile` and `promote`)."""
    exact = trees.exact_products(spec)
    tree = trees.canonical(tree, exact)
    chains = chains_of(tree)
    lengths = [sum(map(len, c.blocks)) for c in chains]
    shape = sorted((c.blocks[0][0], n, len(c.blocks[0])) for c, n in zip(chains, lengths, strict=True) if n > 1)
    if any(max(ks) - min(ks) >= len(ks) for ks in ([k for b in c.blocks for k in b] for c in chains)):
        return None  # a KOrder has no gaps
    blocks = any(len(block) > 1 for c in chains for block in c.blocks)
    sizes, tiles = _sizes(tree), _tiles(chains, spec)
    tiles = list(dict.fromkeys([*tiles, *((size, True) for size in sizes if size > 1)]))  # promoted once per tile
    for promote in (None, *sizes):
        for split in (None, *sizes):
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
    """``x == y``, for trees of any depth."""
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


def chains_of(tree: Tree) -> list[Chain]:
    """The chains of a tree."""
    chains, stack = [], [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, Sum):
            stack.extend(node.parts)
        else:
            chains.append(node)
            stack.extend([node.start] if node.start is not None else [])
    return chains


def longest_block(tree: Tree) -> int:
    """Number of positions in the longest block of a tree's instructions; 1 if there is none."""
    blocks = (len(b) for chain in chains_of(tree) if chain.kind == "instruction" for b in chain.blocks)
    return max(blocks, default=1)


def _sizes(tree: Tree) -> list[int]:
    """Possible lengths of slices and promotion intervals: the sizes of the parts of sums that hold k = 0, and 1.

    Also the size of the first part with another size (a residue may come first), and of the parts before it.
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
            sizes += [first for first, _, part in parts[1:] if isinstance(part, Sum)][:1]  # a slice of several chains
            node = parts[0][2]
        else:
            node = node.start if node.start is not None and 0 in trees.leaves(node.start) else None
            sizes += [sum(1 for _ in trees.leaves(node))] if node is not None else []
    return list(dict.fromkeys([*sizes, 1]))


def _tiles(chains: Sequence[Chain], spec: MmaSpec) -> list[tuple[int | None, bool]]:
    """Tiles that are consistent with the chains' blocks."""
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
    """First position, length and first block length of each chain with more than one position."""
    parts = [ranges for slices in order.segments(K) for ranges in slices]
    rows = [(r[0][0], r[-1][1] - r[0][0], min(spec.block, r[0][1] - r[0][0])) for r in parts]
    return sorted(row for row in rows if row[1] > 1)
