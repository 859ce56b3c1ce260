"""Error bounds of the error-free schemes from a few norms: Ozaki scheme I (`ozaki`, `ozimmu`) and II (`ozaki2`).

Their products are exact, so that an error has three sources: omitted digits, products left out, and the roundings of
the last sums. All are relative to S = |A||B|, entry by entry.

**Scheme I.** Let m_i be the largest magnitude in row i of A, n_j in column j of B, and l_A(p) m_i a bound on the
residual of row i after p slices (below). With a and b slices, and the products p + q <= d + 1 of them
(Mukunoki et al., ISC 2020, Algorithm 2, "fast mode"; Ootomo, Ozaki and Yokota, IJHPCA 2024, d = s),

    AB - sum = (A - sum A_p) B + A (B - sum B_q) - (A - sum A_p)(B - sum B_q)
               + sum over q of (sum of A_p, p > d + 1 - q) B_q

    |AB - sum| <= [ l_A(a) row_A + l_B(b) row_B + l_A(a) l_B(b) row_AB
                    + sum over q of (l_A(d+1-q) + l_A(a)) |B_q| / n_j row_AB ] S

with row_A = max m_i sum_k|b_kj| / S_ij and so on, the fields of `Norms`. To that come the roundings of the sum, each of
at most u times a partial sum, and these exceed S where a split rounds upward (`Split.growth`).

**Algorithm 3** (slices=None, "printed") uses sums over rows of S. An entry that is small beside others of its row may
lose everything, so that no bound follows from norms of entries: worst is inf, and `fpemu.theory.entrywise` bounds the
entries of given data. Bias, deviation and the other parts are those of the number of slices that it is expected to
choose. The automatic number of `ozimmu` keeps every bit if loss=0, which needs 53 / b slices at least; with a loss
allowed, an average over elements bounds no entry either.

**Residuals of slices.** Sizes are relative to m, the largest magnitude of a row of A (column of B). The first unit is
2^(tau - b) with 2^tau <= 2 m, more where headroom bits are left or the digit 2^b is not representable (int8). The
residual of a row is at most

    adaptive splits   published: a unit, then b bits a slice;   balanced: half a unit, then b + 1 bits a slice
                      (one bit less each where 2^b is not representable: the residual may need it in every slice)
    fixed grids       truncate: a unit;   nearest: half a unit;   b bits a slice

since the residual is at most a power of two that is a multiple of the next unit (`fpemu.schemes.errorfree.split` has
the four rules). A slice p > 1 is at most the residual before it. The residual is a multiple of the last place of the
smallest element, and therefore zero where the bound is below that.

In random rows the first unit is a power of two that follows from the largest element, and the residual has the mean and
the mean square of `Elements`. Where the digit 2^b is not representable, a slice gains one bit more in the rows whose
elements do not need it; the number of elements still above the unit determines how often.

**Scheme II** omits digits once, by rows and columns, and rounds once. 2^-mu_i <= x m_i, where x is twice (the power of
two is rounded down) the bound

    invariant   sqrt(K / limit)                       limit about P / 2
    accurate    sqrt(K (33/32) 2 / limit)             7-bit integers above |a| instead of |a|
    fast        max(2, sqrt(K) max|A|) / sqrt(limit)  limit about P / 8; not invariant: the elements' own size counts

    |AB - C' 2^-(mu + nu)| <= x_A row_A S + x_B row_B S, and one rounding.

With rounding="nearest" both terms are half of that, and only elements that are lost entirely have a bias.

`fast` needs floor(log2 m_i) + floor(log2 n_j) >= -2 for the remainder theorem; where the norms do not show it, worst is
inf. `fpemu.gemm` raises an error where a row or column is truncated to zeros; the bound may then exceed 1.

On random operands the three rules are evaluated for typical sums of rows, `Norms.lead`, and for their scatter between
rows; the unit is the resulting power of two. Digits are truncated toward zero, half a unit on average: a bias for data
of one sign. In `fast` scaling the bits lost by a row depend on its own size, which norms of all rows do not contain:
where rows differ by orders of magnitude, `probable` may be up to twice too small.

**Random operands.** Residuals are taken as uniform below their unit and independent of each other. Element a_ik loses
t_k 2^e_i, with 2^e_i the power of two above the largest element of row i. `Elements` models the mean of t_k in the
direction of the element and its mean square; the remainder is taken as independent over k. An entry then loses mean ·
(sum of sign(a_ik) b_kj) 2^e_i / S_ij in one direction, and its deviation follows from the norms
`fpemu.theory.norms.Cut` without any assumption on rows and columns. The number of slices that Algorithm 3 chooses is
predicted for typical rows. With lognormal elements of a large deviation the prediction may be one too low: `probable`
then still is a bound, but more than ten times the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

from fpemu import simt
from fpemu.arguments import number
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma import KOrder, MmaSpec, exactness
from fpemu.schemes.base import Scheme, build
from fpemu.schemes.errorfree import crt
from fpemu.schemes.errorfree.base import ErrorFree
from fpemu.schemes.errorfree.plan import INT32, SlicePlan, inexact, levels
from fpemu.schemes.errorfree.target import limit
from fpemu.schemes.ozaki import Ozaki, for_both
from fpemu.schemes.ozaki2 import Ozaki2
from fpemu.schemes.ozimmu import Ozimmu
from fpemu.theory import accumulation, walk
from fpemu.theory.losses import points
from fpemu.theory.norms import Cut, Norms
from fpemu.theory.parts import LEAST_TAIL, Part

__all__ = ["bound_parts", "slices_for"]
SLACK = 1 + 2.0**-20
"""Covers the roundings of the norms and of the bounds."""
_ROUNDING = math.sqrt(1 / (8 * math.log(2)))
"""Root mean square of a rounding error over u |x|: 2^e u / sqrt(3), |x| in [2^e, 2^(e+1)) logarithmically uniform."""
_LARGEST = 3 / (2 * math.log(2))
"""Mean square of numbers that are logarithmically uniform in [1, 2)"""


def bound_parts(
    scheme: Scheme, hardware: str | MmaSpec | None, norms: Norms, order: KOrder | None = None
) -> tuple[Part, ...]:
    """Return the parts of an error-free scheme's error, relative to (|A||B|)_ij, from norms alone.

    Parameters
    ----------
    scheme : Scheme
        A built `ozaki`, `ozimmu` or `ozaki2`.
    hardware : str or MmaSpec, optional
        Needed by `ozaki`: bits a slice follow from the instruction.
    norms : Norms
        Of the operands, numbers of the scheme's format.
    order : KOrder, optional
        Of the chains on the instruction.

    Returns
    -------
    tuple of Part
        The name of a part with worst = inf states why norms do not bound it.

    Raises
    ------
    InputError
        Another scheme; no hardware for `ozaki`; options that leave no bit a slice.

    Examples
    --------
    >>> from fpemu.theory import Norms
    >>> scheme = build("ozaki2", {"moduli": 15})
    >>> parts = bound_parts(scheme, None, Norms.sample("uniform", 1024, low=-1.0))
    >>> [part.name for part in parts]
    ['digits cut off', 'final rounding']
    """
    if not isinstance(scheme, ErrorFree):
        raise InputError(f"theory.errorfree bounds ozaki, ozimmu and ozaki2, not {scheme!r}")
    if norms.is_zero:
        return (Part("a product of zeros", 0.0),)
    if scheme.inside_scaling:
        raise InputError("theory.errorfree: inside_scaling changes the norms by the data: take theory.entrywise")
    if scheme.target is not None:
        most = limit(scheme.target, norms.K)
        return (Part("the target, or an error that says so", most, 0.0, most),)
    plan = scheme.plan_for(scheme.instruction_of(hardware), norms.K, order)
    if isinstance(scheme, Ozaki) and isinstance(plan, SlicePlan):
        parts, roundings = _ozaki(scheme, plan, norms)
    elif isinstance(scheme, Ozimmu) and isinstance(plan, SlicePlan):
        parts, roundings = _ozimmu(scheme, plan, norms)
    elif isinstance(scheme, Ozaki2):
        u = scheme.operand.unit_roundoff
        parts, roundings = [digits_cut_off(scheme, norms), rounded("final rounding", norms, u, 1, 1)], 1
    else:
        raise InputError(f"theory.errorfree bounds ozaki, ozimmu and ozaki2, not {scheme.name!r}")
    underflow = _underflow(norms, scheme.operand, roundings)
    if underflow > 2.0**-120:
        parts.append(Part("underflow", underflow))
    if math.isfinite(worst := sum(part.worst for part in parts)):
        size = norms.largest * (1 + worst)
        parts += accumulation.overflow(simt.SPECS[scheme.operand.name], size, walk.Data.of(norms))
    return tuple(parts)


def slices_for(
    target: float,
    norms: Norms,
    *,
    scheme: str = "ozaki",
    hardware: str | MmaSpec | None = None,
    order: KOrder | None = None,
    **options: Any,
) -> int:
    """Return the fewest slices with which no entry's error exceeds target · (|A||B|)_ij.

    For ozaki2 the result is the number of moduli.

    Parameters
    ----------
    target : float
        Error relative to |A||B|, positive.
    norms : Norms
        Norms of the operands.
    scheme : str
        "ozaki", "ozimmu" or "ozaki2".
    hardware : str or MmaSpec, optional
        An architecture, a GPU or an instruction.
    order : KOrder, optional
        Summation order over K within the products of slices.
    **options
        The scheme's choices, without the number of slices.

    Returns
    -------
    int
        Number of slices or moduli.

    Raises
    ------
    InputError
        If no number meets the target, with the best that is possible; for a target that is not positive, or a scheme
        or mode without a number of slices.

    Examples
    --------
    >>> from fpemu.theory import Norms
    >>> norms = Norms.sample("uniform", 1024, low=-1.0)
    >>> [slices_for(target, norms, hardware="H200") for target in (1e-4, 1e-8, 1e-12)]
    [3, 5, 7]
    """
    target = number("target", target, above=0, what=", an error relative to |A||B|")
    built = build(scheme, options)
    if not built.error_free:
        raise InputError(f"scheme {scheme!r} has no number of slices: choose ozaki, ozimmu or ozaki2")
    name, least, most = ("moduli", 2, 20) if isinstance(built, Ozaki2) else ("slices", 1, 256)
    if name in options:
        raise InputError(f"{name}={options[name]!r} is the result of slices_for: leave it out")
    best, at = math.inf, 0
    for count in range(least, most + 1):
        parts = bound_parts(build(scheme, {**options, name: count}), hardware, norms, order)
        worst = sum(part.worst for part in parts)
        if worst <= target:
            return count
        if worst < best:
            best, at = worst, count
        elif best < 1 and count > 2 * at + 8:
            break  # more roundings from here on; above 1 the digits below the last slices may still be all of an entry
    reach = f"the best is {best:.3g}, with {name}={at}" if at else f"no bound holds: {_reasons(parts)}"
    raise InputError(f"{scheme}: no number of {name} meets the target {target:.3g} for every such product; {reach}")


def _reasons(parts: Sequence[Part]) -> str:
    return ", ".join(part.name for part in parts if math.isinf(part.worst))


# --- scheme I
def _ozaki(scheme: Ozaki, plan: SlicePlan, norms: Norms) -> tuple[list[Part], int]:
    u, split = scheme.operand.unit_roundoff, splits(norms, plan, scheme.operand)
    broken = _not_exact(plan, split)
    if broken:
        return [Part(broken, math.inf)], 1
    if scheme.mode == "CR":
        return [rounded("one rounding of the exact sum", norms, u, 1, 1)], 1
    fixed = isinstance(scheme.slices, int)
    a, b, d = _counts(scheme, split)
    kept = scheme.fast is False or (scheme.fast is None and fixed and split.A.left(a) == 0)
    parts = [split.digits(a, b)]
    if not kept:
        parts.append(split.left_out(a, b, d))
    if not fixed:
        reason = f"digits below slice {d}, a number that Algorithm 3 finds from sums over rows: no bound by norms"
        parts[0] = replace(parts[0], name=reason, worst=math.inf)
    typical = sum(levels(a, b, d, not kept))
    most = typical if kept or scheme.fast else d * d  # fast mode is off where d slices happen to exhaust A
    # a product may have to be rounded to fp32 before it is added, never to fp64
    roundings = most - 1 if scheme.operand.name == "fp64" else 2 * most - 1
    sums = rounded(f"{scheme.operand} sums of products", norms, u, roundings, typical, split.growth())
    return [*parts, sums], most + 1


def _not_exact(plan: SlicePlan, split: Split) -> str:
    """The reason why products of slices may be inexact; empty if all are exact."""
    spec = plan.spec
    assert spec is not None
    if inexact(plan, plan.limit, plan.limit):
        return f"products of {plan.bits}-bit slices, which are not exact on {spec.name}"
    if plan.one_exponent:
        # from above the largest element to b bits below the last place of the smallest
        spans = [math.ceil(math.log2(side.top) + side.spread) + plan.bits for side in (split.A, split.B)]
        if not exactness.unit_fits(spec, -sum(spans)) or any(-max(spans) < f.emin for f in spec.operand_formats[:2]):
            return f"slices with one exponent a row, which {spec.a_format} may not hold"
    return ""


def _counts(scheme: Ozaki, split: Split) -> tuple[int, int, int]:
    """Slices of A and of B, and d: given, or predicted for Algorithm 3."""
    if isinstance(scheme.slices, int):
        return scheme.slices, scheme.slices, scheme.slices
    enough = 2 * math.sqrt(split.norms.K) * scheme.operand.unit_roundoff
    d, other = (fewest(side, lambda lost: lost <= enough) for side in (split.A, split.B))
    if scheme.slices == "printed":
        return d, d, d
    d, other = map(int, for_both(d, other))
    return d, other, other


def _ozimmu(scheme: Ozimmu, plan: SlicePlan, norms: Norms) -> tuple[list[Part], int]:
    bits, fmt, shared = plan.bits, scheme.operand, plan.shared or 1
    split = splits(norms, plan, fmt)
    least = most = likely = scheme.slices or 0
    name = "digits below the last slices"
    if not scheme.slices:
        # every significand has all its bits, the largest element's more than the smallest's has not
        widest = max(side.spread + math.log2(side.top) for side in (split.A, split.B))
        least, most = -(-fmt.precision // bits), math.ceil(widest / bits) + 1
        # by how much the largest elements of rows are below the matrix's
        ratios = [
            flat / row for flat, row in ((norms.flat_A, norms.row_A), (norms.flat_B, norms.row_B)) if row < math.inf
        ]
        likely = max(least, math.ceil((widest - 0.5 - min(math.log2(max(ratios, default=1.0)), widest)) / bits))
        if scheme.loss:
            below = max(
                math.log2(norms.magnitudes(which)[1] / norms.magnitudes(which)[0]) - math.log2(side.elements.mean)
                for side, which in ((split.A, "A"), (split.B, "B"))
            )  # over the geometric mean, of lognormal elements
            likely = max(1, math.ceil((fmt.precision + below + scheme.headroom - scheme.loss) / bits))
            name = f"digits below slice {likely}, a number found from a mean over elements: no bound by norms"
    sums, typical = plan.sums(most, most, most, True), plan.sums(likely, likely, likely, True)
    if min(most, shared) * plan.K * plan.limit**2 > INT32:
        return [Part(f"int32 sums of products of {bits}-bit slices, which may overflow", math.inf)], 1
    digits, lost = split.digits(likely, likely, name), split.left_out(likely, likely, likely)
    if not scheme.slices:
        digits = replace(digits, worst=math.inf) if scheme.loss else Part(name, 0.0)
        lost = replace(lost, worst=max(split.left_out(n, n, n).worst for n in range(min(least, most), most + 1)))
    parts = [digits, lost]
    parts.append(rounded("fp64 sums of products", norms, 2.0**-53, sums - 1, typical, split.growth()))
    if fmt.name != "fp64":
        parts.append(rounded("final rounding", norms, fmt.unit_roundoff, 1, 1, 1 + sum(p.worst for p in parts)))
    return parts, sums + 1


def _underflow(norms: Norms, fmt: FloatFormat, roundings: int) -> float:
    """Half a unit of the format's last place, for every rounding and product, over the smallest S."""
    K = norms.K
    absolute = math.log2((roundings + 1) * (fmt.min_subnormal * 2.0**100 + 4 * K * 2.0**-974)) - 100
    smallest = math.log2(K) + math.log2(norms.max_A) + math.log2(norms.max_B) - math.log2(norms.flat_AB)
    return math.exp2(absolute - smallest) if absolute - smallest < 1000 else math.inf


# --- residuals of slices


@dataclass(frozen=True)
class Side:
    """The split of one operand."""

    top: float
    """Upper bound of 2^tau"""
    first: int
    """b"""
    step: int
    """Bits by which every further slice reduces the residual"""
    needed: float
    """Probability that an element needs the digit 2^b where that is not representable, else 0"""
    at_first: float
    """Probability that the largest element of a row needs it in the first slice"""
    K: int
    free: float
    """First unit over 2^(e_i - b) in most rows, with 2^e_i above the largest element"""
    toward_zero: bool
    """Whether digits are truncated: the residual has the sign of the element"""
    of_unit: float
    """Largest residual in units"""
    scatter: float
    """Standard deviation of the residual of an element of many units, in units"""
    spread: float
    """log2 of the largest element of the matrix over the last place of the smallest"""
    elements: Elements

    def envelope(self, p: int) -> float:
        """Largest residual of a row after p slices, as a power of two."""
        return self.top * self.of_unit * 2.0 ** -(self.first + (p - 1) * self.step) if p else self.top

    def left(self, p: int) -> float:
        """The same, limited to the element itself; 0 below the last place of all elements."""
        size = self.envelope(p)
        return 0.0 if p and (size == 0 or math.log2(size) < -self.spread) else min(size, 1.0)

    def slice(self, p: int) -> float:
        """The largest entry of slice p: rounding to nearest at most doubles."""
        if p == 1:
            return 1.0 if self.toward_zero else 1.0 + self.left(1)
        return min(self.envelope(p - 1), 2.0) if self.left(p - 1) else 0.0

    def typical(self, p: int) -> tuple[float, float]:
        """Mean and root mean square of the residual of random elements after p > 0 slices, over 2^e_i."""
        if not self.left(p):
            return 0.0, 0.0
        bits, _ = _bits(self, p)
        return self.elements.lost(self.free * 2.0**-bits, self.scatter, self.toward_zero)

    def wander(self, p: int) -> float:
        """Ratio of the unit of one row in twenty to the root mean square over all rows after p slices."""
        return 2.0 ** _bits(self, p)[1] if p else 1.0


@lru_cache(maxsize=4096)
def _bits(side: Side, p: int) -> tuple[float, float]:
    """Bits of the unit of slice p below the top, in the mean square over random rows; how many fewer a row may have.

    A slice gains one bit more in a row whose elements do not need the digit 2^b.
    """
    total, mean, variance = float(side.first), 0.0, 0.0
    for q in range(p):
        often, gained = side.at_first, 0.0
        if q:
            above = side.elements.above(side.free * 2.0 ** -min(total, 1000.0)) if side.needed else 0.0
            often = 1 - (1 - side.needed) ** (side.K * above)
            gained = side.step + (side.needed > 0)
        lost = math.log2(1 + 3 * often) / 2  # of bits, in the mean square
        total, mean, variance = total + gained - lost, mean + often - lost, variance + often * (1 - often)
    return total, max(mean + 1.64 * math.sqrt(variance), 0.0)


@dataclass(frozen=True)
class Split:
    """The splits of both operands of a product, with its norms."""

    norms: Norms
    A: Side
    B: Side

    def digits(self, a: int, b: int, name: str = "digits below the last slices") -> Part:
        """The part of the error from the residuals after a slices of A and b of B."""
        norms, x, y = self.norms, self.A.left(a), self.B.left(b)
        worst = sum(min(times(*lost), 1.0) for lost in ((x, norms.row_A), (y, norms.row_B), (x * y, norms.row_AB)))
        part = cut_off(name, worst * SLACK, norms, self.A.typical(a), self.B.typical(b))
        return replace(part, tail=math.hypot(part.tail, max(self.A.wander(a), self.B.wander(b)) - 1))

    def left_out(self, a: int, b: int, d: int) -> Part:
        """The products p + q > d + 1."""
        norms, worst, mean, square = self.norms, 0.0, 0.0, 0.0
        for q in range(1, b + 1):
            p = max(0, d + 1 - q)
            if p >= a:
                continue
            worst += (self.A.left(p) + self.A.left(a)) * self.B.slice(q)
            if p and q > 1:
                (mean_a, rms_a), (mean_b, rms_b) = self.A.typical(p), self.B.typical(q - 1)
                mean, square = mean + mean_a * mean_b, square + (rms_a * rms_b) ** 2 - (mean_a * mean_b) ** 2
        # the kept part is at most the largest partial sum, so that the omitted part is at most that and |A||B|
        most = 1 + self.growth()
        bias, deviation = random(norms.cut_AB, mean, math.sqrt(square))
        wander = max(self.A.wander(d - 1), self.B.wander(d - 1))
        return Part(
            "products left out",
            min(times(worst, norms.row_AB) * SLACK, most),
            bias,
            deviation,
            math.hypot(tail(uneven(norms.cut_AB)), wander - 1),
        )

    def growth(self) -> float:
        """The largest partial sum of products of slices, over |A||B|.

        |A_1 + ... + A_p| <= |A| + left_A(1) m and |B_1| + |B_2| + ... <= |B| + 2 (left_B(1) + left_B(2) + ...) n; or,
        element by element, 2|A| and 7|B|: rounding to nearest at most doubles, and what a first slice leaves, at most
        x itself, is followed by units that shrink by two at least.
        """
        if self.A.toward_zero:
            return 1.0
        norms, x, y = self.norms, self.A.left(1), 2 * self.B.envelope(1) / (1 - 2.0**-self.B.step)
        return min(14.0, 1 + times(x, norms.row_A) + times(y, norms.row_B) + times(x * y, norms.row_AB))


def splits(norms: Norms, plan: SlicePlan, fmt: FloatFormat) -> Split:
    """The splits of A and B, numbers of the format `fmt`, by a plan."""
    rule, bits = plan.rule, plan.bits
    # the digit 2^b is not representable: a row that would need it starts one bit higher
    short, adaptive = plan.limited and rule != "truncate", not plan.on_grid
    step = bits + (rule == "balanced") - short if adaptive else bits
    top = 2.0 ** (1 + plan.headroom) / (1 - short * 2.0**-bits)
    of_unit = 0.5 if rule in ("balanced", "nearest") else 1.0
    # published: positive digits are even, so that the residuals of positive elements scatter twice as much
    scatter = math.sqrt(5 / 24) if rule == "published" else math.sqrt(1 / 12)
    # of the published digits positive ones alone can be 2^b
    needed = 2.0 ** -(bits + (rule == "published")) if adaptive and short else 0.0

    def side(which: str, largest: float, least: float, row: float, flat: float) -> Side:
        # rows all of which have elements close to a power of two, as uniform numbers have
        end = 2.0 ** -(bits + 1)
        full = short and math.frexp(largest)[0] > 1 - end and flat < 1.1 * row
        return Side(
            top=top,
            first=bits,
            step=step,
            needed=needed,
            at_first=1 - (1 - end) ** norms.K if full else 0.0,
            K=norms.K,
            free=2.0**plan.headroom,
            toward_zero=rule == "truncate",
            of_unit=of_unit,
            scatter=scatter,
            spread=math.log2(largest) - math.log2(last_place(least, fmt)),
            elements=Elements.of(norms, which),
        )

    return Split(
        norms,
        side("A", norms.max_A, norms.min_A, norms.row_A, norms.flat_A),
        side("B", norms.max_B, norms.min_B, norms.row_B, norms.flat_B),
    )


def fewest(side: Side, enough: Callable[[float], bool]) -> int:
    """Algorithm 3 of Mukunoki et al. on random elements: the first d >= 2 with which `enough`((d + 1) |A_d|)."""
    d = 2
    while not enough((d + 1) * (side.typical(d - 1)[1] + side.typical(d)[1]) / side.elements.mean):
        d += 1
    return d


# --- scheme II


def digits_cut_off(scheme: Ozaki2, norms: Norms) -> Part:
    """The part of the error from digits that `ozaki2` omits to make its operands integers."""
    K, P, nearest = norms.K, scheme.basis().product, scheme.rounding == "nearest"
    tight = scheme.scaling != "fast"
    limit = float(crt.limit(P, K, nearest) if tight else Fraction(P - 1, 8))
    cuts, typical, tails = [], [], []
    for side, row in (("A", norms.row_A), ("B", norms.row_B)):
        largest, least = (norms.max_A, norms.min_A) if side == "A" else (norms.max_B, norms.min_B)
        most = math.sqrt(K)
        if scheme.scaling == "accurate":
            most *= math.sqrt(2 * 33 / 32)
        elif scheme.scaling == "fast":
            most = max(2.0, most * largest)
        cut = 2 * most / math.sqrt(limit) * SLACK
        cut = 0.0 if cut * largest <= last_place(least, scheme.operand) else cut
        cuts.append(min(times(cut / 2 if nearest else cut, row), 1.0))
        units, weights = _units(scheme, norms, side, limit)
        losses = [Elements.of(norms, side).lost(unit, math.sqrt(1 / 12), not nearest) for unit in units]
        mean, square = (float(weights @ np.power(x, n)) for n, x in enumerate(zip(*losses, strict=True), 1))
        typical.append((mean, math.sqrt(square)) if cut else (0.0, 0.0))
        tails.append(max(rms for _, rms in losses) / math.sqrt(square) if square else 1.0)
    lost = cut_off("digits cut off", sum(cuts) * SLACK, norms, *typical)
    if scheme.scaling == "accurate":
        # rows whose unit is larger than that of most rows
        lost = replace(lost, tail=max(lost.tail, math.sqrt(max(uneven(norms.cut_A), uneven(norms.cut_B)))))
    lost = replace(lost, tail=max(lost.tail, *tails))
    smallest = _exponent(norms.max_A, norms.min_A, norms.flat_A) + _exponent(norms.max_B, norms.min_B, norms.flat_B)
    if not tight and smallest < -2:
        lost = replace(lost, name="digits cut off, or all: rows may be too small for fast scaling", worst=math.inf)
    return lost


def _units(scheme: Ozaki2, norms: Norms, side: str, limit: float) -> tuple[Any, Any]:
    """2^-mu_i over 2^e_i in random rows, with weights: powers of two, so that the scatter of the sums matters."""
    z, weights = points()
    x, y = (Elements.of(norms, which).mean for which in "AB")
    if scheme.scaling == "accurate":
        up = 1 / 128  # 7-bit integers are rounded upward
        S, power = norms.lead + norms.K * up * (x + y + up), 0
    else:
        # of the elements in the root mean square, and of the largest one, over the power of two below that: where few
        # elements dominate a row, the mean of all rows' squares says nothing of its largest one
        S, power = 4 * (lone(norms, side) * norms.K * (x if side == "A" else y)) ** 2 + _LARGEST, -1
    with np.errstate(over="ignore"):
        exponents = np.ceil((np.log2(S / limit) + norms.lead_spread * z) / 2) + power
    if scheme.scaling == "fast":  # mu_i is too small by floor(log2 m_i), which is largest where rows lose most
        top = math.frexp(norms.max_A if side == "A" else norms.max_B)[1] - 1
        exponents = np.maximum(exponents + top, math.ceil(math.log2(4 / limit) / 2) - 1)
    return np.exp2(np.minimum(exponents, 0)), weights


def _exponent(largest: float, least: float, flat: float) -> int:
    """floor(log2) of the largest element of any row (column) that counts: S_ij <= m_i sum|b|, so m_i >= max / flat."""
    return math.frexp(max(least, largest / flat * (1 - 2.0**-40)))[1] - 1


# --- errors from omitted digits of random elements, and from roundings


@dataclass(frozen=True)
class Elements:
    """The elements of random rows relative to 2^e_i, modelled as lognormal."""

    mean: float
    sigma: float
    """Standard deviation of the logarithm"""
    grid: float
    """Common unit of all elements, below their last place where they come from few random bits"""

    @staticmethod
    def of(norms: Norms, side: str) -> Elements:
        """The model of A or B."""
        mean, rms = norms.magnitudes(side)
        cut, top, unit = (
            (norms.cut_A, norms.max_A, norms.unit_A) if side == "A" else (norms.cut_B, norms.max_B, norms.unit_B)
        )
        return Elements(
            mean=min(lone(norms, "B" if side == "A" else "A") / cut.random, 1.0) if cut.random else 1.0,
            sigma=math.sqrt(max(2 * math.log(rms / mean), 1e-6)),
            grid=math.ldexp(unit, -math.frexp(top)[1]) if math.isfinite(unit) else 0.0,
        )

    def _z(self, x: float) -> float:
        return (math.log(x / self.mean) + self.sigma**2 / 2) / self.sigma

    def above(self, x: float) -> float:
        """Probability that an element is larger."""
        return 1 - NormalDist().cdf(self._z(x))

    def lost(self, unit: float, scatter: float, toward_zero: bool) -> tuple[float, float]:
        """Mean and root mean square of the omitted part at a unit, with the sign of the element.

        Elements above the unit lose half a unit on average if truncated, with a deviation of `scatter` units. Elements
        below it (below half of it if rounded to nearest) are lost entirely.
        """
        unit = min(unit, 1.0)
        if unit <= self.grid:
            return 0.0, 0.0
        below, z = NormalDist().cdf, self._z(unit * (1 if toward_zero else 0.5))
        above, toward = 1 - below(z), (unit - self.grid) / 2 * toward_zero
        mean = self.mean * below(z - self.sigma) + toward * above
        square = self.mean**2 * math.exp(self.sigma**2) * below(z - 2 * self.sigma)
        return mean, math.sqrt(square + (toward**2 + scatter**2 * (unit**2 - self.grid**2)) * above)


def last_place(x: float, fmt: FloatFormat) -> float:
    """The unit in the last place of a number of the format."""
    return max(math.ldexp(1.0, math.frexp(x)[1] - fmt.precision), fmt.min_subnormal)


def times(amount: float, ratio: float) -> float:
    """amount · ratio, with 0 · inf = 0."""
    return amount * ratio if amount else 0.0


def lone(norms: Norms, side: str) -> float:
    """sqrt(sum x^2) / sum|x| of a row: 1 / sqrt(K) for equal elements, 1 for a single one."""
    mean, rms = norms.magnitudes(side)
    return min(1.0, rms / mean / math.sqrt(norms.K))


def cut_off(name: str, worst: float, norms: Norms, a: tuple[float, float], b: tuple[float, float]) -> Part:
    """The error of the product from omitted digits with these means and root mean squares."""
    cuts = norms.cut_A, norms.cut_B
    errors = [
        random(cut, mean, math.sqrt(max(rms**2 - mean**2, 0.0))) for cut, (mean, rms) in zip(cuts, (a, b), strict=True)
    ]
    bias, deviation = sum(x for x, _ in errors), math.hypot(*(y for _, y in errors))
    return Part(name, worst, min(bias, 1.0), min(deviation, 1.0), tail(max(map(uneven, cuts))))


def random(cut: Cut, mean: float, scatter: float) -> tuple[float, float]:
    """Bias and deviation of the product's error for losses with this mean and standard deviation."""
    bias = mean * cut.bias
    return min(bias, 1.0), min(
        math.sqrt((scatter * cut.random) ** 2 + max((mean * cut.aligned) ** 2 - bias**2, 0)), 1.0
    )


def uneven(cut: Cut) -> float:
    """Ratio of the largest deviation of an entry to the root mean square over all entries."""
    return max(cut.peak / cut.random, 1.0) if cut.random else 1.0


def tail(ratio: float) -> float:
    """`Part.tail` of entries whose deviations differ by up to that ratio.

    `Bound.probable` takes more than four deviations for many entries. Few entries have the largest deviation, for which
    three deviations suffice.
    """
    return max(0.7 * ratio, LEAST_TAIL)


def rounded(name: str, norms: Norms, u: float, count: int, typical: int, growth: float = 1.0) -> Part:
    """`count` roundings of numbers of the size of the result."""
    worst = count * u / (1 - count * u) * growth if count * u < 1 else math.inf
    data = walk.Data.of(norms)
    tail = data.tail(math.sqrt(3) * data.mean, 2 * data.deviation**2)
    return Part(name, worst, 0.0, _ROUNDING * u * data.whole * math.sqrt(typical), tail)
