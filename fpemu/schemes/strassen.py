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
from fpemu.mma.spec import MmaSpec
from fpemu.schemes import options as choose
from fpemu.schemes import ranges
from fpemu.schemes.base import Call, Scheme
from fpemu.schemes.lowering import Lowering
from fpemu.schemes.options import SchemeInfo
from fpemu.schemes.ranges import OverflowPolicy
from fpemu.schemes.staged import Staged

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Strassen(Scheme):
    """Seven products by `staged`, and sums of blocks."""

    limited = True
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

    def lowering(self, spec: MmaSpec | None, order: Any = None) -> Lowering:
        """The lowering of `staged`, which runs every product of blocks."""
        return self.staged.lowering(spec, order)

    def check_operand(self, X: Array, name: str, on_range: OverflowPolicy) -> None:
        self._finite(X, name, on_range)

    def product(self, call: Call) -> Array:
        a, rows = self._finite(call.A, "A", call.on_range)
        b, columns = self._finite(call.B, "B", call.on_range)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            products = [
                self.inner.product(replace(call, A=x, B=y, on_range=OverflowPolicy.PROPAGATE))
                for x, y in zip(left(a), right(b), strict=True)
            ]
            T = join(products)[..., : call.A.shape[-2], : call.B.shape[-1]]
        return ranges.patch(T, call.A, call.B, rows, columns)

    def _finite(self, X: Array, name: str, on_range: str) -> tuple[Array, NDArray[np.bool_] | None]:
        """Finite entries, zeros for the others, which rows (columns) have such."""
        ready = ranges.prepare(X, name, (), on_range, "", self.name)
        over = abs(ready.values) >= self.limit
        if over.any():
            self.refuse(
                f"{name}: sums of blocks may overflow: {entries(over, X)}, {self.limit:.3g} or more; scale the "
                "matrix by a power of two"
            )
        return ready.values.astype(np.float32), ready.special


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
