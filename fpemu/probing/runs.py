"""A summation tree in short: what stands there again and again, each time further on in k, is written once.

A `Run` is a thing that comes `count` times, each time `step` further on in k. Things are positions, blocks (tuples of
things), chains and sums, and runs of these: 10^4 positions of an ordinary GEMM become a handful of things.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fpemu.mma.tree import Chain, Kind, Sum, Tree


@dataclass(frozen=True)
class Run:
    """`of`, `count` times, each `step` further on in k."""

    of: int | Run | Block | ShortChain | ShortSum
    count: int
    step: int


@dataclass(frozen=True)
class Block:
    """The positions that are added to an accumulator at once."""

    positions: tuple[int | Run, ...]


@dataclass(frozen=True)
class ShortChain:
    """A `Chain`: its blocks in short; an fma's as positions."""

    kind: Kind
    blocks: tuple[int | Run | Block, ...]
    start: ShortChain | ShortSum | None = None


@dataclass(frozen=True)
class ShortSum:
    """A `Sum`: its parts in short."""

    parts: tuple[Run | ShortChain | ShortSum, ...]
    fmt: str | None = None
    stored: str | None = None


def shorten(tree: Tree) -> ShortChain | ShortSum:
    """The tree in short; `lengthen` gives it back.

    Examples
    --------
    >>> shorten(Chain(tuple((k,) for k in range(8)), "fma"))
    ShortChain(kind='fma', blocks=(Run(of=0, count=8, step=1),), start=None)
    """
    short = Namer().tree(tree)[0]
    assert isinstance(short, ShortChain | ShortSum)
    return short


def lengthen(short: ShortChain | ShortSum) -> Tree:
    """The tree that a short form stands for."""
    return _tree(short, 0)


def count(things: Sequence[object]) -> int:
    """How many things a sequence of things and runs of them stands for."""
    return sum(thing.count * count([thing.of]) if isinstance(thing, Run) else 1 for thing in things)


def each(things: Sequence[object], shift: int = 0) -> Iterator[tuple[object, int]]:
    """The things of a sequence one by one, each with what is to be added to its positions."""
    for thing in things:
        if isinstance(thing, Run):
            for i in range(thing.count):
                yield from each([thing.of], shift + i * thing.step)
        else:
            yield thing, shift


def positions(things: Sequence[int | Run], shift: int = 0) -> list[int]:
    """The positions that a sequence stands for."""
    found = []
    for thing, by in each(things, shift):
        assert isinstance(thing, int)
        found.append(thing + by)
    return found


class Namer:
    """Gives a name to every thing less the place at which it begins: equal names, equal things further on."""

    def __init__(self) -> None:
        self.names: dict[object, int] = {}

    def name(self, key: object) -> int:
        return self.names.setdefault(key, len(self.names))

    def same(self, x: Tree, y: Tree) -> bool:
        """Whether y is x further on."""
        return self.tree(x)[1] == self.tree(y)[1]

    def tree(self, tree: Tree) -> tuple[object, int, int]:
        """The thing, the name of its key, and where it begins."""
        if isinstance(tree, Sum):
            items = [self.tree(part) for part in tree.parts]
            parts, key, origin = self.sequence(items)
            name = self.name(("sum", tree.fmt, tree.stored, key))
            return ShortSum(tuple(parts), tree.fmt, tree.stored), name, origin  # type: ignore[arg-type]
        start = None if tree.start is None else self.tree(tree.start)
        if tree.kind == "fma":
            blocks, key, origin = self.sequence([(block[0], -1, block[0]) for block in tree.blocks])
        else:
            blocks, key, origin = self.sequence([self.block(block) for block in tree.blocks])
        below = None if start is None else (start[1], start[2] - origin)
        short = ShortChain(tree.kind, tuple(blocks), None if start is None else start[0])  # type: ignore[arg-type]
        return short, self.name((tree.kind, key, below)), origin

    def block(self, block: tuple[int, ...]) -> tuple[object, int, int]:
        things, key, origin = self.sequence([(k, -1, k) for k in block])
        return Block(tuple(things)), self.name(("block", key)), origin  # type: ignore[arg-type]

    def sequence(self, items: list[tuple[object, int, int]]) -> tuple[list[object], object, int]:
        """Runs in place of what comes again: first of single things, then of those runs, and so on."""
        while True:
            shorter = self._once(items)
            if len(shorter) == len(items):
                break
            items = shorter
        origin = items[0][2]
        return [thing for thing, _, _ in items], tuple((name, at - origin) for _, name, at in items), origin

    def _once(self, items: list[tuple[object, int, int]]) -> list[tuple[object, int, int]]:
        out: list[tuple[object, int, int]] = []
        i = 0
        while i < len(items):
            thing, name, at = items[i]
            n = 1
            if i + 1 < len(items) and items[i + 1][1] == name:
                step = items[i + 1][2] - at
                while i + n < len(items) and items[i + n][1] == name and items[i + n][2] - at == n * step:
                    n += 1
                # the first of what comes next may look like one more of these: 0, 1 | 8, 9 and not 0 | 1, 8 | 9
                if n == 2 and i + 3 < len(items) and _repeats(items, i + 1, name):
                    n = 1
            if n > 1:
                out.append((Run(thing, n, step), self.name(("run", name, n, step)), at))  # type: ignore[arg-type]
            else:
                out.append((thing, name, at))
            i += n
        return out


def _repeats(items: list[tuple[object, int, int]], i: int, name: int) -> bool:
    """Whether a run of three and more begins at i."""
    at = [item[2] for item in items[i : i + 3] if item[1] == name]
    return len(at) == 3 and at[1] - at[0] == at[2] - at[1]


def _tree(short: object, shift: int) -> Tree:
    if isinstance(short, ShortSum):
        return Sum(tuple(_tree(part, by) for part, by in each(short.parts, shift)), short.fmt, short.stored)
    assert isinstance(short, ShortChain)
    blocks = []
    for block, by in each(short.blocks, shift):
        blocks.append(tuple(positions(block.positions, by)) if isinstance(block, Block) else (block + by,))  # type: ignore[operator]
    return Chain(tuple(blocks), short.kind, None if short.start is None else _tree(short.start, shift))
