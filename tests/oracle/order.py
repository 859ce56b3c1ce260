"""A product of any length along K: the chain of instructions, and the order of its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.oracle.blocks import add, converted
from tests.oracle.codes import FORMATS, decode
from tests.oracle.table import Instruction


def chain(ins: Instruction, a: Sequence[int], b: Sequence[int], c: int, pieces: Sequence[int] | None = None) -> int:
    """Instructions over increasing k; each piece of the range is cut on its own, its end filled up with zeros."""
    start = 0
    for piece in pieces if pieces is not None else [len(a)]:
        for s in range(start, start + piece, ins.k):
            x, y = list(a[s : min(s + ins.k, start + piece)]), list(b[s : min(s + ins.k, start + piece)])
            fill = [0] * (ins.k - len(x))
            c = ins.run(x + fill, y + fill, c)
        start += piece
    return c


@dataclass(frozen=True)
class Order:
    """How K is cut up and the parts are joined, with the meaning of each field of `fpemu.mma.KOrder`."""

    split: int | None = None
    tile: int | None = None
    residue_first: bool = False
    promote: int | None = None
    join: str = "ascending"

    def slices(self, K: int) -> list[list[list[list[int]]]]:
        """Slices of chains of segments of positions in k; only the end of a segment is filled up with zeros.

        A residue that comes first counts as a whole tile: positions are counted as if the slice began with the missing
        part of its first tile.
        """
        out = []
        for start in range(0, K, self.split or K or 1):
            stop = min(start + (self.split or K), K)
            missing = -(stop - start) % self.tile if self.tile and self.residue_first else 0
            chains: list[list[list[int]]] = []
            for k in range(start, stop):
                place = k - start + missing
                if k == start or (self.promote and place % self.promote == 0):
                    chains.append([[]])
                elif self.tile and place % self.tile == 0:
                    chains[-1].append([])
                chains[-1][-1].append(k)
            out.append(chains)
        return out


def joined(parts: Sequence[int], how: str, plus: Callable[[int, int], int]) -> int:
    """Slices added one after another from the first, from the last, or neighbours in pairs until one is left."""
    parts = list(parts)
    if how == "pairwise":
        while len(parts) > 1:
            odd = [parts[-1]] if len(parts) % 2 else []
            parts = [plus(x, y) for x, y in zip(parts[::2], parts[1::2], strict=False)] + odd
        return parts[0]
    if how == "descending":
        parts.reverse()
    total = parts[0]
    for x in parts[1:]:
        total = plus(total, x)
    return total


def ordered(
    ins: Instruction,
    terms: Sequence[tuple[Sequence[int], Sequence[int]]],
    c: int | None,
    order: Order,
    step: int | None = None,
) -> int:
    """One element of a product, or of a sum of products fed into one accumulator, by an order.

    The outside is fp32 (fp64 for fp64); an fp16 result is rounded from it once. C starts a single chain, or the
    outer sum of the promoted chains; with a split it is added last.
    """
    fd = FORMATS[ins.d]
    outer = FORMATS["fp64" if ins.d == "fp64" else "fp32"]

    def plus(x: int, y: int) -> int:
        return add(x, y, outer)

    def widened(code: int) -> int:
        return converted(code, fd, outer)

    def narrowed(code: int) -> int:
        return converted(code, outer, fd)

    def chain_of(segments: Sequence[Sequence[int]], acc: int) -> int:
        for segment in segments:
            for turn in range(0, len(segment), step or len(segment) or 1):
                ks = segment[turn : turn + (step or len(segment))]
                for a, b in terms:
                    acc = chain(ins, [a[k] for k in ks], [b[k] for k in ks], acc)
        return acc

    slices = order.slices(len(terms[0][0]))
    if not slices:
        return c or 0
    if order.split is None and order.promote is None:
        return chain_of(slices[0][0], c or 0)
    sums = []
    for chains in slices:
        if order.promote is None:
            sums.append(widened(chain_of(chains[0], 0)))
            continue
        total = widened(c or 0) if order.split is None else 0
        for segments in chains:
            total = plus(total, widened(chain_of(segments, 0)))
        sums.append(total)
    total = joined(sums, order.join, plus)
    if order.split is not None and c is not None:
        total = plus(total, widened(c))
    total = narrowed(total)
    return total if ins.nan_code is None or decode(total, fd).kind != "nan" else ins.nan_code
