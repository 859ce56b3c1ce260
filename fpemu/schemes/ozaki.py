"""Mukunoki, Ozaki, Ogita, Imamura (2020): DGEMM and SGEMM by the Ozaki scheme on FP16 tensor cores.

D. Mukunoki, K. Ozaki, T. Ogita, T. Imamura, "DGEMM using Tensor Cores, and its accurate and reproducible versions", ISC
High Performance 2020, DOI 10.1007/978-3-030-50743-5_12.

    A = sum of 2^cA[p] A_p      B = sum of 2^cB[q] B_q      slices of b bits, an exponent for every row (Algorithm 1)
    C <- C + 2^(cA[p] + cB[q]) (A_p B_q)                    for q, for p: every A_p B_q is exact (Algorithm 2)

==  ====================================================================================================================
DP  d slices of each matrix by Algorithm 3: the smallest d >= 2 with 2 sqrt(k) u (|A|(|B|e)) > (d + 1) |A_d|(|B|e) in
    every row; only the products with p + q <= d + 1 (fast mode); sums in fp64, u = 2^-53
SP  the same for fp32, u = 2^-24, sums in fp32
CR  slices until the residual is zero, all products, one rounding of the exact alpha A B + beta C (in the paper
    alpha = 1 and beta = 0, by NearSum)
==  ====================================================================================================================

b follows from the instruction (`fpemu.mma.exactness`), not from 24 bits as in the paper, where b = floor((24 - log2
k)/2). The two agree for fp16 with fp32 accumulation on every architecture, truncating or not, and k >= 2.

Where the paper states nothing or its Algorithm 3 fails, this module does the following; slices="printed" follows the
paper literally:

* The criterion is applied to B too, (e^T|A|)|B_q|, and the d of B is used if it is larger by two or more. The paper
  applies it to A alone and gives B as many slices, far too few where the entries of B have a wider range. On operands
  of the same distribution the two values differ by at most one.
* |A_d| includes the residual after slice d. Slice d alone is zero where an entry is so far below the largest entry of
  its row that no slice has reached it, and the criterion would count the entry as represented.
* Zero rows meet the criterion. Where d slices represent A exactly, fast mode is off, as in the paper, which does not
  state the slices of B in this case: they follow from the criterion of B, at least d (printed: without this minimum).
* d is determined for all of A and B before the outer blocks are formed, so that the blocks do not change the result (in
  the paper every block has its own d).

Range: all of fp64 (fp32). NaN and Inf propagate as in DGEMM (SGEMM).

Error: CR 2^-53 |AB|. DP: about the error of DGEMM where the estimate of Algorithm 3 holds. The estimate bounds sums
over rows, not entries: entries of |A||B| that are small beside others of their row may lose all of their bits.
`error_bound` evaluates the omitted products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.errors import InputError, unknown_name
from fpemu.mma import KOrder, MmaSpec, exactness
from fpemu.schemes import options as choose
from fpemu.schemes.base import Call, build, register
from fpemu.schemes.errorfree import merging
from fpemu.schemes.errorfree.base import ErrorFree, finite
from fpemu.schemes.errorfree.blocks import Cost, block, pieces
from fpemu.schemes.errorfree.counting import length, needed_for, row_sums
from fpemu.schemes.errorfree.products import SliceProducts, Tally, lengths
from fpemu.schemes.errorfree.report import Report
from fpemu.schemes.errorfree.split import ADAPTIVE, Slices, left_out, split, within_range
from fpemu.schemes.options import SchemeInfo

Array = NDArray[Any]
WORDS = ("fp16", "bf16", "tf32", "e4m3", "e5m2", "int8", "fp64")
BLOCK = 3584
"""The paper's largest block of rows and columns."""
_UNIT = {"fp64": 2.0**-53, "fp32": 2.0**-24}


class Counts(NamedTuple):
    """How much work a product is, known from splitting alone.

    Parameters
    ----------
    slices : (int, int)
        Slices of A and of B.
    products : int
        Matrix products on the instruction.
    fast : bool
        Whether the products p + q > d + 1 are left out.
    bits : int
        Bits a slice.
    d : int
        The larger requested number of slices.
    spread : int
        Bits from the first to the last of a row's slices, of A and of B together, at most.
    """

    slices: tuple[int, int]
    products: int
    fast: bool
    bits: int
    d: int
    spread: int


@np.errstate(all="ignore")
def algorithm3(
    A: Any, B: Any, *, bits: int | None = None, precision: str = "fp64", split: str = "published", printed: bool = False
) -> int:
    """Return the number d of slices of Algorithm 3.

    With d slices the fast mode is as accurate as DGEMM (SGEMM).

    Parameters
    ----------
    A, B : array_like (M, K), (K, N)
        Finite, not empty.
    bits : int, optional
        Bits a slice; default the paper's, floor((24 - log2 K) / 2).
    precision : {"fp64", "fp32"}
        Format of the operands.
    split : {"published", "balanced"}
        Rounding of the slices: as published, or to nearest.
    printed : bool
        As printed, with the digits of slice d alone: see the module's text.

    Returns
    -------
    int
        Number of slices.

    Raises
    ------
    InputError
        Operands that are empty, not finite or no matrices; options that do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> algorithm3(rng.random((64, 256)) - 0.5, rng.random((256, 64)) - 0.5)
    8
    """
    if precision not in list(_UNIT):
        raise unknown_name("precision", precision, _UNIT)
    scheme = build("ozaki", {"bits": bits, "split": split, "mode": {"fp64": "DP", "fp32": "SP"}[precision]})
    assert isinstance(scheme, Ozaki)
    a, b = _one_product(A, B, scheme.operand)
    chosen = scheme.bits or exactness.published_bits(a.shape[1])
    if chosen < 1:
        raise InputError(f"algorithm3: the published formula leaves no bit a slice for K = {a.shape[1]}: give bits=")
    return needed_for(a, row_sums(b), chosen, scheme.split, _UNIT[precision], printed=printed)


def counts(A: Any, B: Any, *, hardware: str | MmaSpec, order: Any = None, **options: Any) -> Counts:
    """Return the numbers of slices and products of A·B by `ozaki`, without multiplying.

    Parameters
    ----------
    A, B : array_like (M, K) and (K, N)
        Operands.
    hardware : str or MmaSpec
        An architecture, a GPU or an instruction.
    order : KOrder, optional
        Summation order over K within the products of slices.
    **options
        Options of the scheme.

    Returns
    -------
    Counts
        Numbers of slices of A and B, and of products.

    Raises
    ------
    InputError
        Unknown names and options, or operands that do not fit one another.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> counts(rng.random((64, 256)) - 0.5, rng.random((256, 64)) - 0.5, hardware="T4").products
    49
    """
    scheme = build("ozaki", options)
    assert isinstance(scheme, Ozaki)
    if order is not None and not isinstance(order, KOrder):
        raise InputError(f"order must be a fpemu.mma.KOrder, not {order!r}")
    return scheme.counts(*_one_product(A, B, scheme.operand), scheme.spec(hardware), order)


def _one_product(A: Any, B: Any, fmt: formats.FloatFormat) -> tuple[Array, Array]:
    """Two matrices that fit, neither empty, all entries finite: float64, C-contiguous."""
    a, b = finite(A, B, fmt)
    for X, name in ((a, "A"), (b, "B")):
        if X.ndim != 2 or not X.size:
            raise InputError(
                f"{name} of shape {X.shape}: slices are counted for one product of matrices that are not empty"
            )
    return np.ascontiguousarray(a, np.float64), np.ascontiguousarray(b, np.float64)


@register
@dataclass(frozen=True, kw_only=True)
class Ozaki(ErrorFree):
    """Slices of few bits, every product of slices exact."""

    info = SchemeInfo(
        name="ozaki",
        title="Ozaki scheme on tensor cores (DGEMM-TC, SGEMM-TC)",
        paper="Mukunoki, Ozaki, Ogita, Imamura, ISC 2020",
        year=2020,
        doi="10.1007/978-3-030-50743-5_12",
        parts=("A_p = fl((x + sigma) - sigma) 2^-tau",),
        products=("A_p B_q with p + q <= d + 1, or all",),
        range="all of fp64 (fp32)",
        bound="CR: 2^-53 |AB|; DP, SP: of the order of DGEMM's, SGEMM's",
    )

    mode: Literal["DP", "SP", "CR"] = choose.choice(
        "DP", ("DP", "SP", "CR"), "sums in fp64; in fp32; exact, rounded once"
    )
    precision: Literal["fp64", "fp32"] | None = choose.choice(
        None, ("fp64", "fp32"), "format of the operands and of the result; None: fp32 in mode SP, else fp64"
    )
    slices: int | str | None = choose.integer(
        None,
        1,
        4096,
        "largest number of slices of A and of B (None: Algorithm 3 for both; printed: Algorithm 3 as printed, for A)",
        none=True,
        words=("printed",),
    )
    fast: bool | None = choose.flag("omit the products p + q > d + 1 (None: unless d slices are all of A)")
    split: str = choose.choice("published", ADAPTIVE, "Algorithm 1, or rounding to nearest on one grid")
    words: str = choose.choice("fp16", WORDS, "format of the slices, which selects the instruction")
    bits: int | None = choose.integer(
        None, 1, 26, "bits per slice (None: the most that the instruction allows)", none=True
    )
    k_block: int | None = choose.integer(
        None, 1, 1 << 30, "length in k of a chain of instructions; the chains are added in fp64", none=True
    )
    exponents: Literal["slice", "row"] = choose.choice(
        "slice", ("slice", "row"), "a power of two for every slice of a row, or one for all slices of a row"
    )
    memory: int | None = choose.integer(
        None, 1, 1 << 62, "workspace in bytes, without operands and result (None: blocks of 3584)", none=True
    )

    def check(self) -> None:
        if self.precision not in (None, {"DP": "fp64", "SP": "fp32"}.get(self.mode, self.precision)):
            self.refuse(f"mode={self.mode!r} sums in {self.operand}: leave precision out, or take mode='CR'")
        if self.mode == "CR" and (self.slices is not None or self.fast):
            self.refuse("mode='CR' takes all slices and all products: leave slices and fast out")
        if self.exponents == "row" and self.words == "int8":
            self.refuse("int8 has no exponents: exponents='row' needs floating-point words")

    @property
    def operand(self) -> formats.FloatFormat:
        default = "fp32" if self.mode == "SP" else "fp64"
        return formats.get(default if self.mode != "CR" else self.precision or default)

    @property
    def word_format(self) -> str:
        return self.words

    @property
    def rounds_once(self) -> bool:
        return self.mode == "CR"

    # --- how many slices

    def slice_bits(self, spec: MmaSpec, K: int, order: Any = None) -> int:
        """Bits a slice: the option, or as many as keep every chain exact."""
        joined = (53 - (K - 1).bit_length()) // 2  # what k-blocks add up to is exact in fp64
        fits = (exactness.slice_bits(spec, n, order) for n in lengths(K, self.k_block))
        bits = self.bits or min(joined, *fits)
        least = 1 + (spec.is_integer and self.split == "published")  # no 2^b there, and positive digits are even
        if bits < least:
            cure = "give bits=2 or more, or split='balanced'" if self.bits else "give a smaller k_block"
            self.refuse(f"{bits} bits a slice make no progress on {spec.name} for K = {K}: {cure}")
        return bits

    @np.errstate(all="ignore")
    def counts(self, A: Array, B: Array, spec: MmaSpec, order: Any = None) -> Counts:
        """Slices and products of A·B: C-contiguous float64, finite, not empty."""
        bits = self.slice_bits(spec, A.shape[1], order)
        limit = (1 << bits) - spec.is_integer
        step = max(1, (self.memory or 1 << 62) // (128 * A.shape[1]))
        if self.mode == "CR":
            (a, _, wide), (b, _, high) = (length(X, bits, self.split, None, limit, step) for X in (A, B.T))
            return Counts((a, b), a * b, False, bits, max(a, b), wide + high)

        def needed(X: Array, Y: Array) -> int:
            weight = row_sums(Y, step)
            rows = (np.ascontiguousarray(X[i]) for i in pieces(len(X), step))
            options = (bits, self.split, _UNIT[self.operand.name], limit, self.slices == "printed")
            return max(needed_for(x, weight, *options) for x in rows)

        d = self.slices if isinstance(self.slices, int) else needed(A, B)
        other = d
        if self.slices is None:
            for_B = needed(B.T, A.T)
            d, other = (for_B, for_B) if for_B > d + 1 else (d, max(d, for_B))
        a, ended, wide = length(A, bits, self.split, d, limit, step)
        if not ended:
            other = d
        elif self.slices == "printed":
            other = needed(B.T, A.T)
        b, _, high = length(B.T, bits, self.split, other, limit, step)
        fast, d = not ended if self.fast is None else self.fast, max(d, other)
        return Counts((a, b), sum(1 for _ in _pairs(a, b, d, fast)), fast, bits, d, wide + high)

    # --- the product

    def multiply(self, call: Call) -> tuple[Array, Report]:
        A, B, spec, order = call.A, call.B, call.spec, call.order
        (M, K), N = A.shape, B.shape[1]
        bits = self.slice_bits(spec, K, order)
        if self.mode == "CR" and self.memory is None:  # nothing has to be known before splitting
            sA, sB, d, fast, cost = None, None, 0, False, Cost(0, 0, 0)
        else:
            (sA, sB), _, fast, _, d, _ = counted = self.counts(A, B, spec, order)
            cost = self._cost(K, counted)
        rows, columns = block(M, N, cost, self.memory, BLOCK, self.name)
        D, tally = np.empty((M, N), self.operand.dtype), Tally(self.name, spec, bits)
        for i in pieces(M, rows):
            a = self._cut(A[i], 1, bits, spec, sA)
            for j in pieces(N, columns):
                b = self._cut(B[:, j], 0, bits, spec, sB)
                multiply = SliceProducts(
                    a, b, spec, order, self.carrier, self.k_block, self.exponents == "row", call.device
                )
                if self.mode == "CR":
                    total, broken = merging.exact_sum(multiply)
                    rounded = total.round_to(
                        self.operand, call.alpha, call.beta, None if call.C is None else call.C[i, j]
                    )
                    D[i, j] = np.where(broken, np.nan, rounded) if broken.any() else rounded
                else:
                    D[i, j] = self._sum(multiply, d, fast)
                tally.add(multiply)
        products = sum(1 for _ in _pairs(*tally.slices, d, fast))
        return D, tally.report(products=products, fast=fast, block=(rows, columns))

    def _cut(self, X: Array, axis: int, bits: int, spec: MmaSpec, count: int | None) -> Slices:
        return split(X, axis, bits, self.split, count, (1 << bits) - spec.is_integer)

    def _sum(self, multiply: SliceProducts, d: int, fast: bool) -> Array:
        """The products of Algorithm 2 in its order, added in the operands' format."""
        a, b, fmt = multiply.a, multiply.b, self.operand

        def add(back: Array) -> Array:
            total = np.zeros((a.top.shape[0], b.top.shape[1]), fmt.dtype)
            for p, q in _pairs(len(a), len(b), d, fast):
                T = multiply(p, q).astype(np.float64, copy=False)
                total += _weighted(T, a.items[p].exponents, b.items[q].exponents, back).astype(fmt.dtype, copy=False)
            return total

        return within_range(add, a, b, fmt)

    def _cost(self, K: int, counted: Counts) -> Cost:
        """What a block takes: the digits, a split's temporaries, and per entry of D some float64 or the limbs."""
        row, column = (K * (4 * s + 64) for s in counted.slices)
        if self.mode != "CR":
            return Cost(row, column, 64)
        limbs = (counted.spread + K.bit_length() + 2) // 52 + 2
        return Cost(row + 16 * K * counted.slices[0], column + 16 * K * counted.slices[1], 96 + 16 * limbs)

    def error_bound(self, A: Any, B: Any, hardware: str | MmaSpec | None = None, on_range: str = "raise") -> Array:
        """Bound on abs(D - AB), AB exact, entry by entry (float64, (..., M, N)): omitted products and roundings.

        A, B : array_like (..., M, K), (..., K, N), finite.
        """
        spec = self.spec(hardware)
        return self.bounded(A, B, lambda a, b: self._bound(a, b, spec))

    def _bound(self, A: Array, B: Array, spec: MmaSpec) -> Array:
        counted = self.counts(A, B, spec)
        a, b = (
            self._cut(X, axis, counted.bits, spec, count)
            for X, axis, count in zip((A, B), (1, 0), counted.slices, strict=True)
        )
        products = SliceProducts(a, b, spec, None, self.carrier, self.k_block, self.exponents == "row")
        if products.inexact or products.lost:
            return np.full((len(A), B.shape[1]), np.inf)
        lost, roundings = np.zeros((len(A), B.shape[1])), 1
        if self.mode != "CR":
            lost = left_out(A, B, a, b, lambda p, q: not counted.fast or p + q + 1 <= counted.d)
            roundings += counted.products
        lost = lost + roundings * self.operand.unit_roundoff * (abs(A) @ abs(B))
        underflow = (len(a) * len(b) + roundings + 4) * A.shape[1] * 2.0**-1074
        return np.asarray(lost * (1 + 2.0**-20) + roundings * self.operand.min_subnormal + underflow)


def _pairs(sA: int, sB: int, d: int, fast: bool) -> Iterator[tuple[int, int]]:
    """The products in Algorithm 2's order, indices from 0; in fast mode p + q <= d + 1, counted from 1."""
    return ((p, q) for q in range(sB) for p in range(sA) if not fast or p + q + 1 <= d)


def _weighted(T: Array, rows: Array, columns: Array, back: Array) -> Array:
    """T · 2^(rows + columns - back): exact unless the result leaves the normal range."""
    if not back.any() and max(np.max(np.abs(rows)), np.max(np.abs(columns))) <= 500:
        return T * np.ldexp(1.0, rows) * np.ldexp(1.0, columns)
    return np.asarray(np.ldexp(T, rows + columns - back))
