"""Words of a low format, and the sum of products of words: what all the split schemes are made of.

A split is a list of `Word` rules. Word i of x is the rounding of (what the words before it left of x) times its scale.
A `Plan` says which products of words run, in what order, in which accumulators, and how the accumulators are joined.
The band of a product of word i and word j is i + j: all products of a band carry the same power of the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.errors import InputError
from fpemu.formats import FP16, FloatFormat
from fpemu.mma import KOrder, MmaSpec
from fpemu.rounding import bit_cut, round_to

Array = NDArray[Any]
BIT_CUT = "bit-cut"
NEAREST = ("RNE", "RNA")


@dataclass(frozen=True)
class Word:
    """How one word of a split is made.

    Parameters
    ----------
    name : str
        "h" or "r", or the word's number from 1.
    format : FloatFormat
    rounding : str
        Name of a rounding mode, or "bit-cut" (fp16 only).
    exponent : int
        Binary exponent of the scale: the word is the rounding of residual · 2^exponent.
    """

    name: str
    format: FloatFormat
    rounding: str = "RNE"
    exponent: int = 0

    def round(self, x: Array) -> Array:
        """`x` (float64, already scaled) as values of the format."""
        if self.rounding == BIT_CUT:
            return np.asarray(bit_cut(x))
        if self.format is FP16 and self.rounding == "RNE":
            with np.errstate(over="ignore", invalid="ignore", under="ignore"):
                return np.asarray(x).astype(np.float16)  # NumPy's conversion is one rounding to nearest even
        return np.asarray(round_to(x, self.format, self.rounding))

    def overflows(self, x: Array) -> NDArray[np.bool_]:
        """Where the rounding of `x` with an unbounded exponent is beyond the format's largest number."""
        over = np.abs(x) > self.format.max
        if over.any():
            mode = "RZ" if self.rounding == BIT_CUT else self.rounding
            over[over] = np.abs(round_to(x[over], self.format, mode, unbounded=True)) > self.format.max
        return np.asarray(over)

    @property
    def unit(self) -> float:
        """Largest relative error of the rounding, without overflow and underflow."""
        return self.format.unit_roundoff * (1 if self.rounding in NEAREST else 2)


def steps(x: Array, words: Sequence[Word]) -> Iterator[tuple[Word, Array, Array, Array]]:
    """For each word: its rule, the scaled residual it rounds, its value, and what is left of x afterwards.

    All in float64, where every step is exact for fp32 numbers times a power of two: the residual of a rounding to
    nearest, or toward zero, is a multiple of x's last place and smaller than x. (A directed rounding that lifts a tiny
    number to a word more than 2^53 times larger leaves a residual that is itself rounded, as it is on a GPU.)
    """
    left = np.asarray(x, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        for word in words:
            scaled = np.ldexp(left, word.exponent)
            value = word.round(scaled)
            left = left - np.ldexp(value.astype(np.float64), -word.exponent)
            yield word, scaled, value, left


def split(x: Array, words: Sequence[Word]) -> tuple[Array, ...]:
    """The words of `x`, each an array of its format's dtype."""
    return tuple(value for _, _, value, _ in steps(x, words))


@dataclass(frozen=True)
class Plan:
    """Which products of words run, where they are summed, and how the sums are joined.

    Parameters
    ----------
    products : tuple of (int, int)
        Index of A's word and of B's word, in the order run.
    exponent : int
        Binary exponent of the scale between a word and the next.
    accumulators : {"one", "band", "each", "none"}
        One accumulator for all products, one per band, one per product; or none that outlives a step: the block
        product of every step starts from zero and is added to one fp32 total outside.
    step : int, "instruction" or None
        Products that share an accumulator take turns after so many k; None: each runs over all of K before the next.
    promote : int, "instruction" or None
        The accumulator restarts from zero after so many k and is added to an fp32 total outside.
    promote_in : {"k", "instructions"}
        Unit of `promote`.
    promote_all : bool
        Whether the accumulators of the corrections are promoted too, or only that of band 0.
    join : {"smallest-first", "as-run"}
        total = sum of the highest band, then total = total / 2^exponent + next band; or each sum divided by its own
        power of two and added in the order run.
    combine_in : {"fp32", "fp64"}
        Arithmetic of the join; "fp64" rounds to fp32 once, at the end.
    """

    products: tuple[tuple[int, int], ...]
    exponent: int = 0
    accumulators: str = "band"
    step: int | str | None = None
    promote: int | str | None = None
    promote_in: Literal["k", "instructions"] = "k"
    promote_all: bool = False
    join: Literal["smallest-first", "as-run"] = "smallest-first"
    combine_in: str = "fp32"

    def groups(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """The accumulators in the order of their first product: (band, products run in it)."""
        if self.accumulators == "each" or self.accumulators == "none":
            return [(i + j, [(i, j)]) for i, j in self.products]
        if self.accumulators == "one":
            return [(min(i + j for i, j in self.products), list(self.products))]
        bands = list(dict.fromkeys(i + j for i, j in self.products))
        return [(b, [p for p in self.products if sum(p) == b]) for b in bands]

    def promoted(self, band: int, spec: MmaSpec) -> int | None:
        """The promotion interval, in k, of an accumulator that holds `band`."""
        if not (self.promote_all or band == 0 or self.accumulators == "one"):
            return None
        interval = in_k(self.promote, spec)
        return interval if interval is None or self.promote_in == "k" else interval * spec.k


def pairs(names: Sequence[str], letters: str) -> tuple[tuple[int, int], ...]:
    """Products by name as pairs of indices: "rh" with the letters "hr" is (1, 0)."""
    return tuple((letters.index(name[0]), letters.index(name[1])) for name in names)


def run(A: Sequence[Array], B: Sequence[Array], plan: Plan, spec: MmaSpec, order: KOrder | None = None) -> Array:
    """The sum of products of words by `plan`, as fp32 (..., M, N).

    Parameters
    ----------
    A, B : sequences of arrays (..., M, K) and (..., K, N)
        Words of the two matrices.
    order : KOrder, optional
        Order of addition inside every accumulator.
    """
    if plan.accumulators == "none":
        return _blocks(A, B, plan, spec, order)
    sums = []
    for band, products in plan.groups():
        terms = [(A[i], B[j]) for i, j in products]
        path = _with_promotion(order, plan.promoted(band, spec))
        step = in_k(plan.step, spec) if len(terms) > 1 else None
        sums.append((band, mma.chain(terms, spec=spec, order=path, step=step).astype(np.float32, copy=False)))
    return _join(sums, plan)


def _join(sums: list[tuple[int, Array]], plan: Plan) -> Array:
    dtype = np.float64 if plan.combine_in == "fp64" else np.float32
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if plan.join == "as-run":
            parts = [np.ldexp(s.astype(dtype), -plan.exponent * band) for band, s in sums]
            return np.asarray(reduce(np.add, parts).astype(np.float32))
        last = max(band for band, _ in sums)
        total: Any = None
        for band in sorted({band for band, _ in sums}, reverse=True):
            inside = reduce(np.add, [s.astype(dtype) for b, s in sums if b == band])
            total = inside if total is None else np.ldexp(total, -plan.exponent * (last - band)) + inside
            last = band
        return np.asarray(np.ldexp(total, -plan.exponent * last).astype(np.float32))


def _blocks(A: Sequence[Array], B: Sequence[Array], plan: Plan, spec: MmaSpec, order: Any) -> Array:
    order = KOrder() if order is None else order
    if order.promote is not None:
        raise InputError("no chain outlives a step here (element-wise), so order takes a KOrder without promote")
    step = in_k(plan.step or "instruction", spec)
    assert step is not None
    slices = []
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for chains in order.segments(A[0].shape[-1]):
            total: Any = np.float32(0)
            for k, end in ((k, min(k + step, b)) for chain in chains for a, b in chain for k in range(a, b, step)):
                for i, j in plan.products:
                    block = mma.gemm(A[i][..., k:end], B[j][..., k:end, :], spec=spec)
                    total = total + np.ldexp(block.astype(np.float32, copy=False), -plan.exponent * (i + j))
            slices.append(total)
        return np.asarray(order.join_slices(order.sequence(slices)))


def in_k(interval: int | str | None, spec: MmaSpec) -> int | None:
    """A length in k, where "instruction" is the length of one."""
    return spec.k if interval == "instruction" else interval  # type: ignore[return-value]


def _with_promotion(order: Any, promote: int | None) -> Any:
    """`order` with the scheme's promotion, unless the order has one of its own."""
    if promote is None:
        return order
    if order is None:
        return KOrder(promote=promote)
    return order if order.promote is not None else replace(order, promote=promote)


# --- error bounds


def magnitudes(x: Array, rules: Sequence[Word], spec: MmaSpec) -> tuple[list[Array], list[Array], Array]:
    """Magnitudes of the words unscaled; the same, not below the smallest normal number; and what they leave of x.

    A subnormal operand keeps the exponent emin on the truncating hardware, hence the second; CDNA2 reads it as zero.
    """
    true, least, total = [], [], np.zeros_like(x)
    for word, value in zip(rules, split(x, rules), strict=True):
        size = value.astype(np.float64)
        if spec.arithmetic == "flushed":
            size = np.where(abs(size) < word.format.min_normal, 0, size)
        total = total + np.ldexp(size, -word.exponent)
        true.append(np.ldexp(abs(size), -word.exponent))
        floor = np.where(size == 0, 0, word.format.min_normal)
        least.append(np.ldexp(np.maximum(abs(size), floor), -word.exponent))
    return true, least, abs(x - total)


def block_error(spec: MmaSpec) -> float:
    """Largest error of one block of `spec`, relative to the sum of the magnitudes of its products and accumulator.

    "truncated": L + 1 terms lose less than 2^(e_max - F) each, where 2^e_max is at most the largest term, then one
    rounding. "flushed": four roundings. The CDNA3 rows add coarser floors; twice the truncated bound holds them.
    """
    out = 2.0 ** (-spec.fraction_bits) if spec.fraction_bits else 2.0 * spec.operand_formats[3].unit_roundoff
    if spec.final == "RNE":
        out = spec.operand_formats[3].unit_roundoff
    truncation = (spec.block + 1) * 2.0**-spec.F
    if spec.arithmetic == "truncated":
        return truncation + out * (1 + truncation)
    if spec.arithmetic in ("exact", "fma"):
        return out
    if spec.arithmetic == "flushed":
        return float(np.expm1(4 * np.log1p(out)))
    return 2 * (truncation + out) + 2.0**-22


def growth(blocks: float, error: float) -> float:
    """(1 + error)^blocks - 1."""
    return float(np.expm1(blocks * np.log1p(error)))


def accumulation_error(magnitude: Callable[[int, int], Any], plan: Plan, spec: MmaSpec, K: int) -> Any:
    """Bound on what summing the products loses, given the magnitude of each product of words (|A_i| |B_j|, unscaled).

    Works on scalars (relative to |A||B|) and on (..., M, N) arrays alike.
    """
    error, eps = 2.0**-24, block_error(spec)
    total, lost = 0.0, 0.0
    groups = plan.groups()
    for band, products in groups:
        size = sum(magnitude(i, j) for i, j in products)
        segment = plan.promoted(band, spec)
        if plan.accumulators == "none":
            segment = in_k(plan.step or "instruction", spec)
        outside = 0 if segment is None else -(-K // segment) * (len(groups) if plan.accumulators == "none" else 1)
        segment = K if segment is None else min(segment, K)
        # every step of an interleaved chain is padded to whole instructions, and these to whole blocks
        step = min(in_k(plan.step, spec) or segment, segment) or 1
        blocks = len(products) * -(-segment // step) * -(-step // spec.k) * (spec.k // spec.block)
        lost = lost + (growth(blocks, eps) * (1 + growth(outside, error)) + growth(outside, error)) * size
        total = total + size
    joins = 1 if plan.combine_in == "fp64" else len(groups) - 1
    return lost + growth(joins, error) * (total + lost)
