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

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.errors import InputError, unknown_name
from fpemu.mma import KOrder, MmaSpec, exactness
from fpemu.schemes import options as choose
from fpemu.schemes.base import Call, build, register
from fpemu.schemes.errorfree.base import SliceScheme, finite
from fpemu.schemes.errorfree.plan import Counts, Report, SlicePlan, lengths, levels
from fpemu.schemes.errorfree.products import SliceProducts
from fpemu.schemes.errorfree.split import (
    ADAPTIVE,
    BlockCost,
    block,
    even,
    left_out,
    length,
    needed_for,
    pieces,
    row_sums,
)
from fpemu.schemes.errorfree.sums import multiply
from fpemu.schemes.options import SchemeInfo

Array = NDArray[Any]
WORDS = ("fp16", "bf16", "tf32", "e4m3", "e5m2", "int8", "fp64")
BLOCK = 3584
"""The paper's largest block of rows and columns."""
_UNIT = {"fp64": 2.0**-53, "fp32": 2.0**-24}


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
    return int(needed_for(a, row_sums(b), chosen, scheme.split, _UNIT[precision], printed=printed))


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
    a, b = _one_product(A, B, scheme.operand)
    return scheme.counts(a, b, scheme.plan_for(scheme.spec(hardware), a.shape[1], order))


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
class Ozaki(SliceScheme):
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
        if self.target is not None and (self.mode == "CR" or self.slices == "printed"):
            self.refuse("target= determines the slices of mode 'DP' or 'SP': leave mode='CR' and slices='printed' out")
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

    def instruction_of(self, hardware: str | MmaSpec | None) -> MmaSpec:
        return self.spec(hardware)

    @lru_cache(maxsize=256)  # noqa: B019 (a scheme is a small constant, equal to others with its options)
    def plan_for(self, spec: Any, K: int, order: KOrder | None = None) -> SlicePlan:
        return SlicePlan(
            self.name,
            spec,
            order,
            K,
            self.slice_bits(spec, K, order),
            self.split,
            limited=spec.is_integer,
            adds_in=None if self.mode == "CR" else self.operand,
            k_block=self.k_block,
            one_exponent=self.exponents == "row",
        )

    def numbers(self, needed: Callable[[int], Any], cut: Callable[[int, Any], Any]) -> tuple[Any, Any, Any, Any]:
        d = self.slices if isinstance(self.slices, int) else needed(0)
        other = d
        if self.slices is None:
            d, other = for_both(d, needed(1))
        a = cut(0, d)
        if self.slices == "printed" and np.any(a.complete):
            other = needed(1)
        other = np.where(a.complete, other, d)
        return a, cut(1, other), np.maximum(d, other), ~np.asarray(a.complete) if self.fast is None else self.fast

    def counts(self, A: Array, B: Array, plan: SlicePlan) -> Counts:
        return self._counts(A[None], B[None], plan)[0]

    @np.errstate(all="ignore")
    def _counts(self, A: Array, B: Array, plan: SlicePlan) -> list[Counts]:
        """`counts` of every matrix of a stack."""
        bits, rule, limit = plan.bits, plan.rule, plan.limit
        sides = A, B.swapaxes(1, 2)
        unit = _UNIT[self.operand.name]
        step = max(1, (self.memory or 1 << 62) // (128 * plan.K))

        def needed(side: int) -> Any:
            X, weight = sides[side], row_sums(sides[1 - side].swapaxes(1, 2), step)
            options = (bits, rule, unit, limit, self.slices == "printed")
            rows = (np.ascontiguousarray(X[:, i]) for i in pieces(X.shape[1], step))
            return np.max([needed_for(x, weight, *options) for x in rows], axis=0)

        def cut(side: int, count: Any) -> Any:
            return length(sides[side], bits, rule, count, limit, step)

        if self.mode == "CR":
            a, b = cut(0, None), cut(1, None)
            d, fast = np.maximum(a.slices, b.slices), False
        else:
            a, b, d, fast = self.numbers(needed, cut)
        columns = np.broadcast_arrays(a.slices, b.slices, d, fast, a.spread + b.spread)
        every = zip(*(column.tolist() for column in columns), strict=True)
        return [Counts((x, y), most, left, bits, spread) for x, y, most, left, spread in every]

    # --- the product

    def multiply(self, call: Call) -> tuple[Array, list[Report]]:
        (n, M, K), N = call.A.shape, call.B.shape[-1]
        plan = self.plan_for(call.spec, K, call.order)
        if self.mode == "CR" and self.memory is None:  # nothing has to be known before splitting
            return multiply(plan, call, self.carrier, [None] * n, (even(M, BLOCK), even(N, BLOCK)))
        every = self._counts(call.A, call.B, plan)
        cost = self._cost(K, every[0])  # of the only product, where memory is given
        return multiply(plan, call, self.carrier, every, block(M, N, cost, self.memory, BLOCK, self.name))

    def _cost(self, K: int, counted: Counts) -> BlockCost:
        """What a block takes: the digits, a split's temporaries, and per entry of D some float64 or the limbs."""
        row, column = (K * (4 * s + 64) for s in counted.slices)
        if self.mode != "CR":
            return BlockCost(row, column, 64)
        limbs = (counted.spread + K.bit_length() + 2) // 52 + 2
        return BlockCost(row + 16 * K * counted.slices[0], column + 16 * K * counted.slices[1], 96 + 16 * limbs)

    def _bound(self, call: Call) -> Array:
        A, B = call.A, call.B
        plan = self.plan_for(call.spec, A.shape[1], call.order)
        counts = self.counts(A, B, plan)
        a, b = plan.cut(A, 1, counts.slices[0]), plan.cut(B, 0, counts.slices[1])
        products = SliceProducts(plan, a, b, self.carrier)
        if products.inexact or products.lost:
            return np.full((len(A), B.shape[1]), np.inf)
        units, tiny = self.rounding_errors(plan, a.slices, b.slices, counts.d, counts.fast)
        lost = left_out(A, B, a, b, counts.d, counts.fast) + units * (abs(A) @ abs(B))
        return np.asarray(lost * (1 + 2.0**-20) + tiny)

    def rounding_errors(self, plan: SlicePlan, a: int, b: int, d: int, fast: bool) -> tuple[float, float]:
        roundings = 1 if self.mode == "CR" else 1 + sum(levels(a, b, d, fast))
        tiny = roundings * self.operand.min_subnormal + (a * b + roundings + 4) * plan.K * 2.0**-1074
        return roundings * self.operand.unit_roundoff, tiny


def for_both(d: Any, for_B: Any) -> tuple[Any, Any]:
    """The numbers of slices of A and B from what Algorithm 3 requires of each: see the module's text."""
    return np.where(for_B > d + 1, for_B, d), np.maximum(d, for_B)
