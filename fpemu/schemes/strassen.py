"""Strassen's algorithm in Winograd's form over `staged`: seven products of half the size instead of eight.

V. Strassen, "Gaussian elimination is not optimal", Numerische Mathematik 13, 1969, DOI 10.1007/BF02165411; the form
with fifteen additions is S. Winograd's.

    S1 = A21 + A22    S2 = S1 - A11     S3 = A11 - A21    S4 = A12 - S2
    T1 = B12 - B11    T2 = B22 - T1     T3 = B22 - B12    T4 = T2 - B21
    P1 = A11 B11  P2 = A12 B21  P3 = S4 B22  P4 = A22 T4  P5 = S1 T1  P6 = S2 T2  P7 = S3 T3, each by `staged`
    U2 = P1 + P6      U3 = U2 + P7      U4 = U2 + P5
    C11 = P1 + P2     C12 = U4 + P3     C21 = U3 - P4     C22 = U3 + P5

Every addition is one of fp32, to nearest. Sizes that are odd get a row or column of zeros. With two levels each of the
seven products is made the same way: 49 of a quarter of the size instead of 64. `staged` has accuracy to spare: what the
sums lose leaves the error of a product of random matrices under that of a chain in fp32.

Not in the registry: the error depends on where an entry stands, and no bound relative to |A||B| exists. `gemm` takes
the scheme itself, `fpemu.gemm(A, B, scheme=Strassen(), hardware="H200")`.

Range: entries below 2^124, 2^121 with two levels; an entry of the result may overflow where the sum of all magnitudes
is near 2^128.
Error: normwise only, |D - AB| <= g max|A| max|B|; an entry that is small beside others may lose everything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import entries
from fpemu.formats import FP32
from fpemu.mma import MmaSpec
from fpemu.mma._device import Device
from fpemu.schemes import options as choose
from fpemu.schemes import ranges
from fpemu.schemes.base import Scheme, SchemeInfo
from fpemu.schemes.staged import Staged
from fpemu.schemes.words import growth

Array = NDArray[Any]
_LEFT = ("11", "12", "12 21 22 11", "22", "21 22", "21 22 11", "11 21")
_RIGHT = ("11", "21", "22", "22 12 11 21", "12 11", "22 12 11", "22 12")
"""The blocks that the operands of the seven products are sums of"""
_JOINS = ((0, 1), (0, 5, 4, 2), (0, 5, 6, 3), (0, 5, 6, 4))
"""The products that the blocks of the result are sums of"""


@dataclass(frozen=True, kw_only=True)
class Strassen(Scheme):
    """Seven products by `staged`, and sums of blocks."""

    promote_option = "stage"

    info = SchemeInfo(
        name="strassen",
        title="Strassen's algorithm, Winograd's form, over staged accumulation",
        paper="Strassen, Numerische Mathematik 13, 1969; Winograd's form",
        year=1969,
        doi="10.1007/BF02165411",
        parts=("h = RNE16(x s)", "r = RNE16(x s - h)"),
        products=("rh", "hr", "hh"),
        range="|x| < 2^124 (two levels: 2^121)",
        bound="normwise: O(3 2^-22 + (K/stage) 2^-24 + 3 (stage/L) eps) K max|A| max|B|",
    )

    levels: int | None = choose.integer(1, 1, 2, "how often matrices are quartered")
    stage: int | str | None = choose.interval(64, "length in k of a stage of `staged`", none=False)
    instruction: str | None = choose.name("which matrix instruction, None: the widest", "mma | wgmma | tcgen05 | mfma")
    k: int | None = choose.integer(None, 1, 4096, "length in k of the instruction, None: the widest", none=True)

    @cached_property
    def staged(self) -> Staged:
        """What multiplies the smallest blocks."""
        return Staged(stage=self.stage, instruction=self.instruction, k=self.k)

    @cached_property
    def inner(self) -> Scheme:
        """What multiplies the blocks."""
        return self.staged if self.levels == 1 else replace(self, levels=1)

    @property
    def limit(self) -> float:
        """Entries are smaller, so that no sum of four of them, or four of these, overflows."""
        return 2.0**124 if self.levels == 1 else 2.0**121

    def spec(self, hardware: str | MmaSpec | None) -> MmaSpec:
        """The matrix instruction that the products run on: see `Staged.spec`."""
        return self.staged.spec(hardware)

    def product(
        self, A: Array, B: Array, spec: MmaSpec | None, order: Any, on_range: str, device: Device = "cpu"
    ) -> Array:
        a, rows = self._finite(A, "A", on_range)
        b, columns = self._finite(B, "B", on_range)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            products = [
                self.inner.product(x, y, spec, order, "propagate", device)
                for x, y in zip(left(a), right(b), strict=True)
            ]
            T = join(products)[..., : A.shape[-2], : B.shape[-1]]
        return ranges.patch(T, A, B, rows, columns)

    def _finite(self, X: Array, who: str, on_range: str) -> tuple[Array, NDArray[np.bool_] | None]:
        """Finite entries, zeros for the others, which rows (columns) have such."""
        ready = ranges.prepare(X, who, (), on_range, "", self.name)
        over = abs(ready.values) >= self.limit
        if over.any():
            self.refuse(
                f"{who}: sums of blocks may overflow: {entries(over, X)}, {self.limit:.3g} or more; scale the "
                "matrix by a power of two"
            )
        return ready.values.astype(np.float32), ready.special

    def error_bound(self, A: Any, B: Any, hardware: str | MmaSpec | None = None, on_range: str = "raise") -> Array:
        """Bound on abs(D - AB), entry by entry, for these operands and the published order.

        The running bounds of the seven products, what the sums of blocks before them lose, and the roundings after.
        Holds for alpha = 1, beta = 0 and finite results.

        Parameters
        ----------
        A, B : array_like, (..., M, K) and (..., K, N)
            fp32 numbers, finite.

        Returns
        -------
        float64 array (..., M, N)
        """
        A, B = ranges.matrices(A, B, FP32)
        a, _ = self._finite(A, "A", on_range)
        b, _ = self._finite(B, "B", on_range)
        lost, size = [], []
        with np.errstate(all="ignore"):
            parts = zip(left(a), right(b), _lost(a, _LEFT), _lost(b, _RIGHT), strict=True)
            for x, y, dx, dy in parts:
                wide_x, wide_y = (abs(z.astype(np.float64)) for z in (x, y))
                own = self.inner.error_bound(x, y, hardware, "propagate")
                lost.append(own + dx @ wide_y + wide_x @ dy + dx @ dy)
                size.append(wide_x @ wide_y + lost[-1])
            rounded = growth(3, 2.0**-24)
            found = [sum(lost[p] + rounded * size[p] for p in one) * (1 + 2.0**-20) + 2.0**-148 for one in _JOINS]
        upper, lower = (np.concatenate(half, axis=-1) for half in (found[:2], found[2:]))
        return np.asarray(np.concatenate([upper, lower], axis=-2)[..., : A.shape[-2], : B.shape[-1]])

    def relative_bound(self, K: int, hardware: str | MmaSpec | None = None) -> float:
        """inf: an error is relative to the largest entries of other blocks, so that an entry may lose everything."""
        self.spec(hardware)
        return float("inf")


def left(A: Array) -> list[Array]:
    """The seven left operands of A, (..., M, K) of fp32."""
    (a11, a12), (a21, a22) = blocks(A)
    s1 = a21 + a22
    s2 = s1 - a11
    return [a11, a12, a12 - s2, a22, s1, s2, a11 - a21]


def right(B: Array) -> list[Array]:
    """The seven right operands of B, (..., K, N) of fp32."""
    (b11, b12), (b21, b22) = blocks(B)
    t1 = b12 - b11
    t2 = b22 - t1
    return [b11, b21, b22, t2 - b21, t1, t2, b22 - b12]


def join(P: list[Array]) -> Array:
    """The result of the seven products."""
    u2 = P[0] + P[5]
    u3 = u2 + P[6]
    u4 = u2 + P[4]
    upper = np.concatenate([P[0] + P[1], u4 + P[2]], axis=-1)
    return np.concatenate([upper, np.concatenate([u3 - P[3], u3 + P[4]], axis=-1)], axis=-2)


def blocks(X: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Quarters of a matrix, with zeros where its sizes are odd."""
    rows, columns = X.shape[-2:]
    even = np.pad(X, [(0, 0)] * (X.ndim - 2) + [(0, rows % 2), (0, columns % 2)])
    m, n = even.shape[-2] // 2, even.shape[-1] // 2
    return (even[..., :m, :n], even[..., :m, n:]), (even[..., m:, :n], even[..., m:, n:])


def _lost(X: Array, sums: tuple[str, ...]) -> list[Array]:
    """What the additions lose at most, for the operands of one side."""
    quarters = blocks(abs(X.astype(np.float64)))
    found = []
    for names in sums:
        terms = [quarters[int(name[0]) - 1][int(name[1]) - 1] for name in names.split()]
        found.append(growth(len(terms) - 1, 2.0**-24) * sum(terms[1:], terms[0]))
    return found
