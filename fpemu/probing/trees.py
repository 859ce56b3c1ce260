"""Summation trees as text, with each repetition written once, and the `KOrder` equal to a tree."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from fpemu.mma import tree as trees
from fpemu.mma.order import KOrder
from fpemu.mma.serialise import Compressor, each, positions, size, to_dict
from fpemu.mma.spec import MmaSpec
from fpemu.mma.tree import Chain, Sum, Tree


def shown(tree: Tree, order: KOrder | None, k: int, spec: MmaSpec) -> Tree:
    """The tree to draw for a revealed tree and its order, whose blocks are those of `spec`.

    In a canonical tree, parts of a sum that is not ascending may be exchanged.
    """
    if order is None or order.join == "ascending" or (spec.block == 1 and not spec.rules.fused):
        return tree
    return trees.from_order(order, k, spec)


def text(tree: Tree, most: int = 40) -> str:
    """Format a summation tree as text, in at most `most` lines.

    Parameters
    ----------
    tree : Tree
        Summation tree over K.
    most : int
        Largest number of lines.

    Returns
    -------
    str
        Text of several lines.

    Examples
    --------
    >>> blocks = [tuple(range(k, k + 16)) for k in range(0, 512, 16)]
    >>> print(text(Sum(tuple(Chain(tuple(blocks[i : i + 8])) for i in range(0, 32, 8)))))
    sum of 4, from left to right
    └─ 4 × chain of 8 blocks of 16: k = 0..127, 128..255, 256..383, 384..511
    """
    lines: list[str] = []
    stack: list[tuple[Any, str, str]] = [(to_dict(regular(tree)), "", "")]
    while stack:
        node, first, rest = stack.pop()
        title, below = _title(node)
        if len(lines) == most - 1 and (stack or below):
            lines.append(f"{rest}... and {len(stack) + 1} branches more")
            break
        lines.append(first + title)
        for i, part in reversed(list(enumerate(below))):
            last = i == len(below) - 1
            stack.append((part, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")))
    return "\n".join(lines)


_DEPTH = 20  # of sums in sums that a sentence describes
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def sentence(tree: Tree) -> str:
    """Describe a summation tree in one sentence; fused multiply-adds and instructions have the same words.

    Parameters
    ----------
    tree : Tree
        Summation tree over K.

    Returns
    -------
    str
        The chains, their lengths, the format to which they are rounded, and the order in which they are added.

    Examples
    --------
    >>> chains = tuple(Chain(tuple((k,) for k in range(first, first + 256)), "fma") for first in (0, 256))
    >>> sentence(Sum(chains, stored="fp16"))
    'two chains of 256 products, each rounded to fp16, then added'
    """
    parts = trees.chains(tree)
    depth: int = trees.fold(tree, lambda node, below: 1 + max(below, default=0))
    if depth > _DEPTH:
        return f"{_chains(parts)}, added in a tree"
    tree = regular(tree)
    if isinstance(tree, Chain):
        words = _chains([tree])
        return words if tree.start is None else f"{sentence(tree.start)}; then {words} onto the result"
    rounded = f", each rounded to {tree.stored}" if tree.stored else ""
    inside = f" in {tree.fmt}" if tree.fmt else ""
    if len(tree.parts) > 2:
        starts = [next(trees.leaves(part)) for part in tree.parts]
        rising, falling = sorted(starts)[2:], sorted(starts)[-3::-1]  # the first two may be exchanged
        order = " from left to right" if starts[2:] == rising else " one after another"
        inside += " from right to left" if starts[2:] == falling else order
    if all(isinstance(part, Chain) and part.start is None for part in tree.parts):
        return f"{_chains(parts)}{rounded}, then added{inside}"
    plain = trees.join([dataclasses.replace(part, start=None) for part in parts], pairwise=True)
    if trees.identical(trees.canonical(tree), trees.canonical(plain)):
        return f"{_chains(parts)}, then added pairwise"
    *same, last = [sentence(part) for part in tree.parts]
    if len({*same}) == 1 and not any("groups" in words or "tree" in words for words in (same[0], last)):
        other = "" if last == same[0] else f"; the last of {last}"
        return f"{_number(len(tree.parts))} groups of {same[0]}{other}; then their sums{rounded} are added{inside}"
    return f"{_chains(parts)}, added in a tree{rounded}"


def _number(n: int) -> str:
    return _NUMBERS[n] if n < len(_NUMBERS) else str(n)


def _chains(parts: Sequence[Chain]) -> str:
    """The number of chains, and their numbers of products: "three chains of 128 products, the last of 40"."""
    lengths = [len(part.positions) for part in parts]
    many = f"{_number(len(parts))} chain{'s' * (len(parts) > 1)}"
    order = sorted(range(len(parts)), key=lambda i: min(parts[i].positions))
    first, *_, last = [lengths[i] for i in order] * 2
    common = max(set(lengths), key=lengths.count)
    others = [n for n in lengths if n != common]
    one = f" of {common} product{'s' * (common > 1)}"
    if not others:
        words = one
        if common == 1:
            return f"{_number(len(parts))} product{'s' * (len(parts) > 1)}"
    elif len(others) == 1 and others[0] in (first, last) and len(parts) > 2:
        words = f"{one}, the {'last' if last != common else 'first'} of {others[0]}"
    elif len(parts) <= 3:
        words = f" of {', '.join(map(str, lengths[:-1]))} and {lengths[-1]} products"
    else:
        words = f" of {min(lengths)} to {max(lengths)} products"
    ks = sorted(parts[0].positions)
    run = next((i for i, k in enumerate(ks) if k != ks[0] + i), 0)
    return many + words + f", which alternate every {run} of k" * (run > 0 and len(parts) > 1)


def regular(tree: Tree) -> Tree:
    """The same additions with pairwise sums restored: the canonical a + b + (c + d) becomes (a + b) + (c + d)."""
    compressor = Compressor()

    def nested(node: Tree, below: list[Any]) -> Tree:
        if isinstance(node, Chain):
            return dataclasses.replace(node, start=below[0]) if below else node
        parts: list[Tree] = []
        for part in below:
            like = isinstance(part, Sum) and part.stored is None and len(part.parts) == len(parts)
            if len(parts) > 1 and like and node.stored is None:
                before = Sum(tuple(parts), node.fmt)
                if compressor.tree(before)[1] == compressor.tree(part)[1]:
                    parts = [before, part]
                    continue
            parts.append(part)
        return Sum(tuple(parts), node.fmt, node.stored)

    return trees.fold(tree, nested)


def _title(node: dict[str, Any]) -> tuple[str, list[Any]]:
    """A node of the compressed tree in words, and its children."""
    steps = []
    while "of" in node:
        steps.append((node["count"], node["step"]))
        node = node["of"]
    n = math.prod(count for count, _ in steps)
    many = f"{n} × " if n > 1 else ""
    if "sum" in node:
        n, parts = _pairwise(node)
        way = ", pairwise" if n else ", from left to right"
        if not n:
            n, parts = size(node["sum"]), node["sum"]
        inside = f" in {node['fmt']}" if "fmt" in node else ""
        inside += f", each rounded to {node['stored']}" if "stored" in node else ""
        return f"{many}sum of {n}{inside}{way if n > 2 else ''}", parts
    below = [node["start"]] if "start" in node else []
    onto = " onto the result of" if below else ""
    return f"{many}{_chain(node)}: k = {_where(node, steps)}{onto}", below


def _pairwise(node: dict[str, Any]) -> tuple[int, list[Any]]:
    """The number of parts of a pairwise sum, and the parts; 0 for another sum."""
    steps: list[int] = []
    below: Any = node
    same = {"sum": 0, **({"fmt": node["fmt"]} if "fmt" in node else {})}
    while {**below, "sum": 0} == same and len(below["sum"]) == 1 and below["sum"][0].get("count") == 2:
        steps.append(below["sum"][0]["step"])
        below = below["sum"][0]["of"]
    if len(steps) < 2:
        return 0, []
    for step in reversed(steps):
        below = {"of": below, "count": 2, "step": step}
    return 2 ** len(steps), [below]


def _chain(chain: dict[str, Any]) -> str:
    """ "chain of 2 blocks of 16, 1 of 8, 4 of 16", "chain of 64 fma", "product"."""
    if "fma" in chain:
        n = size(chain["fma"])
        return f"chain of {n} fma" if n > 1 or "start" in chain else "product"
    lengths = groupby(size(block) for block, _ in each(chain["instruction"]))
    sizes = [(len(list(run)), length) for length, run in lengths]
    first = sizes[0][0]
    words = [f"{first} block{'s' * (first != 1)} of {sizes[0][1]}", *(f"{n} of {length}" for n, length in sizes[1:6])]
    return f"chain of {', '.join(words)}" + (", ..." if len(sizes) > 6 else "")


def _where(chain: dict[str, Any], steps: list[tuple[int, int]]) -> str:
    """The positions of a chain, and of its repetitions."""
    ks = positions(chain["fma"] if "fma" in chain else chain["instruction"])
    low, high = ks[0], ks[-1]
    places = [0]
    for count, step in steps:
        places = [at + i * step for at in places for i in range(count)]
    if ks != list(range(low, high + 1)):
        return _ranges(ks) + (f"; then from {_some([str(low + at) for at in places[1:]])}" if steps else "")
    return _some([f"{low + at}..{high + at}" if high > low else f"{low + at}" for at in places])


def _some(words: list[str], first: int = 2) -> str:
    """Up to four words, or the first ones and the last."""
    return ", ".join(words) if len(words) <= 4 else f"{', '.join(words[:first])} ... {words[-1]}"


def _ranges(ks: list[int]) -> str:
    """Positions in the order of their additions, such as "0..7, 32..39 ... 480..487"; three if they are uneven."""
    out: list[list[int]] = []
    for k in ks:
        if out and k == out[-1][1] + 1:
            out[-1][1] = k
        else:
            out.append([k, k])
    starts = [a for a, _ in out]
    even = len(starts) < 3 or starts[2] - starts[1] == starts[1] - starts[0]
    return _some([f"{a}..{b}" if b > a else f"{a}" for a, b in out], 2 if even else 3)


# --- the `KOrder` equal to a tree
def name_order(tree: Tree, K: int, spec: MmaSpec) -> KOrder | None:
    """The `KOrder` equal to a tree; None if none is found (also for some orders with both `tile` and `promote`)."""
    exact = trees.exact_products(spec)
    tree = trees.canonical(tree, exact)
    chains = trees.chains(tree)
    rows = [(c.blocks[0][0], len(c.positions), len(c.blocks[0])) for c in chains]
    shape = sorted(row for row in rows if row[1] > 1)
    if any(max(ks) - min(ks) >= len(ks) for ks in (c.positions for c in chains)):
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
                    if trees.identical(trees.canonical(trees.from_order(order, K, spec), exact), tree):
                        return order
    return None


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
        # the tiles of common kernels first; the others are bounded, because every tile is compared for every split
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
