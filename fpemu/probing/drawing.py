"""Orders and summation trees in words: as they are typed, and as text in which what comes again stands once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from fpemu.mma import tree as trees
from fpemu.mma.order import KOrder
from fpemu.mma.spec import MmaSpec
from fpemu.mma.tree import Chain, Sum, Tree
from fpemu.probing import runs
from fpemu.probing.runs import Block, Run, ShortChain, ShortSum


def code(order: KOrder) -> str:
    """An order as it is typed, what is not the default alone.

    >>> code(KOrder(split=128, tile=64, residue_first=True))
    'KOrder(split=128, tile=64, residue_first=True)'
    """
    plain = {field.name: field.default for field in dataclasses.fields(KOrder)}
    given = {name: getattr(order, name) for name in plain if getattr(order, name) != plain[name]}
    return f"KOrder({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def shown(tree: Tree, order: KOrder | None, k: int, spec: MmaSpec) -> Tree:
    """A tree as it is best drawn: a canonical one may have changed sides where parts are not joined one by one.

    `spec` is the instruction that the order's blocks are.
    """
    if order is None or order.join == "ascending" or (spec.block == 1 and spec.arithmetic != "fma"):
        return tree
    return trees.from_order(order, k, spec)


def text(tree: Tree, most: int = 40) -> str:
    """A tree as text, at most `most` lines.

    Examples
    --------
    >>> blocks = [tuple(range(k, k + 16)) for k in range(0, 512, 16)]
    >>> print(text(Sum(tuple(Chain(tuple(blocks[i : i + 8])) for i in range(0, 32, 8)))))
    sum of 4, from left to right
    └─ 4 × chain of 8 blocks of 16: k = 0..127, 128..255, 256..383, 384..511
    """
    try:
        short = runs.shorten(regular(tree))
    except RecursionError:
        return trees.draw(tree, most)
    lines: list[str] = []
    stack: list[tuple[Any, str, str]] = [(short, "", "")]
    while stack:
        node, first, rest = stack.pop()
        if len(lines) == most - 1 and stack:
            lines.append(f"{rest}... and {len(stack) + 1} branches more")
            break
        title, below = _title(node)
        lines.append(first + title)
        for i, part in reversed(list(enumerate(below))):
            last = i == len(below) - 1
            stack.append((part, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")))
    return "\n".join(lines)


def regular(tree: Tree) -> Tree:
    """The same additions, with the partial sums on the left written as sums where their neighbour is one like them.

    A canonical tree of pairwise sums is a + b + (c + d); here it is (a + b) + (c + d).
    """
    namer = runs.Namer()

    def nested(node: Tree) -> Tree:
        if isinstance(node, Chain):
            return node if node.start is None else dataclasses.replace(node, start=nested(node.start))
        parts: list[Tree] = []
        for part in map(nested, node.parts):
            like = isinstance(part, Sum) and part.stored is None and len(part.parts) == len(parts)
            if len(parts) > 1 and like and node.stored is None:
                before = Sum(tuple(parts), node.fmt)
                if namer.same(before, part):
                    parts = [before, part]
                    continue
            parts.append(part)
        return Sum(tuple(parts), node.fmt, node.stored)

    return nested(tree)


def _title(node: Any) -> tuple[str, Sequence[Any]]:
    """What a node is in words, and what hangs on it."""
    steps = []
    while isinstance(node, Run):
        steps.append((node.count, node.step))
        node = node.of
    n = math.prod(count for count, _ in steps)
    many = f"{n} × " if n > 1 else ""
    if isinstance(node, ShortSum):
        n, parts = _pairwise(node)
        way = ", from left to right"
        if n:
            way = ", pairwise"
        else:
            n, parts = runs.count(node.parts), node.parts
        inside = f" in {node.fmt}" if node.fmt else ""
        inside += f", each rounded to {node.stored}" if node.stored else ""
        return f"{many}sum of {n}{inside}{way if n > 2 else ''}", parts
    assert isinstance(node, ShortChain)
    start = [] if node.start is None else [node.start]
    onto = " onto the result of" if start else ""
    return f"{many}{_chain(node)}: k = {_where(node, steps)}{onto}", start


def _pairwise(node: ShortSum) -> tuple[int, tuple[Any, ...]]:
    """How many parts a sum adds pairwise, and these parts; 0 where it does not."""
    steps: list[Run] = []
    below: Any = node
    while (
        isinstance(below, ShortSum) and (below.fmt, below.stored) == (node.fmt, None) and len(below.parts) == 1
        and isinstance(run := below.parts[0], Run) and run.count == 2
    ):  # fmt: skip
        steps.append(run)
        below = run.of
    if len(steps) < 2:
        return 0, ()
    for run in reversed(steps):
        below = Run(below, 2, run.step)
    return 2 ** len(steps), (below,)


def _chain(chain: ShortChain) -> str:
    """ "chain of 2 blocks of 16, 1 of 8, 4 of 16", "chain of 64 fma", "product"."""
    n = runs.count(chain.blocks)
    if chain.kind == "fma":
        return f"chain of {n} fma" if n > 1 or chain.start is not None else "product"
    counts: list[list[int]] = []
    for block, _ in runs.each(chain.blocks):
        assert isinstance(block, Block)
        size = runs.count(block.positions)
        if counts and counts[-1][1] == size:
            counts[-1][0] += 1
        else:
            counts.append([1, size])
    return f"chain of {_sizes(counts)}"


def _sizes(counts: list[list[int]]) -> str:
    first = counts[0][0]
    words = [f"{first} block{'s' * (first != 1)} of {counts[0][1]}", *(f"{n} of {size}" for n, size in counts[1:6])]
    return ", ".join(words) + (", ..." if len(counts) > 6 else "")


def _where(chain: ShortChain, steps: list[tuple[int, int]]) -> str:
    """The positions of a chain, and of those like it further on."""
    ks = []
    for block, shift in runs.each(chain.blocks):
        ks += runs.positions(block.positions, shift) if isinstance(block, Block) else [block + shift]  # type: ignore[operator]
    low, high = ks[0], ks[-1]
    places = [0]
    for count, step in steps:
        places = [at + i * step for at in places for i in range(count)]
    if ks != list(range(low, high + 1)):
        return _ranges(ks) + (f"; then from {_some([str(low + at) for at in places[1:]])}" if steps else "")
    return _some([f"{low + at}..{high + at}" if high > low else f"{low + at}" for at in places])


def _some(words: list[str]) -> str:
    """All of a few, the first two and the last of many."""
    return ", ".join(words) if len(words) <= 4 else f"{words[0]}, {words[1]} ... {words[-1]}"


def _ranges(ks: list[int]) -> str:
    """Positions in the order in which they are taken in: "0..7, 32..39 ... 480..487"."""
    out: list[list[int]] = []
    for k in ks:
        if out and k == out[-1][1] + 1:
            out[-1][1] = k
        else:
            out.append([k, k])
    return _some([f"{a}..{b}" if b > a else f"{a}" for a, b in out])
