"""How a split scheme runs: its products of words, their accumulators, and the order of every addition over K.

`lower` computes a `Lowering` once from a scheme's words and `Plan`, an instruction and an order over K. All users of a
plan read it: `run` evaluates it on the CPU, the generators of the mma.sync and wgmma kernels print it as constants,
`fpemu.theory` bounds the error of its sums, and `fpemu.roofline` counts its instructions and additions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.mma.device import Device
from fpemu.mma.gemm import _chain
from fpemu.mma.order import KOrder, Run, plan
from fpemu.mma.spec import MmaSpec
from fpemu.schemes.words import Join, Plan, Product, Word, in_k

Array = NDArray[Any]


@dataclass(frozen=True)
class Accumulator:
    """One accumulator of the instruction: its products, and when it restarts from zero."""

    band: int  # smallest i + j of its products; its sum is divided by 2^(band · exponent)
    products: tuple[Product, ...]  # in the order run
    turn: int | None  # products alternate after so many k; None: each runs over a whole chain, or there is only one
    # Over K. `order.promote` is the promotion interval in k: the accumulator restarts from zero after it, and its sum
    # is added to an fp32 total outside the instruction.
    order: Any

    @property
    def interval(self) -> int | None:
        """Promotion interval in k; None: the accumulator persists over a whole slice."""
        return getattr(self.order, "promote", None)


@dataclass(frozen=True)
class Lowering:
    """A split scheme on one instruction, in one order over K."""

    words: tuple[Word, ...]  # rules of the words that are multiplied
    products: tuple[Product, ...]  # in the order run on each part of K
    accumulators: tuple[Accumulator, ...]  # in the order of their first product
    order: Any  # as given: its slices over K, and the reduction of their partial sums
    # Element-wise schemes: no accumulator persists. Each product of `block` k starts from zero and is added, divided by
    # its power of two, to one fp32 total that all accumulators share, product after product on each block.
    block: int | None
    exponent: int  # binary, of the scale between a word and the next
    join: Join  # order of the final combination of the accumulators
    in_double: bool  # whether the combination is in fp64 and rounds to fp32 once, at its end
    k: int  # of the instruction

    @property
    def accumulator_of(self) -> list[int]:
        """For each product the index of its accumulator."""
        return [next(n for n, acc in enumerate(self.accumulators) if p in acc.products) for p in self.products]

    def runs(self, K: int) -> list[list[list[list[Run]]]]:
        """The runs over K: for each accumulator, for each slice, for each chain, its runs one after another.

        ``Run.term`` is the index of a product in its accumulator. Element-wise there is one total in place of the
        accumulators, and every run is a chain; ``Run.term`` is then an index of `products`.
        """
        if self.block is None:
            return [plan(acc.order, K, len(acc.products), acc.turn) for acc in self.accumulators]
        step, terms = self.block, range(len(self.products))
        return [
            [
                [
                    [Run(t, k, min(k + step, stop))]
                    for segments in chains
                    for start, stop in segments
                    for k in range(start, stop, step)
                    for t in terms
                ]
                for chains in self.order.segments(K)
            ]
        ]

    def chains(self, accumulator: Accumulator, K: int, block: int) -> Chains:
        """Number and lengths of an accumulator's chains over K, in blocks of `block` k of the instruction."""
        if self.block is None:
            return Chains.of(accumulator.order, K, block, accumulator.turn)
        return Chains.of(self.order, K, block, self.block, fresh=True)

    def within(self, K: int) -> Lowering:
        """The same sums for products up to K: intervals and turns that K does not reach are left out."""
        if self.block is not None:
            return self

        def shorter(acc: Accumulator) -> Accumulator:
            order = replace(acc.order, promote=None) if (acc.interval or 0) >= K else acc.order
            return replace(acc, order=order, turn=acc.turn if (acc.turn or K) < K else None)

        return replace(self, accumulators=tuple(map(shorter, self.accumulators)))


def lower(words: Sequence[Word], plan: Plan, spec: MmaSpec, order: Any = None) -> Lowering:
    """The lowering of a scheme's words and plan on an instruction.

    `order` is the order over K inside every accumulator; its `promote` replaces the plan's, and an element-wise plan
    takes none.
    """
    order = KOrder() if order is None else order
    step = in_k(plan.step, spec)
    block = None
    if plan.accumulators == "none":
        block = step or spec.k
        if getattr(order, "promote", None) is not None:
            raise InputError("no chain outlives a step here (element-wise), so order takes a KOrder without promote")

    def accumulator(band: int, products: list[Product]) -> Accumulator:
        interval = None if block is not None else plan.promoted(band, spec)
        path = order if interval is None or order.promote is not None else replace(order, promote=interval)
        return Accumulator(band, tuple(products), step if len(products) > 1 else block, path)

    count = 1 + max(max(pair) for pair in plan.products)
    return Lowering(
        words=tuple(words[:count]),
        products=plan.products,
        accumulators=tuple(accumulator(*group) for group in plan.groups()),
        order=order,
        block=block,
        exponent=plan.exponent,
        join=plan.join,
        in_double=plan.combine_in == "fp64",
        k=spec.k,
    )


# --- evaluation


def run(A: Sequence[Array], B: Sequence[Array], lowering: Lowering, spec: MmaSpec, device: Device = "cpu") -> Array:
    """The sum of the products of words A (..., M, K) and B (..., K, N), fp32."""
    if lowering.block is not None:
        return _element_wise(A, B, lowering, spec, device)
    sums = []
    for number, acc in enumerate(lowering.accumulators):
        terms = [(A[i], B[j]) for i, j in acc.products]
        own = spec.for_sum(number) if number and spec.final == "SR" else spec
        total = _chain(terms, None, own, acc.order, acc.turn, device=device)
        sums.append((acc.band, total.astype(np.float32, copy=False)))
    return _combined(sums, lowering)


_ENTRIES = 2**20  # of the block products that one call computes


def _element_wise(A: Sequence[Array], B: Sequence[Array], lowering: Lowering, spec: MmaSpec, device: Device) -> Array:
    order, slices = lowering.order, []
    axes = max(A[0].ndim, B[0].ndim)
    A, B = ([x.reshape((1,) * (axes - x.ndim) + x.shape) for x in words] for words in (A, B))
    shape = (*np.broadcast_shapes(A[0].shape[:-2], B[0].shape[:-2]), A[0].shape[-2], B[0].shape[-1])
    together = 1 if spec.final == "SR" else max(1, _ENTRIES // max(1, math.prod(shape)))
    number = 0
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for chains in lowering.runs(A[0].shape[-1])[0]:
            total: Any = np.float32(0)
            runs = [run for (run,) in chains]
            while runs:  # as many of equal length as one call may compute
                equal = [*next(groupby(runs[:together], key=lambda run: run.stop - run.start))[1]]
                runs = runs[len(equal) :]
                pairs = [lowering.products[run.term] for run in equal]
                a = np.stack([A[i][..., run.start : run.stop] for run, (i, _) in zip(equal, pairs, strict=True)])
                b = np.stack([B[j][..., run.start : run.stop, :] for run, (_, j) in zip(equal, pairs, strict=True)])
                own = spec.for_sum(number) if number and spec.final == "SR" else spec
                blocks = _chain([(a, b)], None, own, device=device)
                number += 1
                for (i, j), block in zip(pairs, blocks, strict=True):
                    total = total + np.ldexp(block.astype(np.float32, copy=False), -lowering.exponent * (i + j))
            slices.append(total)
        return np.asarray(order.join_slices(order.sequence(slices)))


def _combined(sums: list[tuple[int, Array]], lowering: Lowering) -> Array:
    """The accumulators' sums (band, sum) added, each with its power of two."""
    dtype, exponent = np.float64 if lowering.in_double else np.float32, lowering.exponent
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if lowering.join == "as-run":
            unscaled = [np.ldexp(s.astype(dtype), -exponent * band) for band, s in sums]
            return np.asarray(reduce(np.add, unscaled).astype(np.float32))
        last = max(band for band, _ in sums)
        total: Any = None
        for band in sorted({band for band, _ in sums}, reverse=True):
            inside = reduce(np.add, [s.astype(dtype) for b, s in sums if b == band])
            total = inside if total is None else np.ldexp(total, -exponent * (last - band)) + inside
            last = band
        return np.asarray(np.ldexp(total, -exponent * last).astype(np.float32))


# --- counts


class _EqualChains(NamedTuple):
    """Equal chains: how many, blocks of a product in one, blocks before the next product, turns."""

    number: int
    blocks: int
    first: int
    rounds: int


@dataclass(frozen=True)
class Chains:
    """Number of blocks, chains and slices of a sum over K. `blocks` and `first` are those of the longest chain."""

    slices: int  # reduced at the end
    chains: int  # in a slice, added outside
    blocks: int  # that hold any of a product's terms, in a chain, for each product
    first: int  # of these, the ones before another product's turn
    rounds: int  # turns of a product in the longest chain
    total: int  # all chains of all slices
    total_blocks: int  # all blocks, for each product
    even: float  # number of equal chains with the same sum of squares of their lengths

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(order: KOrder, K: int, block: int, turn: int | None = None, fresh: bool = False) -> Chains:
        """The counts of an order over K in blocks of an instruction; `fresh`: every turn is a separate chain."""
        sizes = _cut(K, order.split)
        parts = [(count, _slice(order, length, block, turn, fresh)) for count, length in sizes]
        chains = [(count * chain.number, chain) for count, slice_ in parts for chain in slice_]
        blocks = sum(n * chain.blocks for n, chain in chains)
        return Chains(
            slices=sum(count for count, _ in sizes),
            chains=max(sum(chain.number for chain in slice_) for _, slice_ in parts),
            blocks=max(chain.blocks for _, chain in chains),
            first=min(chain.first for _, chain in chains),
            rounds=max(chain.rounds for _, chain in chains),
            total=sum(n for n, _ in chains),
            total_blocks=blocks,
            even=blocks**2 / sum(n * chain.blocks**2 for n, chain in chains),
        )

    def joins(self, order: KOrder) -> int:
        """Largest number of additions that the result of a slice goes through."""
        return math.ceil(math.log2(self.slices)) if order.join == "pairwise" else self.slices - 1


def _slice(order: KOrder, length: int, block: int, turn: int | None, fresh: bool) -> list[_EqualChains]:
    """The chains of a slice."""
    if order.tile is not None:
        chains = [(1, [b - a for a, b in chain]) for chain in replace(order, split=None).segments(length)[0]]
    else:
        chains = [(n, [size]) for n, size in _cut(length, order.promote)]
    if fresh:
        chains = [(n * m, [part]) for n, sizes in chains for size in sizes for m, part in _cut(size, turn)]
    return [
        _EqualChains(
            n,
            sum(m * -(-part // block) for size in sizes for m, part in _cut(size, turn)),
            -(-min(turn or length, sizes[0]) // block),
            sum(-(-size // (turn or length)) for size in sizes),
        )
        for n, sizes in chains
    ]


def _cut(length: int, size: int | None) -> list[tuple[int, int]]:
    """(number, length) of the parts of a length that is cut after every `size`."""
    size = min(size or length, length)
    whole, rest = divmod(length, size)
    return [(whole, size), (1, rest)] if rest else [(whole, size)]
