"""Precision from the data on the GPU: `fpemu.schemes.errorfree.target`, and scaling along k by powers of two.

The bound is evaluated as on the CPU, and |A||B| is an fp64 product by cuBLAS. For `ozaki2` the bounds of all numbers of
moduli are computed in one pass, of which the host reads the largest; slices are tried from one number to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fpemu.errors import InputError
from fpemu.gpu.errorfree import gemm
from fpemu.gpu.errorfree import residues as modular
from fpemu.gpu.errorfree.operands import (
    CARRIERS,
    ErrorFreeProduct,
    Rows,
    Slices,
    Workspace,
    padded,
    source,
    survey,
    transposed,
)
from fpemu.gpu.runtime.cublas import Stack
from fpemu.gpu.runtime.device import Buffer
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.steps import Gemm, Struct, fields
from fpemu.schemes.errorfree import target as targets
from fpemu.schemes.errorfree.plan import Certificate

_KNOWN = fields("u8 tops sums cuts")  # structures of kernels/targets.cu
_OPERAND = fields("u8 X, i8 k_step row_step, i4 narrow parts K rows by_k unused")
Worst = tuple[float, tuple[int, int]]


class Bounds:
    """The error bounds of a product relative to |A||B|: the largest of all entries, and its index."""

    def __init__(self, x: ErrorFreeProduct, mu: Sequence[Any], count: int, *, nearest: bool = False) -> None:
        """Queue |A||B|, and for `count` powers of two of each row the largest part of a number that is cut off."""
        work, self.x, self.nearest, self.width = x.work, x, nearest, padded(x.shape[2], 16)
        self.text, self.known, magnitudes = source("targets.cu"), list[Struct](), list[Buffer]()
        for X, powers in zip((x.A, x.B), mu, strict=True):
            sizes = (("tops", 4), ("sums", 8), ("cuts", 8 * count))
            known = [work.get(f"{name} of rows of {X.name}", size * X.rows) for name, size in sizes]
            magnitudes.append(work.get(f"sizes of {X.name}", 8 * X.rows * self.width))
            out = (magnitudes[-1], self.width, *known)
            rule = (powers, count, nearest, 2.0**targets.LEAST)
            work.launch(self.text, "magnitudes", min(X.rows, 1 << 16), 256, *X.arguments, *rule, *out)
            self.known.append(Struct(_KNOWN, dict(zip(("tops", "sums", "cuts"), known, strict=True))))
        self.sizes = self._product("sizes", magnitudes, self.width)

    def _product(self, name: str, sides: Sequence[Buffer], K: int) -> Buffer:
        M, N, _ = self.x.shape
        T = self.x.work.get(f"products of {name}", 8 * M * N)
        A, B = (Stack(side.pointer, K) for side in sides)
        self.x.work.queue(Gemm("fp64", M, N, K, A, B, Stack(T.pointer, N)))
        return T

    def worst(self, count: int, units: float, tiny: float, omitted: Any = 0) -> list[Worst]:
        """Return the largest bounds of numbers of moduli, or of slices with a bound on what they omit."""
        work, (M, N, K) = self.x.work, self.x.shape
        found = work.zeros("largest bounds", 16 * count)
        given = (self.sizes, omitted, M, N, K, *self.known, count, self.nearest, units, tiny, 2.0**targets.LEAST)
        for places in (0, found.pointer + 8 * count):
            work.launch(self.text, "ratios", min(-(-M * N // 256), 1 << 14), 256, *given, found.pointer, places)
        codes = found.array((2, count), np.uint64)
        ratios, places = codes[0].view(np.float64).tolist(), codes[1].tolist()
        return [(ratio, divmod(M * N - place, N)) for ratio, place in zip(ratios, places, strict=True)]

    def omitted(self, a: Slices, b: Slices, d: int, *, fast: bool) -> Buffer:
        """Queue the bound on what slices omit, as `fpemu.schemes.errorfree.split.left_out` has it."""
        terms, sides = a.slices if fast else 0, list[Buffer]()
        length = (2 + terms) * self.width
        for i, (X, slices) in enumerate(zip((self.x.A, self.x.B), (a, b), strict=True)):
            out = self.x.work.get(f"omitted of {X.name}", 8 * X.rows * length)
            digits = (slices.data, CARRIERS[slices.kind][0], slices.exponents, slices.all_rows, slices.count)
            given = (*digits, slices.slices, slices.width, i, terms, d, out, self.width)
            grid = min(X.rows, 1 << 16)
            self.x.work.launch(self.text, "omitted", grid, 256, *X.arguments, self.known[i]["tops"], *given)
            sides.append(out)
        return self._product("omitted parts", sides, length)


def within(
    work: Workspace, scheme: Any, A: Matrix, B: Matrix, spec: Any, order: Any = None, *, paired: bool = False
) -> tuple[Any, Certificate]:
    """Return the scheme with the least number that meets its target for one product, and its certificate.

    A (M, K) and B (K, N) are real, or the parts of complex matrices if `paired`. Waits for the GPU.
    """
    x = ErrorFreeProduct(work, Rows.of(work, A, "A"), Rows.of(work, transposed(B), "B"), None)
    fmt = scheme.operand
    if not scheme.modular:
        bounds, spans = Bounds(x, (0, 0), 0), survey(work, x.A, x.B)

        def ratio(chosen: Any) -> Worst:
            plan = chosen.plan_for(spec, x.shape[2], order)
            a, b, d, fast, report = gemm.sliced(x, chosen, plan, spans)
            if not report.ok:
                return np.inf, (0, 0)
            units, tiny = chosen.rounding_errors(plan, a.slices, b.slices, d, fast)
            return bounds.worst(1, units, tiny, bounds.omitted(a, b, d, fast=fast))[0]

        return targets.least(scheme, x.shape[2], ratio)
    if scheme.scaling == "fast":
        raise InputError("ozaki2: target= with scaling='fast' runs on the CPU: take 'accurate' or 'invariant' on a GPU")
    numbers, sums = targets.numbers(scheme), modular.row_sums(x, scheme.scaling)
    mu = [work.get(f"powers of {X.name}", 4 * X.rows * len(numbers)).pointer for X in (x.A, x.B)]
    for i, number in enumerate(numbers):
        out = [at + 4 * i * X.rows for at, X in zip(mu, (x.A, x.B), strict=True)]
        modular.powers_of_two(x, sums, targets.counted(scheme, number), out, paired=paired)
    bounds = Bounds(x, mu, len(numbers), nearest=scheme.rounding == "nearest")
    worst = bounds.worst(len(numbers), fmt.unit_roundoff, fmt.min_subnormal)
    return targets.least(scheme, x.shape[2], lambda chosen: worst[chosen.moduli - numbers[0]])


def balanced(work: Workspace, A: Matrix, B: Matrix) -> tuple[Matrix, Matrix]:
    """Return A S and S^-1 B, as `fpemu.schemes.errorfree.split.inside` scales them, in buffers of the workspace."""
    K, text, sides, result = A.shape[1], source("targets.cu"), list[Any](), list[Matrix]()
    found = work.zeros("ends of columns", 32 * K).pointer
    ends = [found + 8 * i * K for i in range(4)]
    for i, X in enumerate((A, transposed(B))):
        parts = 1 + (X.dtype.kind == "c")
        (rows, _), (row, step) = X.shape, X.strides
        by_k = abs(step) <= abs(row)
        values: dict[str, Any] = {"X": X.pointer, "k_step": parts * step, "row_step": parts * row, "parts": parts}
        values |= {"narrow": X.dtype.itemsize == 4 * parts, "K": K, "rows": rows, "by_k": by_k}
        grid = (min(-(-K // 32), 64), 16) if by_k else (1, min(-(-K // 8), 512))
        sides.append((Struct(_OPERAND, values), grid, by_k, parts, X))
        work.launch(text, "ends", grid, (32, 8), sides[-1][0], *ends[2 * i : 2 * i + 2])
    for sign, name, (operand, grid, by_k, parts, X) in zip((1, -1), "AB", sides, strict=True):
        out = work.get(f"{name} scaled along k", 8 * parts * X.shape[0] * K)
        work.launch(text, "balance", grid, (32, 8), operand, *ends, sign, out)
        strides = (K, 1) if by_k else (1, X.shape[0])
        result.append(Matrix(out.pointer, np.dtype(f"{'fc'[parts - 1]}{8 * parts}"), X.shape, strides, out))
    return result[0], transposed(result[1])
