"""Error bounds of the error-free schemes from a few norms: Ozaki scheme I (`ozaki`, `ozimmu`) and II (`ozaki2`).

Their products are exact, so that an error has three sources: omitted digits, products left out, and the roundings of
the last sums. All are relative to S = |A||B|, entry by entry.

**Scheme I.** Let m_i be the largest magnitude in row i of A, n_j in column j of B, and l_A(p) m_i a bound on the
residual of row i after p slices (`fpemu.theory.slicing`). With a and b slices, and the products p + q <= d + 1 of them
(Mukunoki et al., ISC 2020, Algorithm 2, "fast mode"; Ootomo, Ozaki and Yokota, IJHPCA 2024, d = s),

    AB - sum = (A - sum A_p) B + A (B - sum B_q) - (A - sum A_p)(B - sum B_q)
               + sum over q of (sum of A_p, p > d + 1 - q) B_q

    |AB - sum| <= [ l_A(a) row_A + l_B(b) row_B + l_A(a) l_B(b) row_AB
                    + sum over q of (l_A(d+1-q) + l_A(a)) |B_q| / n_j row_AB ] S

with row_A = max m_i sum_k|b_kj| / S_ij and so on, the fields of `Norms`. To that come the roundings of the sum, each of
at most u times a partial sum, and these exceed S where a split rounds upward (`slicing.Split.growth`).

**Algorithm 3** (slices=None, "printed") uses sums over rows of S. An entry that is small beside others of its row may
lose everything, so that no bound follows from norms of entries: worst is inf, and `fpemu.theory.entrywise` bounds the
entries of given data. Bias, deviation and the other parts are those of the number of slices that it is expected to
choose. The automatic number of `ozimmu` keeps every bit if loss=0, which needs 53 / b slices at least; with a loss
allowed, an average over elements bounds no entry either.

**Scheme II** omits digits once, by rows and columns (`fpemu.theory.modular`), and rounds once.

**Random operands.** Residuals are taken as uniform below their unit and independent of each other
(`fpemu.theory.cuts`). The number of slices that Algorithm 3 chooses is predicted for typical rows. With lognormal
elements of a large deviation the prediction may be one too low: `probable` then still is a bound, but more than ten
times the error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from fpemu import simt
from fpemu.arguments import checked
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma import KOrder, MmaSpec, exactness
from fpemu.schemes.base import Scheme, build
from fpemu.schemes.errorfree.base import ErrorFree
from fpemu.schemes.errorfree.products import lengths
from fpemu.schemes.ozaki import Ozaki
from fpemu.schemes.ozaki2 import Ozaki2
from fpemu.schemes.ozimmu import INT32, Ozimmu
from fpemu.theory import accumulation, walk
from fpemu.theory.cuts import rounded
from fpemu.theory.modular import digits_cut_off
from fpemu.theory.norms import Norms
from fpemu.theory.parts import Part
from fpemu.theory.slicing import Split, fewest, splits

_COUNTS = {Ozaki: ("slices", 256), Ozimmu: ("slices", 256), Ozaki2: ("moduli", 20)}


@checked
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
    if isinstance(scheme, Ozaki):
        parts, roundings = _ozaki(scheme, scheme.spec(hardware), norms, order)
    else:
        if hardware is not None:
            scheme.spec(hardware)
        if isinstance(scheme, Ozimmu):
            parts, roundings = _ozimmu(scheme, norms)
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


@checked
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
    if not (isinstance(target, Real) and 0 < target < math.inf):
        raise InputError(f"target = {target!r} must be a positive number, an error relative to |A||B|")
    kind = type(build(scheme, options))
    if kind not in _COUNTS:
        raise InputError(f"scheme {scheme!r} has no number of slices: choose ozaki, ozimmu or ozaki2")
    name, most = _COUNTS[kind]
    if name in options:
        raise InputError(f"{name}={options[name]!r} is the result of slices_for: leave it out")
    best, at = math.inf, 0
    for count in range(2 if kind is Ozaki2 else 1, most + 1):
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


def _pairs(a: int, b: int, d: int) -> int:
    """Number of p <= a, q <= b with p + q <= d + 1."""
    return sum(max(0, min(a, d + 1 - q)) for q in range(1, b + 1))


# --- scheme I
def _ozaki(scheme: Ozaki, spec: MmaSpec, norms: Norms, order: KOrder | None) -> tuple[list[Part], int]:
    u = scheme.operand.unit_roundoff
    bits = scheme.slice_bits(spec, norms.K, order)
    split = splits(norms, bits, scheme.split, scheme.operand, spec.is_integer)
    broken = _not_exact(scheme, spec, split, order)
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
    typical = a * b if kept else _pairs(a, b, d)
    most = typical if kept or scheme.fast else d * d  # fast mode is off where d slices happen to exhaust A
    # a product may have to be rounded to fp32 before it is added, never to fp64
    roundings = most - 1 if scheme.operand.name == "fp64" else 2 * most - 1
    sums = rounded(f"{scheme.operand} sums of products", norms, u, roundings, typical, split.growth())
    return [*parts, sums], most + 1


def _not_exact(scheme: Ozaki, spec: MmaSpec, split: Split, order: KOrder | None) -> str:
    """The reason why products of slices may be inexact; empty if all are exact."""
    K, bits = split.norms.K, split.A.first
    digit = (1 << bits) - spec.is_integer
    exact = all(exactness.holds(spec, digit, digit, n, order) for n in lengths(K, scheme.k_block))
    if not exact or K * digit**2 > 2**53:
        return f"products of {bits}-bit slices, which are not exact on {spec.name}"
    if scheme.exponents == "row":
        # from above the largest element to b bits below the last place of the smallest
        spans = [math.ceil(math.log2(side.top) + side.spread) + bits for side in (split.A, split.B)]
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
    return (other, other, other) if other > d + 1 else (d, max(d, other), max(d, other))


def _ozimmu(scheme: Ozimmu, norms: Norms) -> tuple[list[Part], int]:
    K, bits, fmt = norms.K, scheme.slice_bits(norms.K), scheme.operand
    split = splits(norms, bits, scheme.split, fmt, True, scheme.headroom)
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
    sums = _sums(most, scheme.sharing(K))
    if min(most, scheme.sharing(K)) * K * ((1 << bits) - 1) ** 2 > INT32:
        return [Part(f"int32 sums of products of {bits}-bit slices, which may overflow", math.inf)], 1
    digits, lost = split.digits(likely, likely, name), split.left_out(likely, likely, likely)
    if not scheme.slices:
        digits = replace(digits, worst=math.inf) if scheme.loss else Part(name, 0.0)
        lost = replace(lost, worst=max(split.left_out(n, n, n).worst for n in range(min(least, most), most + 1)))
    parts = [digits, lost]
    typical = _sums(likely, scheme.sharing(K))
    parts.append(rounded("fp64 sums of products", norms, 2.0**-53, sums - 1, typical, split.growth()))
    if fmt.name != "fp64":
        parts.append(rounded("final rounding", norms, fmt.unit_roundoff, 1, 1, 1 + sum(p.worst for p in parts)))
    return parts, sums + 1


def _sums(s: int, shared: int) -> int:
    """Sums in fp64: `shared` products of equal p + q are added in int32 before."""
    return sum(-(-g // shared) for g in range(1, s + 1))


def _underflow(norms: Norms, fmt: FloatFormat, roundings: int) -> float:
    """Half a unit of the format's last place, for every rounding and product, over the smallest S."""
    K = norms.K
    absolute = math.log2((roundings + 1) * (fmt.min_subnormal * 2.0**100 + 4 * K * 2.0**-974)) - 100
    smallest = math.log2(K) + math.log2(norms.max_A) + math.log2(norms.max_B) - math.log2(norms.flat_AB)
    return math.exp2(absolute - smallest) if absolute - smallest < 1000 else math.inf
