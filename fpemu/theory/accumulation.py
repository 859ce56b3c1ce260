"""What a chain of instructions loses when it sums products, at worst.

A block adds L products p to the accumulator c. Let P = sum |p| of the block and W the same with every operand taken at
least as large as the smallest normal number of its format (a subnormal operand keeps that exponent). It loses at most

    tau max(|c|, W) + pi W + rho (|c| + P) + absolute

"truncated": tau = L 2^-F, for L of the L + 1 terms lose less than 2^(e_max - F) each and the one with the largest
exponent nothing (as long as F bits hold it), rho = 2^-23 (RZ) or u (RNE). "exact", "fma": rho = u alone. "flushed":
rho = u, pi = u log2 L of the pairwise sums. CDNA3: pi = L 2^-24 of the products' own alignment, tau = 2^-32,
rho = 2^-24 + 2^-31. "via-half": pi = 2 (L/2 2^-F + 2^-23), rho = u. The floor E0 and subnormal results are absolute.

Truncation lets no sum of magnitudes grow, so |c| <= sum of P up to there, and the mass of a product is charged once per
block from its own to the end of its chain: (blocks) (tau + rho) S for one chain, where blocks of zeros (padding) cost
nothing. Arithmetics that round to nearest let it grow by (1 + tau + rho) a block. A product's mass lies in one slice
and one chain, hence the longest chain counts, not their sum. Additions outside round to nearest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from fpemu import formats
from fpemu.arguments import LARGEST, checked, integer
from fpemu.errors import InputError
from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes.words import growth
from fpemu.theory import walk
from fpemu.theory.norms import Norms
from fpemu.theory.parts import Bound, Part
from fpemu.theory.splits import Operands, Size


@dataclass(frozen=True)
class Step:
    """Largest error of one block, by what it is proportional to; see the module."""

    tau: float
    pi: float
    rho: float
    absolute: float
    grows: bool

    @staticmethod
    @lru_cache(maxsize=256)
    def of(spec: MmaSpec) -> Step:
        """Of an instruction.

        Examples
        --------
        >>> import fpemu
        >>> step = Step.of(fpemu.mma.spec("hopper"))
        >>> step.tau == 2.0**-21, step.rho == 2.0**-23
        (True, True)
        """
        if spec.is_integer:
            raise InputError(f"{spec.name}: sums of integers are exact modulo 2^32; there is no error to bound")
        a, b, c, d = spec.operand_formats
        u, least, L = d.unit_roundoff, d.min_subnormal, spec.block
        if spec.arithmetic in ("exact", "fma"):
            return Step(0.0, 0.0, u, least / 2, True)
        if spec.arithmetic == "flushed":
            return Step(0.0, growth(math.log2(L), u), u, 2 * L * d.min_normal, True)
        if spec.arithmetic in ("cdna3", "cdna3-fp8"):
            apart = 3 if spec.arithmetic == "cdna3-fp8" else 0
            return Step(2.0**-32, (L + apart) * 2.0**-24, u + 2.0**-31 + 2.0**-54, least / 2 + 2.0**-157, True)
        held = max(c.precision - 1, a.precision + b.precision - 2) <= spec.F
        # no grid is finer than that of the floor E0, nor, beside a subnormal sum, than that of the smallest normal one
        floor = (L + 1) * 2.0 ** (max(c.emin, c.emin if spec.E0 is None else spec.E0) - spec.F)
        if spec.arithmetic == "via-half":
            half = (L // 2 + (not held)) * 2.0**-spec.F + (2.0**-10 if d.name == "fp16" else 2.0**-23)
            return Step(0.0, 2 * half * (1 + half), u, 2 * (floor + least) + least / 2, True)
        tau = (L + (not held)) * 2.0**-spec.F
        if spec.final == "RNE":
            return Step(tau, 0.0, u, floor + least / 2, True)
        rho = 2.0 * u if spec.fraction_bits is None else 2.0**-spec.fraction_bits
        return Step(tau, 0.0, rho, floor + least, False)


class _Chain(NamedTuple):
    """Equal chains: how many, blocks of a product in one, blocks before the next product, turns."""

    number: int
    blocks: int
    first: int
    rounds: int


@dataclass(frozen=True)
class Chains:
    """How many blocks, chains and slices a sum over K has. Blocks and first are those of the longest chain."""

    slices: int
    """Slices, joined at the end"""
    chains: int
    """Chains in a slice, added outside"""
    blocks: int
    """Blocks that hold any of a product's terms, in a chain, for each product"""
    first: int
    """Of these, the ones before another product takes its turn"""
    rounds: int
    """How often products take turns in the longest chain"""
    total: int
    """All chains of all slices"""
    total_blocks: int
    """All blocks, for each product"""
    even: float
    """How many equal chains would have the same sum of squares of their lengths"""

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(order: KOrder, K: int, spec: MmaSpec, step: int | None = None, fresh: bool = False) -> Chains:
        """Of an order over K; with `step`, products take turns after so many k; if `fresh`, each step is a chain."""
        size = min(order.split or K, K)
        whole, rest = divmod(K, size)
        lengths = [(whole, size), (1, rest)] if rest else [(whole, size)]
        found = [(count, _slice(order, length, spec.block, step, fresh)) for count, length in lengths]
        parts = [chain for _, slice_ in found for chain in slice_]
        blocks = sum(n * chain.number * chain.blocks for n, slice_ in found for chain in slice_)
        squares = sum(n * chain.number * chain.blocks**2 for n, slice_ in found for chain in slice_)
        return Chains(
            slices=whole + (rest > 0),
            chains=max(sum(chain.number for chain in slice_) for _, slice_ in found),
            blocks=max(chain.blocks for chain in parts),
            first=min(chain.first for chain in parts),
            rounds=max(chain.rounds for chain in parts),
            total=sum(n * chain.number for n, slice_ in found for chain in slice_),
            total_blocks=blocks,
            even=blocks**2 / squares,
        )

    def joins(self, order: KOrder) -> int:
        """Most additions that the result of a slice goes through."""
        return math.ceil(math.log2(self.slices)) if order.join == "pairwise" else self.slices - 1


def _slice(order: KOrder, length: int, block: int, step: int | None, fresh: bool) -> list[_Chain]:
    """The chains of a slice."""
    if order.tile is not None:
        chains = [(1, [b - a for a, b in chain]) for chain in replace(order, split=None).segments(length)[0]]
    else:
        chains = [(n, [size]) for n, size in _cut(length, order.promote)]
    if fresh:
        chains = [(n * m, [part]) for n, sizes in chains for size in sizes for m, part in _cut(size, step)]
    return [
        _Chain(
            n,
            sum(_blocks(size, block, step) for size in sizes),
            -(-min(step or length, sizes[0]) // block),
            sum(-(-size // (step or length)) for size in sizes),
        )
        for n, sizes in chains
    ]


def _cut(length: int, size: int | None) -> list[tuple[int, int]]:
    """(how many, length) of the pieces of a length cut after every `size`."""
    size = min(size or length, length)
    whole, rest = divmod(length, size)
    return [(whole, size), (1, rest)] if rest else [(whole, size)]


def _blocks(length: int, block: int, step: int | None) -> int:
    if step is None:
        return -(-length // block)
    whole, rest = divmod(length, step)
    return whole * -(-step // block) - (-rest // block)


@dataclass(frozen=True)
class Term:
    """A product of words as an accumulator meets it; all over S = (|A||B|)_ij."""

    size: float
    """Sum of magnitudes, at worst"""
    inflated: float
    """The same with subnormal operands at their exponent"""
    typical: walk.Steps


def worst(terms: Sequence[Term], spec: MmaSpec, order: KOrder, chains: Chains, turns: bool, over_D: float) -> float:
    """The most that the chains of one accumulator lose, additions outside and joins included; over S.

    Parameters
    ----------
    terms : the products in the order run
    turns : bool
        Whether they take turns, or each runs over a whole chain before the next.
    over_D : float
        An absolute error of the result times this is relative to S.
    """
    size = sum(t.size for t in terms)
    lost = inside(terms, spec, chains, turns, over_D)
    if not math.isfinite(lost):
        return math.inf
    outside = outer(spec)
    lost += growth(chains.chains - 1 + chains.joins(order), outside.unit_roundoff) * (size + lost)
    if spec.d_format != outside and chains.total > 1:  # fp16 results added in fp32 and rounded at the end
        fmt = spec.operand_formats[3]
        lost += fmt.unit_roundoff * (size + lost) + fmt.min_subnormal * over_D
    return lost


def inside(terms: Sequence[Term], spec: MmaSpec, chains: Chains, turns: bool, over_D: float) -> float:
    """The most that the chains of one accumulator lose, without what happens outside; over S."""
    step, T = Step.of(spec), len(terms)
    eps, n = step.tau + step.rho, T * chains.blocks
    along, entering = 0.0, 0.0
    for i, term in enumerate(terms):
        along += (n - i * (chains.first if turns else chains.blocks)) * eps * term.size
        if step.pi or step.tau:  # where nothing is aligned, exponents do not count; those of tiny terms may be infinite
            entering += step.pi * (1 + eps) * term.inflated + step.tau * (term.inflated - term.size)
    entering += T * chains.total_blocks * step.absolute * over_D
    if not step.grows or n * eps == 0:
        return along + entering
    more = growth(n, eps)
    # the sums of magnitudes do not fall along a chain while what they are multiplied by later does: the mean will do
    return along * more / (n * eps) + entering * (1 + more)


def outer(spec: MmaSpec) -> formats.FloatFormat:
    """The format of additions outside the core."""
    return formats.FP64 if str(spec.d_format) == "fp64" else formats.FP32


@checked
def chain(spec: MmaSpec, norms: Norms, order: KOrder | None = None, *, M: int = 1, N: int = 1) -> Bound:
    """Return the a-priori error of a product on one instruction.

    The product is ``fpemu.mma.gemm(A, B, spec=spec, order=order)``, with operands in the spec's formats.

    Parameters
    ----------
    spec : MmaSpec
        Arithmetic of the instruction.
    norms : Norms
        Of A and B, values of the spec's formats.
    order : KOrder, optional
        Default: one chain, k ascending.
    M, N : int
        Shape of the result: among how many entries `Bound.probable` looks for the largest error.

    Returns
    -------
    Bound
        With the parts "accumulation", "underflow" on hardware that reads subnormal operands as zero and, where sums may
        overflow, "overflow" (infinite).

    Raises
    ------
    InputError
        An integer instruction, which loses nothing; a negative M or N.

    Examples
    --------
    >>> import fpemu
    >>> norms = Norms.sample("positive", 4096, rows=8)
    >>> one, many = (chain(fpemu.mma.spec("hopper"), norms, KOrder(promote=p)) for p in (None, 64))
    >>> many.worst < one.worst / 10 and many.bias < one.bias / 10
    True
    """
    order = KOrder() if order is None else order
    count = entries(M, N)
    if norms.is_zero:
        return Bound((Part("accumulation", 0.0),), count)
    if spec.is_integer:
        Step.of(spec)
    a, b, _, _ = spec.operand_formats
    data = Operands.of(norms, "none", a.emax)
    floors = [f.min_normal if least < f.min_normal else 0.0 for f, least in zip((a, b), data.smallest, strict=True)]
    inflated = data.product(Size(1.0, floors[0]), Size(1.0, floors[1]))
    term = Term(1.0, inflated, walk.Steps(walk.Data.of(norms)))
    chains = Chains.of(order, norms.K, spec)
    most = worst([term], spec, order, chains, False, data.over_D)
    drift = walk.drift([term.typical], spec, order, chains, False)
    tail = drift.data.tail(drift.data.mean, drift.data.deviation**2)
    parts = [Part("accumulation", most * (1 + 2.0**-20), *drift.relative, tail)]
    if spec.arithmetic == "flushed" and any(floors):
        lost = [Size(0.0, f) for f in floors]
        gone = data.product(lost[0], Size(1.0)) + data.product(Size(1.0), lost[1])
        likely = [min(f / mean, 1.0) ** 1.5 for f, mean in zip(floors, data.mean, strict=True)]
        parts.append(Part("underflow", gone * (1 + 2.0**-20), 0.0, math.hypot(*likely) * norms.spread, norms.uneven))
    if math.isfinite(most):
        parts += overflow(spec, data.S * (1 + most), walk.Data.of(norms))
    return Bound(tuple(parts), count)


def entries(M: int, N: int) -> int:
    """M N, after a check."""
    for name, value in (("M", M), ("N", N)):
        integer(name, value, 0, LARGEST)
    return int(M) * int(N)


def overflow(spec: MmaSpec, size: float, data: walk.Data) -> list[Part]:
    """A part without bound if sums of magnitudes up to `size` need not stay within the instruction's results."""
    top = spec.operand_formats[3].max
    if size < top:
        return []
    likely = size * math.hypot(data.mean, 6 * data.deviation) >= top or not math.isfinite(size)
    return [Part("overflow", math.inf, 0.0, math.inf if likely else 0.0)]
