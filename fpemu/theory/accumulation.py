"""Worst-case error of chains of instructions that sum products.

A block adds L products p to the accumulator c. Let P = sum |p| of the block, and W the same sum with every operand
taken as at least the smallest normal number of its format (a subnormal operand keeps that exponent). The error of a
block is at most

    tau max(|c|, W) + pi W + rho (|c| + P) + absolute

with the coefficients of the arithmetic, `fpemu.mma.arithmetic.Loss`: tau = L 2^-F and rho = 2^-f for NVIDIA's truncated
sums, rho = u for exact sums and for FMAs. The minimum alignment exponent and subnormal results contribute absolute
errors.

Truncation never increases a sum of magnitudes, so that |c| is at most the sum of P so far, and the magnitude of a
product contributes once per block from its own block to the end of its chain: (blocks) (tau + rho) S for one chain.
Blocks of zeros (padding) contribute nothing. Arithmetics that round to nearest let the sum grow by (1 + tau + rho) per
block. A product belongs to one slice and one chain, so that the longest chain counts and not the sum of all chains.
Additions outside the instruction round to nearest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fpemu import formats
from fpemu._system import in_ieee
from fpemu.arguments import LARGEST, integer
from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes.lowering import Chains
from fpemu.theory import walk
from fpemu.theory.norms import Norms
from fpemu.theory.parts import Bound, Part
from fpemu.theory.splits import Operands, Size


@dataclass(frozen=True)
class Term:
    """A product of words in an accumulator; all sizes relative to S = (|A||B|)_ij."""

    size: float
    """Largest sum of magnitudes"""
    inflated: float
    """The same with subnormal operands taken as normal"""
    typical: walk.Steps


def growth(count: float, error: float) -> float:
    """(1 + error)^count - 1."""
    return float(np.expm1(count * np.log1p(error)))


def probable_growth(count: float, error: float, failure: float = 0.01) -> float:
    """Return the bound that a chain of roundings of mean zero keeps with a probability of 1 - failure, relative to S.

    exp(t error sqrt(count) + count error^2 / (1 - error)) - 1 with 2 exp(-t^2 (1 - error)^2 / 2) = failure (Higham and
    Mary 2019, theorem 2.4); for stochastic rounding `error` is 2 u (Connolly, Higham and Mary 2021, theorem 4.6).
    """
    t = math.sqrt(2 * math.log(2 / failure)) / (1 - error)
    return math.expm1(t * error * math.sqrt(count) + count * error**2 / (1 - error))


def worst(terms: Sequence[Term], spec: MmaSpec, order: KOrder, chains: Chains, turns: bool, over_D: float) -> float:
    """Largest error of the chains of one accumulator relative to S, including promotions and joins of slices.

    `turns`: the terms alternate within a chain, else each runs over a whole chain before the next. `over_D` converts an
    absolute error of the result to one relative to S.
    """
    size = sum(t.size for t in terms)
    error = inside(terms, spec, chains, turns, over_D)
    if not math.isfinite(error):
        return math.inf
    outside = outer(spec)
    error += growth(chains.chains - 1 + chains.joins(order), outside.unit_roundoff) * (size + error)
    if spec.d_format != outside and chains.total > 1:  # fp16 results are added in fp32 and rounded at the end
        fmt = spec.operand_formats[3]
        error += fmt.unit_roundoff * (size + error) + fmt.min_subnormal * over_D
    return error


def inside(terms: Sequence[Term], spec: MmaSpec, chains: Chains, turns: bool, over_D: float) -> float:
    """Largest error of the chains of one accumulator relative to S, without additions outside the instruction."""
    step, count = spec.rules.loss(spec), len(terms)
    eps, n = step.tau + step.rho, count * chains.blocks
    along, entering = 0.0, 0.0
    for i, term in enumerate(terms):
        along += (n - i * (chains.first if turns else chains.blocks)) * eps * term.size
        if step.pi or step.tau:  # without alignment the exponents, which may be infinite for tiny terms, have no effect
            entering += step.pi * (1 + eps) * term.inflated + step.tau * (term.inflated - term.size)
    entering += count * chains.total_blocks * step.absolute * over_D
    if not step.grows or n * eps == 0:
        return along + entering
    factor = growth(n, eps)
    # sums of magnitudes do not decrease along a chain and the factors that follow them do, so that the mean is a bound
    return along * factor / (n * eps) + entering * (1 + factor)


def outer(spec: MmaSpec) -> formats.FloatFormat:
    """The format of additions outside the instruction."""
    return formats.FP64 if str(spec.d_format) == "fp64" else formats.FP32


@in_ieee
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
        Shape of the result; `Bound.probable` bounds the largest error among M N entries.

    Returns
    -------
    Bound
        With the parts "accumulation", "underflow" on hardware that reads subnormal operands as zero and, where sums may
        overflow, "overflow" (infinite).

    Raises
    ------
    InputError
        An integer instruction, whose sums are exact; a negative M or N.

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
        spec.rules.loss(spec)  # raises: integers have no error
    a, b, _, _ = spec.operand_formats
    data = Operands.of(norms, "none", a.emax)
    floors = [f.min_normal if least < f.min_normal else 0.0 for f, least in zip((a, b), data.smallest, strict=True)]
    inflated = data.product(Size(1.0, floors[0]), Size(1.0, floors[1]))
    term = Term(1.0, inflated, walk.Steps(walk.Data.of(norms)))
    chains = Chains.of(order, norms.K, spec.block)
    error = worst([term], spec, order, chains, False, data.over_D)
    drift = walk.drift([term.typical], spec, order, chains, False)
    tail = drift.data.tail(drift.data.mean, drift.data.deviation**2)
    parts = [Part("accumulation", error * (1 + 2.0**-20), *drift.relative, tail)]
    if spec.rules.flushes and any(floors):
        flushed = [Size(0.0, f) for f in floors]
        lost = data.product(flushed[0], Size(1.0)) + data.product(Size(1.0), flushed[1])
        likely = [min(f / mean, 1.0) ** 1.5 for f, mean in zip(floors, data.mean, strict=True)]
        parts.append(Part("underflow", lost * (1 + 2.0**-20), 0.0, math.hypot(*likely) * norms.spread, norms.uneven))
    if math.isfinite(error):
        parts += overflow(spec, data.S * (1 + error), walk.Data.of(norms))
    return Bound(tuple(parts), count)


def entries(M: int, N: int) -> int:
    """M N, after a check of both."""
    for name, value in (("M", M), ("N", N)):
        integer(name, value, 0, LARGEST)
    return int(M) * int(N)


def overflow(spec: MmaSpec, size: float, data: walk.Data) -> list[Part]:
    """An infinite part if sums of magnitudes up to `size` may exceed the instruction's largest result."""
    top = spec.operand_formats[3].max
    if size < top:
        return []
    likely = size * math.hypot(data.mean, 6 * data.deviation) >= top or not math.isfinite(size)
    return [Part("overflow", math.inf, 0.0, math.inf if likely else 0.0)]
