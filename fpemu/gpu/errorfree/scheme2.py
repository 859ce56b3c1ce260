"""Ozaki scheme II on the GPU: the powers of two of each rule, residues, and the result (`fpemu.schemes.ozaki2`).

A call queues all of its kernels, and then reads their results once: numbers that were cut, rows that were cut to
zeros, and bounds on the norms of the rows of A' and the columns of B'. By Cauchy-Schwarz these confirm the condition of
the Chinese remainder theorem as `fpemu.schemes.errorfree.crt.check` does. Only where they do not, a product in fp64
decides.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from fpemu.gpu.errorfree import residues as modular
from fpemu.gpu.errorfree.machine import Workspace, int32
from fpemu.gpu.errorfree.operands import Rows, most_shared, padded
from fpemu.gpu.runtime.cublas import Stack
from fpemu.gpu.runtime.device import Buffer
from fpemu.schemes.errorfree.report import Report
from fpemu.schemes.ozaki2 import Ozaki2

LONGEST = 1 << 18
"""Products of leading bits in one int32 sum: 2^12 · 2^18 = 2^30"""
_SPARE = 12  # bits of an integer beyond the square root of P
_FLAGS = [("incomplete", "i4"), ("vanished", "i4")]  # struct Cutting of residues.cu
_CONDITIONS = np.dtype([("flags", _FLAGS, 2), ("norms", "f8", 2)])  # of A and of B


def multiply(work: Workspace, A: Rows, B: Rows, scheme: Ozaki2, spec: Any, end: Any) -> Report:
    """Compute D = alpha · (A B by the scheme) + beta · C; return the report. Waits for the GPU."""
    basis = scheme.basis()
    count, P = len(basis.moduli), basis.product
    K, M, N = A.loaded.K, A.loaded.rows, B.loaded.rows
    conditions = work.zeros("conditions", _CONDITIONS.itemsize)
    flags, norms = ([np.uint64(conditions.pointer + at + 8 * side) for side in (0, 1)] for at in (0, 16))
    mu, nu = exponents(work, A, B, scheme.scaling, P, norms)
    longest = P.bit_length() // 2 + _SPARE
    a = modular.residues(work, A, count, mu, 1, 0, longest, flags[0])
    b = modular.residues(work, B, count, nu, 1, 0, longest, flags[1])
    modular.multiply(work, a, b, count, modular.Exponents(mu, nu, 1, 0), M, N, end, once=False, plain=True)
    results = conditions.array(1, _CONDITIONS)[0]
    size, worst = (P - 1) // 2 * 2 + 0.0, None
    if scheme.scaling == "fast":
        size = 2 * math.prod(np.sqrt(results["norms"]).tolist()) * _upward(K)
        if size >= basis.limit:
            size, worst = _check(work, A, B, mu, nu, basis.limit)
    vanished = results["flags"]["vanished"].tolist() if results["flags"]["vanished"].any() else []
    bits = math.log2(max(size, 1.0)), math.log2(P)
    chain = min(K, modular.CHAIN) * (basis.moduli[0] // 2) ** 2
    faults = (*(() if worst is None else (scheme._fault(worst, *bits),)), *scheme._vanished(vanished))
    return Report(
        scheme.name,
        spec.name,
        products=count + (scheme.scaling == "accurate"),
        exact=True,
        sum_bound=chain,
        sum_limit=2**31 - 1,
        complete=not results["flags"]["incomplete"].any(),
        crt=worst is None,
        crt_bits=bits,
        int32=True,
        int32_bound=chain,
        underflow=bool(vanished),
        faults=faults,
    )


def exponents(work: Workspace, A: Rows, B: Rows, rule: str, P: int, norms: list[np.uint64]) -> tuple[Buffer, Buffer]:
    """Return mu of every row of A and nu of every column of B, int32.

    norms : addresses of two doubles, zero at first
        But for the rule "accurate", they receive bounds on the sums of squares of the rows of A' and columns of B'.
    """
    K = A.loaded.K
    h, g = _scaled(P, K, rule)
    if rule != "accurate":
        most = h - 1 - (g < 1)  # leaves two bits for sums of 4
        a, b = (_squares(work, X, h, g, rule, most, norm) for X, norm in zip((A, B), norms, strict=True))
        return a, b
    sides = [_leading(work, X) for X in (A, B)]
    (a, first_a, zero_a), (b, first_b, zero_b) = sides
    M, N, width = A.loaded.rows, B.loaded.rows, padded(K, 128)
    parts = -(-width // LONGEST)  # blocks of K, each with an int32 sum
    size, pitch = 4 if parts == 1 else 8, padded(N, 32)
    rows, columns = work.zeros("largest of A", size * M), work.zeros("largest of B", size * N)
    step = modular.panel(work, M, 4 * parts * pitch)
    T, stride = work.get("products", 4 * parts * step * pitch), step * pitch
    for start in range(0, M, step):
        count = min(step, padded(M, 16) - start)
        for part, k in enumerate(range(0, width, LONGEST)):
            X, Y = Stack(a.pointer + start * width + k, width), Stack(b.pointer + k, width)
            D = Stack(T.pointer + 4 * part * stride, pitch)
            work.machine.gemm("int8", count, padded(N, 16), min(LONGEST, width - k), X, Y, D)
        grid = (min(-(-N // 256), 1024), max(1, min(count // 32, 64)))
        name, long = ("largest_sums", ()) if parts == 1 else ("largest_long_sums", (*int32(parts), stride))
        sizes = (*long, pitch, *int32(min(count, M - start), N))
        work.launch("scaling.cu", name, grid, 256, T, *sizes, np.uint64(rows.pointer + size * start), columns)
    powers = []
    for n, first, zero, largest, name in ((M, first_a, zero_a, rows, "A"), (N, first_b, zero_b, columns, "B")):
        powers.append(work.get(f"powers of {name}", 4 * n))
        row = (*int32(n), first, zero, largest, *int32(parts > 1, h), np.float64(g), powers[-1])
        work.launch("scaling.cu", "accurate", -(-n // 256), 256, *row)
    return powers[0], powers[1]


def _leading(work: Workspace, X: Rows) -> tuple[Buffer, Buffer, Buffer]:
    rows, K = X.loaded.rows, X.loaded.K
    all_rows, width = padded(rows, 16), padded(K, 128)
    out = work.get(f"leading of {X.name}", all_rows * width)
    first, zero = work.get(f"first of {X.name}", 4 * rows), work.get(f"zero of {X.name}", 4 * rows)
    shared = 8 * K if most_shared() >= 8 * K else 0
    row = (*X.arguments[:3], *int32(all_rows, K, shared > 0), out, width, first, zero, X.special)
    work.launch("scaling.cu", "leading", min(all_rows, 1 << 16), 512, *row, shared=shared)
    return out, first, zero


def _squares(work: Workspace, X: Rows, h: int, g: float, rule: str, most: int, norm: np.uint64) -> Buffer:
    rows, shared = X.loaded.rows, 8 * X.loaded.K if most_shared() >= 8 * X.loaded.K else 0
    mu = work.get(f"powers of {X.name}", 4 * rows)
    row = (*X.arguments, *int32(shared > 0, h), np.float64(g), *int32(rule == "fast", most), mu, X.special, norm)
    work.launch("scaling.cu", "by_squares", min(rows, 1 << 16), 512, *row, shared=shared)
    return mu


@lru_cache(maxsize=64)
def _scaled(P: int, K: int, rule: str) -> tuple[int, float]:
    """Return h and g of the limit g 4^h in `fpemu.schemes.errorfree.scaling`, g in [1, 4) cut to 51 fraction bits."""
    limit = Fraction(P - 1, 8) if rule == "fast" else Fraction(P - 1, 2) * (1 - Fraction(2**16 + K, 2**50))
    h = 0
    while limit >= 4 ** (h + 1):
        h += 1
    return h, int(limit / 4**h * 2**51) / 2**51


def _upward(K: int) -> float:
    """Return a factor that is more than what K additions and a few operations round off."""
    return 1 + (K + 8) * 2.0**-52


def _check(
    work: Workspace, A: Rows, B: Rows, mu: Buffer, nu: Buffer, limit: float
) -> tuple[float, tuple[int, int] | None]:
    """Return a bound of 2 sum|a'||b'| by one fp64 product, and the index of its maximum if it reaches the limit."""
    sides = []
    for X, power in ((A, mu), (B, nu)):
        rows, width = X.loaded.rows, padded(X.loaded.K, 16)
        sizes = work.zeros(f"sizes of {X.name}", 8 * rows * width)
        work.launch("scaling.cu", "sizes", min(rows, 1 << 16), 256, *X.arguments, power, sizes, width)
        sides.append((sizes, rows, width))
    (x, M, width), (y, N, _) = sides
    T = work.get("products", 8 * M * N)
    work.machine.gemm("fp64", M, N, width, Stack(x.pointer, width), Stack(y.pointer, width), Stack(T.pointer, N))
    place, most = work.zeros("largest place", 16), work.zeros("largest sum", 8)
    for kernel in ("largest_double", "where_double"):
        work.launch("scaling.cu", kernel, 1024, 256, T, M * N, most, place)
    top = float(most.array(1, np.float64)[0])
    bound = 2 * top * _upward(A.loaded.K)
    return bound, None if bound < limit else divmod(M * N - int(place.array(1, np.int64)[0]), N)
