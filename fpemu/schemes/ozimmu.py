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

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.formats import FP64
from fpemu.mma import MmaSpec
from fpemu.schemes import options as choose
from fpemu.schemes.base import Call, register
from fpemu.schemes.errorfree.base import ErrorFree
from fpemu.schemes.errorfree.products import SliceProducts, Tally, device_of, integer_product
from fpemu.schemes.errorfree.report import Fault, Report
from fpemu.schemes.errorfree.split import FIXED, Slices, left_out, split, within_range
from fpemu.schemes.options import SchemeInfo

Array = NDArray[Any]
INT32 = 2**31 - 1


@register
@dataclass(frozen=True, kw_only=True)
class Ozimmu(ErrorFree):
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

    def multiply(self, call: Call) -> tuple[Array, Report]:
        A, B, spec, order = call.A, call.B, call.spec, call.order
        K = A.shape[1]
        bits = self.slice_bits(K)
        s = self.slices or self._automatic(A, B, bits)
        a, b = self._cut(A, 1, bits, s), self._cut(B, 0, bits, s)
        multiply = SliceProducts(a, b, spec, order, self.carrier, device=call.device)
        sums = list(_sums(len(a), len(b), s, self.sharing(K)))
        bound = max((len(pairs) for pairs in sums), default=0) * multiply.bound

        def add(back: Array) -> Array:
            D = np.zeros((A.shape[0], B.shape[1]))
            for pairs in sums:
                T = self._sum(multiply, pairs, bound)
                weight = a.top + b.top - (sum(pairs[0]) + 2) * bits
                D += np.ldexp(T.astype(np.float64, copy=False), weight - back)
            return D

        with np.errstate(over="ignore", under="ignore"):
            D = within_range(add, a, b, FP64).astype(self.operand.dtype)
        faults = []
        if bound > INT32:
            most = max(len(pairs) for pairs in sums)
            faults.append(
                Fault(
                    "int32-overflow",
                    f"{self.name}: int32 sums of {most} products over K = {K} may reach "
                    f"{bound}, beyond 2^31 - 1: take fewer bits a slice or a smaller group",
                )
            )
        tally = Tally(self.name, spec, bits)
        tally.add(multiply)
        work = {"products": sum(map(len, sums)), "fast": True, "block": D.shape}
        return D, tally.report(*faults, int32=bound <= INT32, int32_bound=bound, **work)

    def _cut(self, X: Array, axis: int, bits: int, s: int) -> Slices:
        return split(X, axis, bits, self.split, s, (1 << bits) - 1, self.headroom)

    def _sum(self, multiply: SliceProducts, pairs: list[tuple[int, int]], bound: int) -> Array:
        """The sum of some products of equal p + q, as int32 gives it."""
        if multiply.by_blas and bound <= INT32:
            if len(pairs) == 1:
                return multiply(*pairs[0])
            X = np.hstack([multiply.a.items[p].digits for p, _ in pairs])
            Y = np.vstack([multiply.b.items[q].digits for _, q in pairs])
            return integer_product(X, Y, bound, multiply.device)
        terms = [
            (multiply.a.items[p].digits.astype(np.int8), multiply.b.items[q].digits.astype(np.int8)) for p, q in pairs
        ]
        return np.asarray(
            mma.chain(
                terms,
                spec=multiply.spec,
                order=multiply.order,
                backend=multiply.backend,
                device=device_of(multiply.backend, multiply.device),
            )
        )

    def _automatic(self, A: Array, B: Array, bits: int) -> int:
        """The smallest number of slices that loses no more than `loss` bits an element on average."""
        sides = []
        for X, axis in ((A, 1), (B, 0)):
            top = self._cut(X, axis, bits, 1).top
            sides.append(np.where(X == 0, 0, top - np.frexp(X)[1] + self.operand.precision))
        most = max(1, -(-int(max(needed.max() for needed in sides)) // bits))
        allowed = self.loss * (A.size + B.size)

        def enough(s: int) -> bool:
            return sum(int(np.maximum(needed - s * bits, 0).sum()) for needed in sides) <= allowed

        return most if self.loss == 0 else bisect_left(range(1, most), True, key=enough) + 1

    def error_bound(self, A: Any, B: Any, hardware: str | MmaSpec | None = None, on_range: str = "raise") -> Array:
        """Bound on abs(D - AB), AB exact, entry by entry (float64, (..., M, N)): omitted products and roundings.

        A, B : array_like (..., M, K), (..., K, N), finite.
        """
        if hardware is not None:
            self.spec(hardware)
        return self.bounded(A, B, self._bound)

    def _bound(self, A: Array, B: Array) -> Array:
        K = A.shape[1]
        bits = self.slice_bits(K)
        s = self.slices or self._automatic(A, B, bits)
        a, b = self._cut(A, 1, bits, s), self._cut(B, 0, bits, s)
        groups = list(_sums(len(a), len(b), s, self.sharing(K)))
        if max(map(len, groups)) * K * a.largest * b.largest > INT32:
            return np.full((len(A), B.shape[1]), np.inf)
        lost, sums = left_out(A, B, a, b, lambda p, q: p + q + 1 <= s), len(groups)
        lost = lost + ((sums + 1) * 2.0**-53 + self.operand.unit_roundoff) * (abs(A) @ abs(B))
        tiny = (sums + 1) * self.operand.min_subnormal + (len(a) * len(b) + sums + 4) * K * 2.0**-1074
        return np.asarray(lost * (1 + 2.0**-20) + tiny)


def _sums(sA: int, sB: int, s: int, shared: int) -> Iterator[list[tuple[int, int]]]:
    """The products with p + q <= s + 1 (indices from 0), in the order added: those that share an int32 sum together."""
    for g in range(min(s, sA + sB - 1)):
        pairs = [(p, g - p) for p in range(max(0, g - sB + 1), min(g, sA - 1) + 1)]
        yield from (pairs[i : i + shared] for i in range(0, len(pairs), shared))
