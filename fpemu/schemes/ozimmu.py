"""Ootomo, Ozaki, Yokota (2024): DGEMM by the Ozaki scheme on integer matrix units, with its accelerated forms.

H. Ootomo, K. Ozaki, R. Yokota, "DGEMM on integer matrix multiplication unit", International Journal of High Performance
Computing Applications 38(4), 2024, DOI 10.1177/10943420241239588. Nearest splits and group-wise sums: Y. Uchino, K.
Ozaki, T. Imamura, "Performance enhancement of the Ozaki scheme on integer matrix multiplication unit", same journal,
2025, DOI 10.1177/10943420241313064.

    b = min(7, floor((31 - ceil(log2 k)) / 2)) bits a slice, on one grid for every row of A and column of B
    A = sum of 2^(eA - p b) A_p      B likewise   p, q = 1 ... s      products with p + q <= s + 1
    C <- C + 2^(eA + eB - (p + q) b) (A_p B_q)        in fp64, p + q ascending, p ascending within

sums="group" adds products of equal p + q in int32 before, up to 2^r of them, r = 31 - 2 b - ceil(log2 k).

The grid begins `headroom` bits above a row's largest element: the published code doubles the largest power of two, so
that the first slice holds b - 1 bits; 0 uses them all, and is four times as accurate for the same s.

The number of slices: given, or the smallest for which the elements of A and B lose at most `loss` bits of their 53-bit
(24-bit) significands below the last slice on average: the published automatic mode, whose threshold is also 0. The
published mode has at most 18 slices and falls back to DGEMM without a warning; here more slices are used. Trailing
zeros of a significand count as bits, because the products that fewer slices omit are required as well.

Range: all of fp64 (fp32). NaN and Inf propagate as in DGEMM (SGEMM).
Error: elements below 2^-(s b) of their row's largest are lost, products beyond p + q = s + 1 left out; `error_bound`
evaluates both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FP64
from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes import options as choose
from fpemu.schemes.base import Call, register
from fpemu.schemes.errorfree.base import SliceScheme
from fpemu.schemes.errorfree.plan import INT32, Counts, Report, SlicePlan
from fpemu.schemes.errorfree.split import FIXED, left_out
from fpemu.schemes.errorfree.sums import multiply
from fpemu.schemes.options import SchemeInfo

Array = NDArray[Any]


@register
@dataclass(frozen=True, kw_only=True)
class Ozimmu(SliceScheme):
    """int8 slices on one grid, int32 sums."""

    info = SchemeInfo(
        name="ozimmu",
        title="Ozaki scheme on integer matrix units (ozIMMU)",
        paper="Ootomo, Ozaki, Yokota, Int. J. High Perform. Comput. Appl. 38(4), 2024",
        year=2024,
        doi="10.1177/10943420241239588",
        parts=("A_p = the next b bits below 2^eA, int8",),
        products=("A_p B_q with p + q <= s + 1",),
        range="all of fp64 (fp32)",
        bound="elements below 2^-(s b) max|a| of their row, the products p + q > s + 1, and sums in fp64",
    )

    slices: int | None = choose.integer(None, 1, 512, "number of slices s (None: automatic)", none=True)
    headroom: int = choose.integer(1, 0, 1, "unused bits above the largest element of a row")
    loss: float = choose.number(0.0, 0, 53, "mean bits of a significand that the automatic number may lose")
    split: str = choose.choice("truncate", FIXED, "digits toward zero, or to nearest")
    sums: Literal["each", "group"] = choose.choice(
        "each", ("each", "group"), "each product is added in fp64, or products of equal p + q first in int32"
    )
    bits: int | None = choose.integer(None, 1, 7, "bits per slice (None: by the formula)", none=True)
    group: int | None = choose.integer(None, 1, 1 << 20, "products per int32 sum (None: 2^r)", none=True)

    def check(self) -> None:
        if self.group is not None and self.sums == "each":
            self.refuse("group= goes with sums='group'")

    def slice_bits(self, K: int) -> int:
        """b: the option, or the formula."""
        bits = min(7, (31 - (K - 1).bit_length()) // 2) if self.bits is None else self.bits
        if bits < 1:
            self.refuse(f"K = {K} leaves no bit a slice in int32 sums")
        return bits

    def sharing(self, K: int) -> int:
        """How many products share an int32 sum."""
        if self.sums == "each":
            return 1
        return self.group or 1 << max(0, 31 - 2 * self.slice_bits(K) - (K - 1).bit_length())

    @lru_cache(maxsize=256)  # noqa: B019 (a scheme is a small constant, equal to others with its options)
    def plan_for(self, spec: MmaSpec | None, K: int, order: KOrder | None = None) -> SlicePlan:
        split = self.slice_bits(K), self.split, True, FP64, self.headroom
        return SlicePlan(self.name, spec, order, K, *split, shared=self.sharing(K))

    def numbers(self, needed: Callable[[int], Any], cut: Callable[[int, Any], Any]) -> tuple[Any, Any, Any, Any]:
        s = self.slices or needed(0)
        return cut(0, s), cut(1, s), s, True

    def counts(self, A: Array, B: Array, plan: SlicePlan) -> Counts:
        s = int(self._requested(A[None], B[None], plan)[0])
        return Counts((plan.cut(A, 1, s).slices, plan.cut(B, 0, s).slices), s, True, plan.bits)

    def multiply(self, call: Call) -> tuple[Array, list[Report]]:
        (M, K), N = call.A.shape[1:], call.B.shape[-1]
        plan = self.plan_for(call.spec, K, call.order)
        every = [Counts((s, s), s, True, plan.bits) for s in self._requested(call.A, call.B, plan).tolist()]
        return multiply(plan, call, self.carrier, every, (M, N))

    def _requested(self, A: Array, B: Array, plan: SlicePlan) -> Array:
        """The number of slices of every product (n,), of which the last ones of A or B may be zero."""
        n = len(A)
        if self.slices:
            return np.full(n, self.slices)
        sides = []  # bits that the elements need below the top of their row (column)
        for X, axis in ((A, -1), (B, -2)):
            top = plan.cut(X, axis, 1).top
            sides.append(np.where(X == 0, 0, top - np.frexp(X)[1] + self.operand.precision).reshape(n, -1))
        bits = np.concatenate(sides, axis=1)
        width = int(bits.max()) + 1
        elements = np.bincount((bits + width * np.arange(n)[:, None]).ravel(), minlength=n * width)
        return self.automatic(elements.reshape(n, width), plan.bits)

    def automatic(self, elements: Array, bits: int) -> Array:
        """The smallest number of slices that loses at most `loss` bits per element on average.

        `elements` (..., bits) has the number of elements that need 0, 1, 2 ... bits.
        """
        sizes, allowed = np.arange(elements.shape[-1]), self.loss * elements.sum(axis=-1)
        s = np.ones(elements.shape[:-1], np.int64)
        for least in range(bits, len(sizes), bits):
            more = (np.maximum(sizes - least, 0) * elements).sum(axis=-1) > allowed
            if not more.any():
                break
            s += more
        return s

    def _bound(self, call: Call) -> Array:
        A, B = call.A, call.B
        plan = self.plan_for(call.spec, A.shape[1], call.order)
        s = int(self._requested(A[None], B[None], plan)[0])
        a, b = plan.cut(A, 1, s), plan.cut(B, 0, s)
        if plan.int32_bound(a.slices, b.slices, s, int(a.largest * b.largest)) > INT32:
            return np.full((len(A), B.shape[1]), np.inf)
        units, tiny = self.rounding_errors(plan, a.slices, b.slices, s, True)
        return np.asarray((left_out(A, B, a, b, s, True) + units * (abs(A) @ abs(B))) * (1 + 2.0**-20) + tiny)

    def rounding_errors(self, plan: SlicePlan, a: int, b: int, d: int, fast: bool) -> tuple[float, float]:
        roundings = plan.sums(a, b, d, fast) + 1
        units = roundings * 2.0**-53 + self.operand.unit_roundoff
        return units, roundings * self.operand.min_subnormal + (a * b + roundings + 4) * plan.K * 2.0**-1074
