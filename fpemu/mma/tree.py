"""Summation trees over K as frozen data: every addition of a GEMM of any order.

A `Chain` is one accumulator: blocks of positions k, each added at once. A `Sum` adds the results of parts and rounds
each addition. Two orders are equal if their trees have the same `canonical` form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.errors import InputError, shown
from fpemu.mma.order import KOrder, reduce_pairwise
from fpemu.mma.spec import MmaSpec
from fpemu.rounding import _round_to

Kind = Literal["instruction", "fma"]
T = TypeVar("T")


@dataclass(frozen=True)
class Chain:
    """One accumulator and the blocks of k that are added to it, one after another.

    Parameters
    ----------
    blocks : tuple of tuples of int
        The positions k of each block. An FMA adds one position at a time.
    kind : {"instruction", "fma"}
        "instruction": a block is one block of the matrix instruction, padded with zeros. "fma": each step is a fused
        multiply-add of an FMA unit, in fp32 (fp64 for fp64).
    start : Chain or Sum, optional
        Initial value of the accumulator; default zero.
    """

    blocks: tuple[tuple[int, ...], ...]
    kind: Kind = "instruction"
    start: Chain | Sum | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("instruction", "fma"):
            raise InputError(f"Chain: kind {self.kind!r} is not 'instruction' or 'fma'")
        if not self.blocks or not all(self.blocks):
            raise InputError("Chain: it needs a block, and every block a position")
        if self.kind == "fma" and any(len(block) > 1 for block in self.blocks):
            raise InputError("Chain: an fma takes one position at a time")
        if not isinstance(self.start, Chain | Sum | None):
            raise InputError(f"Chain: start = {shown(self.start)} must be a Chain or a Sum")

    @property
    def positions(self) -> list[int]:
        """The positions of all blocks."""
        return [k for block in self.blocks for k in block]


@dataclass(frozen=True)
class Sum:
    """Parts added from left to right, ((p0 + p1) + p2) + ..., each addition rounded to nearest.

    Parameters
    ----------
    parts : tuple of Chain | Sum
        Summands, in the order of the additions.
    fmt : str, optional
        Format to which the parts and the sums are rounded. Default: fp32 (fp64 for fp64).
    stored : str, optional
        Format to which only the parts are rounded before they are added: the format of a workspace of partial sums.
    """

    parts: tuple[Chain | Sum, ...]
    fmt: str | None = None
    stored: str | None = None

    def __post_init__(self) -> None:
        if not self.parts:
            raise InputError("Sum: it needs a part")
        if wrong := [part for part in self.parts if not isinstance(part, Chain | Sum)]:
            raise InputError(f"Sum: a part {shown(wrong[0])} must be a Chain or a Sum")


Tree = Chain | Sum


class OrderResult(Protocol):
    """A tree and the KOrder equal to it, if there is one, such as a `fpemu.probing.Revealed`."""

    @property
    def order(self) -> KOrder | None: ...

    @property
    def tree(self) -> Tree: ...


AnyOrder = KOrder | Tree | OrderResult


def order_of(order: Any, *, trees: bool = True) -> Any:
    """Return None, a KOrder or a tree for an argument `order`; anything else, and a tree unless `trees`, raises
    InputError.

    Of an `OrderResult` the attribute `order` is returned, or `tree` if that is None.
    """
    if hasattr(order, "order") and hasattr(order, "tree"):
        order = order.tree if order.order is None else order.order
    if order is None or isinstance(order, KOrder) or (trees and isinstance(order, Chain | Sum)):
        return order
    what = "a tree (no KOrder is equal to it)" if isinstance(order, Chain | Sum) else shown(order)
    raise InputError(f"order must be a fpemu.mma.KOrder{' or a tree' * trees}, not {what}")


def _below(node: Tree) -> tuple[Tree, ...]:
    """The parts of a sum, or the start of a chain."""
    return node.parts if isinstance(node, Sum) else () if node.start is None else (node.start,)


def nodes(tree: Tree) -> Iterator[Tree]:
    """Yield the nodes of a tree of any depth, each before the nodes below it."""
    stack: list[Tree] = [tree]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(_below(node)))


def chains(tree: Tree) -> list[Chain]:
    """Return the chains of a tree."""
    return [node for node in nodes(tree) if isinstance(node, Chain)]


def longest_block(tree: Tree) -> int:
    """Return the number of positions in the longest block of a tree's instructions; 1 if it has none."""
    return max((len(block) for c in chains(tree) if c.kind == "instruction" for block in c.blocks), default=1)


def fold(tree: Tree, combine: Callable[[Any, list[T]], T]) -> T:
    """Combine a tree of any depth from the leaves up.

    `combine(node, results)` receives the results of the parts of a sum, or of the start of a chain.
    """
    stack: list[tuple[Tree, bool]] = [(tree, False)]
    results: list[T] = []
    while stack:
        node, complete = stack.pop()
        below = _below(node)
        if below and not complete:
            stack += [(node, True), *((part, False) for part in reversed(below))]
            continue
        first = len(results) - len(below)
        results[first:] = [combine(node, results[first:])]
    return results[0]


def leaves(tree: Tree) -> Iterator[int]:
    """Yield the positions k of a tree, from the first part or start to the last block."""
    stack: list[Tree] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, Sum):
            stack.extend(reversed(node.parts))
        elif node.start is not None:
            stack.extend((Chain(node.blocks, node.kind), node.start))
        else:
            yield from node.positions


def check(tree: Tree, K: int, spec: MmaSpec) -> None:
    """Raise InputError unless a tree covers 0 <= k < K once, in blocks no longer than the spec's."""
    seen = sorted(leaves(tree))
    if seen != list(range(K)):
        wrong = next((i for i, k in enumerate(seen) if i != k), len(seen))
        raise InputError(f"the tree is not over K = {K}: it has {len(seen)} positions, position {wrong} is not right")
    for node in nodes(tree):
        if isinstance(node, Chain):
            longest = max(map(len, node.blocks))
            if longest > spec.block:
                raise InputError(f"the tree has a block of {longest} positions, one of {spec} takes {spec.block}")
        elif spec.is_integer and (node.fmt or node.stored):
            raise InputError(f"the tree rounds sums to {node.fmt or node.stored}: {spec} adds integers modulo 2^32")


def evaluate(tree: Tree, chain: Callable[[Chain, Any], NDArray[Any]], add: Callable[..., NDArray[Any]]) -> NDArray[Any]:
    """Return the tree's value; `chain(node, start)` evaluates an accumulator, `add(x, y, fmt)` one rounded addition."""
    path: list[tuple[Tree, int, Any]] = [(tree, 0, None)]  # node, number of evaluated parts, their sum
    while True:
        node, count, total = path[-1]
        below = _below(node)
        if count < len(below):
            path.append((below[count], 0, None))
            continue
        value = chain(node, total) if isinstance(node, Chain) else total
        path.pop()
        if not path:
            return value
        node, count, total = path[-1]
        if isinstance(node, Sum):
            value = _stored(value, node.stored)
            value = value if total is None else add(total, value, node.fmt)
        path[-1] = (node, count + 1, value)


def _stored(x: NDArray[Any], fmt: str | None) -> NDArray[Any]:
    return x if fmt is None else _round_to(x.astype(np.float64), formats.get(fmt)).astype(x.dtype)


def exact_products(spec: MmaSpec) -> bool:
    """Whether a product of the spec's inputs is a value of its accumulator (underflow aside)."""
    if spec.is_integer:
        return True
    a, b, _, d = spec.operand_formats
    return a.precision + b.precision <= d.precision


def canonical(tree: Tree, exact: bool = False) -> Tree:
    """Return the canonical form of a tree: trees that differ only in equivalent notation have the same form.

    Positions within a block ascend. A chain that starts from a chain of its kind is one chain. Addition commutes, so a
    sum begins with its deepest part. A sum of one part is that part. With `exact` (products are values of the
    accumulator's format) a single product added to nearest is an FMA, and the first two FMAs of a chain commute.
    """
    if isinstance(tree, Sum) and tree.stored is not None:
        parts = [canonical(part, exact) for part in tree.parts]
        return Sum((*sorted(parts[:2], key=lambda part: min(leaves(part))), *parts[2:]), tree.fmt, tree.stored)
    if isinstance(tree, Sum):
        total = canonical(tree.parts[0], exact)
        for part in tree.parts[1:]:
            total = _add(total, canonical(part, exact), tree.fmt, exact)
        return total
    blocks = tuple(tuple(sorted(block)) for block in tree.blocks)
    if tree.start is None:
        return _chain(blocks, tree.kind, None, exact)
    return _chain(blocks, tree.kind, canonical(tree.start, exact), exact)


def _single(tree: Tree) -> bool:
    return isinstance(tree, Chain) and tree.start is None and len(tree.blocks) == 1 and len(tree.blocks[0]) == 1


def _chain(blocks: tuple[tuple[int, ...], ...], kind: Kind, start: Tree | None, exact: bool) -> Chain:
    if isinstance(start, Chain) and (start.kind == kind or (_single(start) and (exact or kind == "fma"))):
        blocks, start = start.blocks + blocks, start.start
    if exact and start is None:
        if len(blocks) == 1 and len(blocks[0]) == 1:
            kind = "fma"
        if kind == "fma":
            blocks = tuple(sorted(blocks[:2])) + blocks[2:]
    return Chain(blocks, kind, start)


def _add(x: Tree, y: Tree, fmt: str | None, exact: bool) -> Tree:
    """One rounded addition."""
    if fmt is None and exact and (_single(x) or _single(y)):
        if _single(x) and (not _single(y) or min(leaves(y)) < min(leaves(x))):
            x, y = y, x
        assert isinstance(y, Chain)
        return _chain(y.blocks, "fma", x, exact)
    sums = [isinstance(t, Sum) and t.fmt == fmt and t.stored is None for t in (x, y)]
    if sums[1] > sums[0] or (sums[0] == sums[1] and min(leaves(y)) < min(leaves(x))):
        x, y = y, x
    same = isinstance(x, Sum) and x.fmt == fmt and x.stored is None
    return Sum((*x.parts, y), fmt) if isinstance(x, Sum) and same else Sum((x, y), fmt)


def from_order(order: KOrder, K: int, spec: MmaSpec) -> Tree:
    """Return the tree of a `KOrder`."""
    if K < 1:
        raise InputError("an empty K has no tree")
    kind = spec.rules.kind
    slices: list[Tree] = []
    for chains in order.segments(K):
        parts = [
            Chain(
                tuple(tuple(range(k, min(k + spec.block, b))) for a, b in ranges for k in range(a, b, spec.block)), kind
            )
            for ranges in chains
        ]
        slices.append(Sum(tuple(parts)) if len(parts) > 1 else parts[0])
    return join(list(order.sequence(slices)), order.join == "pairwise")


def join(parts: list[Tree], pairwise: bool = False) -> Tree:
    """Return the tree that adds parts from left to right, or pairwise as `KOrder.join_slices`."""
    if pairwise:
        return reduce_pairwise(parts, lambda x, y: Sum((x, y)))
    return Sum(tuple(parts)) if len(parts) > 1 else parts[0]


def added_in(fmt: str, parts: Sequence[Tree]) -> Tree:
    """Return the tree that adds parts in a result of a format: the first part and each sum but the last are rounded."""
    total = parts[0]
    for part in parts[1:]:
        total = Sum((Sum((total,), stored=fmt), part))
    return total


def equal(x: Tree, y: Tree, spec: MmaSpec) -> bool:
    """Whether two trees specify the same additions."""
    exact = exact_products(spec)
    return identical(canonical(x, exact), canonical(y, exact))


def identical(x: Tree, y: Tree) -> bool:
    """Return ``x == y``, for trees of any depth."""

    def entries(tree: Tree) -> list[Any]:
        return [
            (n.fmt, n.stored, len(n.parts)) if isinstance(n, Sum) else (n.kind, n.blocks, n.start is None)
            for n in nodes(tree)
        ]

    return entries(x) == entries(y)
