"""Norms of two matrices, from which bounds are computed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs
from fpemu.arguments import LARGEST, any_complex, as_complex, as_float64, integer, number, real_factor, real_view
from fpemu.errors import InputError, entries

Floats = NDArray[np.float64]
TINY = 2.0**-1074
"""Least mean of numbers that are not all zero"""
SHARES = (0.05,) * 19 + (0.025, 0.0125, 0.00625, 0.00625)
"""Shares of the products for `Norms.terms`, finer where the largest of a block of 16 or 32 products lies"""
_DRAWN = 2**14
"""Products of an entry from which `Norms.terms` are computed; of a longer K, a sample is sorted in milliseconds"""
_LEAST = 2.0**-200
"""Magnitudes below it, relative to the mean, are counted as zero: a ratio of products of two of them is finite"""
STRETCHES = 24
"""Stretches of k along which sums are followed"""
LARGE = 2.0**400
"""Limit of the typical ratios, whose squares do not overflow"""


@dataclass(frozen=True)
class Cut:
    """Loss of S_ij if each element of a row loses up to 2^e_i, the power of two above its largest element.

    For A: t_k b_kj summed over k, relative to S_ij, with t_k the loss of element a_ik over 2^e_i. Zero elements
    lose nothing. For B likewise, and for both at once with 2^(e_i + f_j) times two such numbers.
    """

    random: float
    """Root mean square over the entries, t_k independent and of mean square 1"""
    peak: float
    """The same at the entry where it is largest"""
    aligned: float
    """Root mean square over the entries, t_k = sign(a_ik)"""
    bias: float
    """Mean over the entries of the same in the direction of (AB)_ij"""


@dataclass(frozen=True, kw_only=True)
class Norms:
    """Norms of finite matrices A (M, K) and B (K, N), from `Norms.of` or `Norms.sample`.

    S_ij = (|A||B|)_ij, a_i is row i of A and b_j column j of B. The ratios say by how much S would grow if elements
    were as large as the largest of their matrix (of their row or column): 1 for constant matrices. Entries with
    S_ij = 0 do not count: every scheme whose words do not overflow gives zero there.

    A worst-case bound holds for these operands, and for others with the same numbers. Norms of a sample describe
    other operands of the distribution well enough for a probable bound, unless few elements dominate (phi = 2,
    lognormal), and never for a rigorous one.

    Attributes
    ----------
    K : int
        Length of the sums.
    max_A, max_B : float
        Largest magnitude of A and of B.
    min_A, min_B : float
        Smallest magnitude that is not zero; inf if there is none.
    flat_A : float
        Maximum over i, j of max|A| · sum_k |b_kj| / S_ij.
    flat_B : float
        Maximum over i, j of sum_k |a_ik| · max|B| / S_ij.
    flat_AB : float
        Maximum over i, j of K max|A| max|B| / S_ij.
    row_A : float
        Maximum over i, j of max_k |a_ik| · sum_k |b_kj| / S_ij.
    row_B : float
        Maximum over i, j of sum_k |a_ik| · max_k |b_kj| / S_ij.
    row_AB : float
        Maximum over i, j of K max_k |a_ik| max_k |b_kj| / S_ij.
    spread : float
        Root mean square over the entries of sqrt(sum_k (a_ik b_kj)^2) / S_ij: 1 / sqrt(K) at least.
    result : float
        ||AB||_F / || |A||B| ||_F: 1 for data of one sign, about 1 / sqrt(K) for data of zero mean.
    part : float
        Root mean square over the entries of (AB)_ij / S_ij.
    peak : float
        Maximum over i, j of sqrt(sum_k (a_ik b_kj)^2) / S_ij: `spread` of the entry where it is largest.
    max_S : float
        Maximum of S_ij; inf: unknown, at most K max|A| max|B|.
    rms_S : float
        Root mean square of S_ij.
    mean_A, mean_B : float
        Mean of |A| and of |B|.
    rms_A, rms_B : float
        Root mean square of A and of B.
    unit_A, unit_B : float
        Largest power of two of which every element of the matrix is a multiple.
    cut_A, cut_B, cut_AB : Cut
        Norms of the digits omitted by the error-free schemes, for A, for B and for both.
    lead : float
        Geometric mean of the largest S_ij / 2^(e_i + f_j) of every row, and of every column; e, f as for `Cut`.
    lead_spread : float
        Standard deviation of its binary logarithm over rows and columns.
    along : tuple of float
        Shares of S_ij in `STRETCHES` equal stretches of k, mean over the entries.
    terms : tuple of float
        Magnitudes of the products a_ik b_kj over their mean in a stretch of k, ascending: their mean in each of the
        `SHARES`, over 16 entries (i, j) and 16384 k at most.
    """

    K: int
    max_A: float
    max_B: float
    min_A: float
    min_B: float
    flat_A: float
    flat_B: float
    flat_AB: float
    row_A: float
    row_B: float
    row_AB: float
    spread: float
    result: float
    part: float
    peak: float
    max_S: float
    rms_S: float
    mean_A: float
    mean_B: float
    rms_A: float
    rms_B: float
    unit_A: float
    unit_B: float
    cut_A: Cut
    cut_B: Cut
    cut_AB: Cut
    lead: float
    lead_spread: float
    along: tuple[float, ...]
    terms: tuple[float, ...]

    def __post_init__(self) -> None:
        integer("Norms: K", self.K, 0, LARGEST)
        for name, value in vars(self).items():
            if name not in ("K", "along", "terms") and not isinstance(value, Cut):
                number(f"Norms: {name}", value, 0, math.inf, what="; take Norms.of(A, B)")
        for name, length in (("along", STRETCHES), ("terms", len(SHARES))):
            values = as_float64(getattr(self, name), f"Norms: {name}")
            if values.shape != (length,) or not (values >= 0).all():
                raise InputError(f"Norms: {name} must be {length} numbers from 0 on; take Norms.of(A, B)")
        for name in ("max_A", "max_B"):
            if math.isinf(getattr(self, name)):
                raise InputError(f"Norms: {name} = inf: a bound takes finite operands")

    @property
    def is_zero(self) -> bool:
        """Whether all terms of AB are zero, so that no error can occur."""
        return self.K == 0 or self.max_A == 0 or self.max_B == 0

    @property
    def uneven(self) -> float:
        """`peak` over `spread`, at least 1: ratio of the largest to the typical random error of an entry."""
        return max(self.peak / self.spread, 1.0) if self.spread else 1.0

    @property
    def largest(self) -> float:
        """Upper bound of S_ij."""
        return min(self.max_S, self.K * self.max_A * self.max_B)

    def magnitudes(self, side: str) -> tuple[float, float]:
        """Mean and root mean square of |A| (side "A") or |B|."""
        return (self.mean_A, self.rms_A) if side == "A" else (self.mean_B, self.rms_B)

    @staticmethod
    @np.errstate(all="ignore")
    def of(A: Any, B: Any) -> Norms:
        """Return the norms of two matrices, (M, K) and (K, N), from a dozen float64 products.

        Of complex matrices those of the real product of the parts, over 2K, which `fpemu.gemm` computes in form 4M.

        Raises
        ------
        InputError
            Not two matrices that fit each other; entries that are NaN or infinite.

        Examples
        --------
        >>> norms = Norms.of([[1.0, 2.0]], [[3.0], [-1.0]])
        >>> norms.flat_A, norms.result
        (1.6, 0.2)
        """
        own = any_complex(A, B)
        a, b = _matrix(A, "A", own), _matrix(B, "B", own)
        if a.shape[1] != b.shape[0]:
            raise InputError(f"Norms.of: A {a.shape} and B {b.shape} have no product; give (M, K) and (K, N)")
        if own:
            a, b = real_view(a), real_factor(b)
        K, p, q = a.shape[1], np.abs(a), np.abs(b)
        top, least = [float(x.max(initial=0.0)) for x in (p, q)], [float(x[x > 0].min(initial=np.inf)) for x in (p, q)]
        ratios = _ratios(a, b)
        x, y = _unit(a, top[0]), _unit(b, top[1])
        S = np.abs(x) @ np.abs(y)
        whole = math.sqrt(float(np.mean(S**2))) if S.size else 0.0
        scale = math.frexp(top[0])[1] + math.frexp(top[1])[1]
        return Norms(
            K=K,
            max_A=top[0],
            max_B=top[1],
            min_A=least[0],
            min_B=least[1],
            **ratios,
            result=math.sqrt(float(np.mean((x @ y) ** 2))) / whole if whole else 0.0,
            max_S=_times_power(float(S.max(initial=0.0)) * (1 + K * 2.0**-52), scale),
            rms_S=_times_power(whole, scale),
            mean_A=_mean(p),
            mean_B=_mean(q),
            rms_A=_rms(x, top[0]),
            rms_B=_rms(y, top[1]),
            unit_A=_unit_of(a),
            unit_B=_unit_of(b),
        )

    @staticmethod
    def sample(name: str, K: int, rows: int = 64, seed: int = 0, **parameters: Any) -> Norms:
        """Return the norms of a named distribution (`fpemu.inputs.names`), from matrices of `rows` rows and columns.

        `parameters` are those of `fpemu.inputs.operands`: dtype="fp64" for a scheme that takes fp64 (fp32 by default).

        Examples
        --------
        >>> round(Norms.sample("uniform", 256, rows=16).result * 16, 1)
        1.4
        """
        A, B = inputs.operands(name, rows, rows, K, seed, **parameters)
        return Norms.of(A, B)


def _matrix(X: Any, name: str, complex_numbers: bool) -> Any:
    x = (as_complex if complex_numbers else as_float64)(X, f"Norms.of: {name}")
    if x.ndim != 2:
        raise InputError(f"Norms.of: {name} of shape {x.shape} is not a matrix; give (M, K) and (K, N)")
    if not (good := np.isfinite(x)).all():
        raise InputError(f"Norms.of: {name}: NaN or infinite: {entries(~good, x)}; a bound takes finite operands")
    return x


def _ratios(a: Floats, b: Floats) -> dict[str, Any]:
    """All ratios to S, entry by entry. Rows and columns are scaled, so that S does not overflow.

    Where S underflows nevertheless, the largest ratios are unbounded.
    """
    p, q = np.abs(a), np.abs(b)
    er = np.frexp(p.max(axis=1, keepdims=True, initial=0.0))[1]
    ec = np.frexp(q.max(axis=0, keepdims=True, initial=0.0))[1]
    x, y, K = np.ldexp(p, -er), np.ldexp(q, -ec), p.shape[1]
    S = x @ y
    xs, ys, u, v = np.sign(a), np.sign(b), np.sign(p), np.sign(q)
    some = S > 2.0**-900
    vanished = bool((~some & (u @ v > 0)).any())

    def over(values: Any) -> Floats:
        return np.asarray(np.clip(np.divide(values, S, out=np.zeros_like(S), where=some), -LARGE, LARGE))

    least = np.where(some, 1 / math.sqrt(max(K, 1)), 0)  # by Cauchy and Schwarz, where squares underflow
    squares, parts = np.maximum(over(np.sqrt(x**2 @ y**2)), least) ** 2, over((xs * x) @ (ys * y))

    def cut(square: Floats, along: Floats) -> Cut:
        squares, along = np.maximum(over(np.sqrt(square)), least) ** 2, over(along)
        bias = float(np.mean((along * np.sign(parts))[some])) if some.any() else 0.0
        return Cut(_root_mean(squares, some), math.sqrt(np.max(squares, initial=0.0)), _root_mean(along**2, some), bias)

    rows, columns = x.max(axis=1, keepdims=True, initial=0.0), y.max(axis=0, keepdims=True, initial=0.0)
    left, right = x.sum(axis=1, keepdims=True), y.sum(axis=0, keepdims=True)
    leads = np.concatenate([S.max(axis=axis, initial=0.0) for axis in (0, 1)])
    leads = np.log2(leads[leads > 0])
    top_a, top_b = np.ldexp(p.max(initial=0.0), -er), np.ldexp(q.max(initial=0.0), -ec)

    def largest(values: Any) -> float:
        ratio = np.divide(values, S, out=np.ones_like(S), where=some)
        return math.inf if vanished else float(np.max(ratio, initial=1.0))

    return {
        "flat_A": largest(top_a * right),
        "flat_B": largest(left * top_b),
        "flat_AB": largest(K * (top_a * top_b)),
        "row_A": largest(rows * right),
        "row_B": largest(left * columns),
        "row_AB": largest(K * rows * columns),
        "peak": math.sqrt(float(np.max(squares, initial=0.0))),
        "spread": _root_mean(squares, some),
        "part": _root_mean(parts**2, some),
        "cut_A": cut(u @ y**2, xs @ (ys * y)),
        "cut_B": cut(x**2 @ v, (xs * x) @ ys),
        "cut_AB": cut(u @ v, xs @ ys),
        "lead": 2.0 ** float(np.mean(leads)) if leads.size else 0.0,
        "lead_spread": float(np.std(leads)) if leads.size else 0.0,
        **_products(x, y, S, some),
    }


def _products(x: Floats, y: Floats, S: Floats, some: NDArray[np.bool_]) -> dict[str, tuple[float, ...]]:
    """`along` and `terms` of two matrices of magnitudes; entries outside `some` do not count."""
    K = x.shape[1]
    if not K or not some.any():
        return {"along": (1 / STRETCHES,) * STRETCHES, "terms": (1.0,) * len(SHARES)}
    edges = np.linspace(0, K, STRETCHES + 1)
    first = np.unique(edges[:-1].astype(int))
    shares = [np.mean((x[:, k:n] @ y[k:n])[some] / S[some]) for k, n in zip(first, [*first[1:], K], strict=True)]
    # fewer terms than stretches: a term is spread evenly over its stretches
    along = np.diff(np.interp(edges, [*first, K], np.concatenate([[0.0], np.cumsum(shares)])))
    along = np.where(along < _LEAST, 0.0, along)
    local = np.interp(np.arange(K) + 0.5, (edges[:-1] + edges[1:]) / 2, along) * STRETCHES
    i, j = (np.unique(np.linspace(0, n - 1, 4).astype(int)) for n in S.shape)
    i, j = (index.ravel() for index in np.meshgrid(i, j, indexing="ij"))
    i, j = i[some[i, j]], j[some[i, j]]
    means = np.ones(len(SHARES))
    if i.size:
        # drawn, since a fixed distance might select the large entries of every block only
        k = np.arange(K) if K <= _DRAWN else np.random.default_rng(0).choice(K, _DRAWN, replace=False)
        p = x[np.ix_(i, k)] * y[np.ix_(k, j)].T / S[i, j][:, None] * K / np.maximum(local[k], _LEAST)
        sums = np.concatenate([[0.0], np.cumsum(np.sort(p, axis=None))])
        ends = np.concatenate([[0.0], np.cumsum(SHARES)]) * p.size
        means = np.diff(np.interp(ends, np.arange(p.size + 1), sums)) / np.diff(ends)
        whole = float(means @ SHARES)
        means = np.where(means < _LEAST * whole, 0.0, means / whole) if 0 < whole < np.inf else np.ones(len(SHARES))
    return {"along": tuple(along.tolist()), "terms": tuple(means.tolist())}


def _unit_of(x: Floats) -> float:
    """The largest power of two of which all elements are multiples."""
    fraction, exponent = np.frexp(x[x != 0])
    digits = np.ldexp(fraction, 53).astype(np.int64)
    return float(np.ldexp((digits & -digits).astype(np.float64), exponent - 53).min(initial=np.inf))


def _unit(x: Floats, top: float) -> Floats:
    return np.ldexp(x, -math.frexp(top)[1])


def _root_mean(squares: Floats, some: NDArray[np.bool_]) -> float:
    return math.sqrt(float(np.mean(squares[some]))) if some.any() else 0.0


def _mean(p: Floats) -> float:
    top = float(p.max(initial=0.0))
    return max(float(np.mean(p / top)) * top, TINY) if top else 0.0


def _rms(x: Floats, top: float) -> float:
    return _times_power(math.sqrt(float(np.mean(x**2))), math.frexp(top)[1]) if top else 0.0


def _times_power(x: float, exponent: int) -> float:
    """x 2^exponent for x >= 0, which becomes 0 only if x is."""
    try:
        return max(math.ldexp(x, exponent), TINY) if x else 0.0
    except OverflowError:
        return math.inf
