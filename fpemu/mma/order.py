"""The summation order of a GEMM over K: split-K, tiles, promotion interval, reduction of partial sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from numpy.typing import NDArray

from fpemu.arguments import LARGEST, choice, flag, integer, read_table
from fpemu.errors import InputError

Join = Literal["ascending", "descending", "pairwise"]
T = TypeVar("T")


@dataclass(frozen=True)
class KOrder:
    """Summation order of a GEMM over K. ``KOrder()`` is one chain, k ascending.

    Parameters
    ----------
    split : int, optional
        Length in k of a slice (split-K); each slice is a chain from zero, and the last may be shorter. None: no split.
    tile : int, optional
        Length of the tiles that a slice is processed in, each padded with zeros to whole instructions.
    residue_first : bool
        Whether the residue, the slice's length modulo `tile`, comes first (else last).
    promote : int, optional
        Promotion interval in k: the accumulator is added to an outer sum, in fp32 (fp64 for fp64) to nearest, and
        restarts from zero. A residue that comes first counts as a whole tile.
    join : {"ascending", "descending", "pairwise"}
        Order of the reduction that adds the slices' partial sums, in the arithmetic of the outer sum.

    Notes
    -----
    C starts the accumulator of a single chain. With `promote` it starts the outer sum; with `split` it is added last,
    after the reduction.

    Examples
    --------
    >>> KOrder(split=104, tile=64, residue_first=True).segments(104)
    [[[(0, 40), (40, 104)]]]
    """

    split: int | None = None
    tile: int | None = None
    residue_first: bool = False
    promote: int | None = None
    join: Join = "ascending"

    def __post_init__(self) -> None:
        for name in ("split", "tile", "promote"):
            object.__setattr__(self, name, integer(f"KOrder: {name}", getattr(self, name), 1, none=True))
        object.__setattr__(self, "residue_first", flag("KOrder: residue_first", self.residue_first))
        choice("join", self.join, get_args(Join))
        if self.residue_first and self.tile is None:
            raise InputError("KOrder: residue_first needs a tile: the residue is the slice's length modulo tile")

    def __repr__(self) -> str:
        return f"KOrder({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults, by name."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    @classmethod
    def from_dict(cls, data: Any) -> KOrder:
        """Return the order of the fields that `to_dict` wrote.

        Raises
        ------
        InputError
            The data are no dict, or a name or a value is no field's.
        """
        return read_table(cls, data, "order")

    def segments(self, K: int) -> list[list[list[tuple[int, int]]]]:
        """Return, for each slice and each of its chains, the ranges of k in the order of summation."""
        if not integer("K", K, 0, LARGEST):
            return []
        size = self.split or K
        return [self._slice(start, min(start + size, K)) for start in range(0, K, size)]

    def _slice(self, start: int, stop: int) -> list[list[tuple[int, int]]]:
        length = stop - start
        tile = self.tile or length
        residue = length % tile
        first = residue if self.residue_first and residue else min(tile, length)
        cuts = [0, first]
        while cuts[-1] < length:
            cuts.append(min(cuts[-1] + tile, length))
        if self.promote is None:
            return [[(start + a, start + b) for a, b in pairwise(cuts)]]
        chains: dict[int, list[tuple[int, int]]] = {}
        for index, (a, b) in enumerate(pairwise(cuts)):
            while a < b:
                position = index * tile + a - cuts[index]
                end = min(b, a + self.promote - position % self.promote)
                chains.setdefault(position // self.promote, []).append((start + a, start + end))
                a = end
        return list(chains.values())

    def sequence(self, slices: Sequence[T]) -> Sequence[T]:
        """Return the slices in the order in which `join_slices` adds them."""
        return slices[::-1] if self.join == "descending" else slices

    def join_slices(self, parts: Iterable[NDArray[Any]]) -> NDArray[Any]:
        """Add the slices' partial sums, given in the order of `sequence`; each addition rounds to nearest."""
        return reduce_pairwise(parts, add) if self.join == "pairwise" else reduce(add, parts)


def reduce_pairwise(parts: Iterable[T], add: Callable[[T, T], T]) -> T:
    """Add neighbours, then neighbouring sums, and so on; the stack holds sums over 2^n parts, n falling."""
    stack: list[tuple[int, T]] = []
    for part in parts:
        count = 1
        while stack and stack[-1][0] == count:
            before, total = stack.pop()
            count, part = count + before, add(total, part)
        stack.append((count, part))
    _, total = stack.pop()
    while stack:
        total = add(stack.pop()[1], total)
    return total


class Run(NamedTuple):
    """One term over start <= k < stop, added to one accumulator and padded to whole instructions."""

    term: int
    start: int
    stop: int


def plan(order: KOrder, K: int, terms: int, step: int | None) -> list[list[list[Run]]]:
    """Return, for each slice and chain, its runs: the terms one after another, or alternating every `step` of k."""
    return [[_interleave(segments, terms, step) for segments in chains] for chains in order.segments(K)]


def _interleave(segments: list[tuple[int, int]], terms: int, step: int | None) -> list[Run]:
    if step is None:
        return [Run(t, a, b) for t in range(terms) for a, b in segments]
    return [
        Run(t, a, min(a + step, stop))
        for start, stop in segments
        for a in range(start, stop, step)
        for t in range(terms)
    ]
