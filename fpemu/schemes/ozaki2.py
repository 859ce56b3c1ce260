"""Ozaki, Uchino, Imamura (2025): Ozaki scheme II, a product of integers by the Chinese remainder theorem.

K. Ozaki, Y. Uchino, T. Imamura, "Ozaki Scheme II: A GEMM-oriented emulation of floating-point matrix multiplication
using an integer modular technique", 2025, arXiv:2504.08009; modes as in the authors' public library GEMMul8.

    A' = trunc(2^mu A) by rows    B' = trunc(B 2^nu) by columns                           (errorfree/crt.py)
    A'B' mod p_i: one int8 product for each of N pairwise coprime moduli 256, 255, 253, ...
    C' = A'B' from its residues                                                            (errorfree/crt.py)
    A·B ≈ round(C'_ij 2^-(mu_i + nu_j)), one rounding

C' is found only if 2 sum_h |a'_ih||b'_hj| < P = product of the p_i for every entry. The published fast scaling breaks
that for rows of small entries, and cuts bits off rows of large ones, in the end all of them; both are checked, whatever
the scaling. More moduli seldom help: A' and B' grow with P. Residues are at most 2^7 and a chain has at most 2^16
products, so that no int32 sum can overflow: `exact` and `int32` of the report hold by construction. The accurate
scaling takes one int8 product more.

Two choices that the paper leaves open: here C' is exact and rounded once, so that every carrier and every order gives
the same bits; and the third scaling, "invariant", is ours: it follows powers of two of rows and columns and needs no
product to meet the condition. `rounding="nearest"` rounds the scaled entries to nearest in place of truncating them,
also ours: at most half the error, without a bias; "invariant" scaling by Euclidean norms is then as accurate as
"accurate" on most data, and saves its product.

Range: all of fp64; what lies too far below the largest entry of its row of A or column of B is cut off.
Error: |D - AB| <= 2^-mu |B| + |A| 2^-nu summed over k (half of that by rounding to nearest), and one rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.mma import KOrder, MmaSpec
from fpemu.mma import device as devices
from fpemu.mma.device import Device
from fpemu.schemes import options as choose
from fpemu.schemes.base import Call, register
from fpemu.schemes.errorfree import crt
from fpemu.schemes.errorfree.base import ErrorFree
from fpemu.schemes.errorfree.plan import CHAIN, Fault, ModularPlan, Report
from fpemu.schemes.errorfree.products import instruction_product, model_of
from fpemu.schemes.errorfree.split import times
from fpemu.schemes.errorfree.sums import ExactSum
from fpemu.schemes.options import SchemeInfo

Array = NDArray[Any]


@register
@dataclass(frozen=True, kw_only=True)
class Ozaki2(ErrorFree):
    """Residues modulo N small integers, one int8 product each."""

    info = SchemeInfo(
        name="ozaki2",
        title="Ozaki scheme II",
        paper="Ozaki, Uchino, Imamura, arXiv:2504.08009, 2025",
        year=2025,
        doi="10.48550/arXiv.2504.08009",
        parts=("x_i = trunc(2^mu x) mod p_i, in [-p_i/2, p_i/2)",),
        products=("A_i B_i for every modulus p_i",),
        range="all of fp64; small entries of a row are truncated",
        bound="none relative to |A||B|: 2^-mu |B| + |A| 2^-nu + 2^-53 |A||B|",
    )

    moduli: int | None = choose.integer(None, 2, 20, "number N of moduli (None: 15 for fp64, 8 for fp32)", none=True)
    scaling: str = choose.choice("accurate", crt.RULES, "powers of two that make A and B integers")
    rounding: str = choose.choice("truncate", ("truncate", "nearest"), "rounding of the scaled A and B to integers")
    winograd: bool | None = choose.flag(
        "a level of Strassen's algorithm on Hopper, same bits (None: in large products)"
    )

    modular = True
    counted = "moduli"

    def basis(self) -> crt.Basis:
        """The moduli."""
        return crt.basis(self.moduli or (15 if self.operand.name == "fp64" else 8))

    def plan_for(self, spec: MmaSpec | None, K: int, order: KOrder | None = None) -> ModularPlan:
        return ModularPlan(self.name, spec, K, len(self.basis().moduli), extra=int(self.scaling == "accurate"))

    @np.errstate(all="ignore")  # what underflows is cut off
    def multiply(self, call: Call) -> tuple[Array, list[Report]]:
        A, B, basis = call.A, call.B, self.basis()
        product = partial(self._product, spec=call.spec, order=call.order, device=call.device)
        mu, nu = self._exponents(A, B, product, call.form is not None)
        X, Y = self._integers(A, mu), self._integers(B, nu)
        vanished = [np.sum(Z.any(axis=x) & ~W.any(axis=x), axis=-1) for Z, W, x in ((A, X, -1), (B, Y, -2))]
        t = np.empty((len(basis.moduli), *A.shape[:-1], B.shape[-1]), np.int8)
        parts = crt.parts(X), crt.parts(Y)
        for i, (p, q) in enumerate(zip(basis.moduli, basis.inverses, strict=True)):
            x, y = (crt.residues(part, p) for part in parts)
            t[i] = crt.digit((crt.three(x, y, p, product) if call.form == "3M" else product(x, y, p // 2)), p, q)
        total = ExactSum(-mu, -nu, basis.bits)
        for limb, place in crt.integers(t, basis):
            total.add(limb, place)
        complete = (times(X, -mu) == A).all(axis=(-2, -1)) & (times(Y, -nu) == B).all(axis=(-2, -1))
        plan = self.plan_for(call.spec, A.shape[-1])
        reports = [
            self.report(plan, *crt.check(x, y, basis), [int(side[i]) for side in vanished], bool(complete[i]))
            for i, (x, y) in enumerate(zip(X, Y, strict=True))
        ]
        return total.round_to(self.operand, call.alpha, call.beta, call.C), reports

    def report(
        self, plan: ModularPlan, size: float, worst: tuple[int, int] | None, vanished: list[int], complete: bool
    ) -> Report:
        """The conditions of a product, with a bound `size` on the largest 2 sum|a'||b'|.

        `worst` is the index of an entry for which the bound exceeds what the moduli hold, `vanished` the numbers of
        rows of A and columns of B that are not zero and of which nothing is left; `complete`: no digit was cut off.
        """
        bits = math.log2(max(size, 1.0)), math.log2(self.basis().product)
        faults = []
        if worst is not None:
            message = (
                f"{self.name}: 2 sum|a'||b'| reaches 2^{bits[0]:.1f} at {list(worst)}, but {plan.moduli} moduli "
                f"hold integers below P = 2^{bits[1]:.1f} only: scaling='accurate' and 'invariant' stay below it (more "
                f"moduli seldom help: with {self.scaling!r} the integers grow as P does)"
            )
            faults.append(Fault("crt", message))
        if any(vanished):
            cut = f"{self.name}: {vanished[0]} rows of A and {vanished[1]} columns of B are cut to zeros: scaling="
            message = f"{cut}{self.scaling!r} leaves them no bit; take 'accurate' or more moduli"
            faults.append(Fault("underflow", message))
        return plan.report(bits, complete, *faults)

    def _exponents(self, A: Array, B: Array, product: crt.Product, paired: bool = False) -> tuple[Array, Array]:
        P, nearest = self.basis().product, self.rounding == "nearest"
        if self.scaling == "accurate":
            return crt.accurate(A, B, P, product, nearest, paired)
        return crt.fast(A, B, P) if self.scaling == "fast" else crt.invariant(A, B, P, nearest)

    def _integers(self, X: Array, exponents: Array) -> Array:
        return (np.rint if self.rounding == "nearest" else np.trunc)(times(X, exponents))

    def _product(
        self, X: Array, Y: Array, largest: int, spec: MmaSpec | None, order: KOrder | None, device: Device = "cpu"
    ) -> Array:
        """The exact product of integers of magnitude at most `largest` <= 128, as float64.

        An int32 sum of 2^16 products is exact in whatever order, and so are the sums of those. BLAS takes as many as
        float32 adds exactly.
        """
        if self.carrier != "blas" and spec is not None:
            x, y = X.astype(np.int8), Y.astype(np.int8)
            return instruction_product(x, y, spec, order, CHAIN, model_of(self.carrier, device)).astype(np.float64)
        X, Y = X.astype(np.float32, copy=False), Y.astype(np.float32, copy=False)
        total = np.zeros((*X.shape[:-1], Y.shape[-1]))
        step = 2**24 // largest**2
        for k in range(0, X.shape[-1], step):
            total += devices.matmul(X[..., k : k + step], Y[..., k : k + step, :], device)
        return total

    def _bound(self, call: Call) -> Array:
        """The bound from the largest residuals of rows and columns.

        AB - 2^-mu A'B' 2^-nu = dA B + (A - dA) dB with dA and dB the parts of A and B that are cut off: at most 2^-mu
        in row i of A, half of it if rounded to nearest, and zero where all of the row is kept.
        """
        A, B, K, nearest = call.A, call.B, call.A.shape[1], self.rounding == "nearest"
        mu, nu = self._exponents(A, B, partial(self._product, spec=None, order=None), call.form is not None)
        X, Y = self._integers(A, mu), self._integers(B, nu)
        # rows and columns brought to magnitudes below 1, where products only underflow
        a, b = (np.frexp(np.max(np.abs(Z), axis=axis, keepdims=True))[1] for Z, axis in ((A, 1), (B, 0)))
        size_a, size_b = np.ldexp(np.abs(A), -a), np.ldexp(np.abs(B), -b)
        cut_a, cut_b = (
            np.ldexp(np.abs(Z - times(W, -e)).max(axis=axis, keepdims=True), -top)
            for Z, W, e, top, axis in ((A, X, mu, a, 1), (B, Y, nu, b, 0))
        )
        lost = cut_a * size_b.sum(axis=0, keepdims=True) + size_a.sum(axis=1, keepdims=True) * cut_b
        lost = lost + K * cut_a * cut_b * nearest
        lost = lost + self.operand.unit_roundoff * (size_a @ size_b + lost)
        lost = lost * (1 + (K + 8) * 2.0**-51) + K * 2.0**-1060
        lost = np.ldexp(lost, a + b) * (1 + 2.0**-52) + self.operand.min_subnormal
        if self.scaling != "fast":  # the others meet the condition of the remainder theorem for any operands
            return lost
        return np.where(2 * crt.sums(X, Y) < self.basis().limit, lost, np.inf)
