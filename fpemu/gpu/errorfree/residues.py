"""Exact products of integers on the GPU by their residues: int8 products through cuBLAS, and back by the CRT.

Smaller primes follow the moduli of `fpemu.schemes.errorfree.crt`, 48 moduli in all: they suffice for exact products of
matrices whose rows and columns each span up to about 150 bits. Mode CR of `ozaki` is computed by them without slices,
because its result is the exact sum rounded once, by whatever method.

`scheme2` is Ozaki scheme II (`fpemu.schemes.ozaki2`): the powers of two of each rule, residues, and the result. It
queues all of its kernels, and then reads their results once: numbers that were cut, rows that were cut to zeros, and
bounds on the norms of the rows of A' and the columns of B'. By Cauchy-Schwarz these confirm the condition of the
Chinese remainder theorem as `fpemu.schemes.errorfree.crt.check` does. Only where they do not, a product in fp64
decides.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpemu.gpu.errorfree.operands import Rows, Workspace, int32, most_shared, padded, source
from fpemu.gpu.runtime.compiler import struct
from fpemu.gpu.runtime.cublas import Stack
from fpemu.gpu.runtime.device import Buffer
from fpemu.schemes.errorfree.crt import MODULI
from fpemu.schemes.errorfree.plan import Report
from fpemu.schemes.ozaki2 import Ozaki2

_SMALLER = "167 163 157 151 149 139 137 131 127 113 109 107 103 101 97 89 83 79 73 71 67 61 59 53 47 43 41 37"
ALL = (*MODULI, *map(int, _SMALLER.split()))
"""Pairwise coprime; N moduli are the first N."""
CHAIN = 1 << 16
"""Products of int8 in one int32 sum: 2^14 · 2^16 = 2^30."""
_WORDS = 8  # words of 15 bits whose sum is exact in fp32
PANEL = 12 << 30
"""Limit of the bytes of products in memory at a time."""


def moduli_for(bits: int) -> int | None:
    """Return the number of moduli for integers |C| <= 2^bits, None if there are too few.

    Examples
    --------
    >>> moduli_for(14), moduli_for(100), moduli_for(1000)
    (2, 13, None)
    """
    P = 1
    for count, p in enumerate(ALL, 1):
        P *= p
        if 2 << bits < P - (P >> 40):
            return max(count, 2)
    return None


@lru_cache(maxsize=64)
def definitions(count: int) -> str:
    """Return the constants that precede kernels/crt.cu and residues.cu."""
    moduli = ALL[:count]
    P = math.prod(moduli)
    limbs = -(-P.bit_length() // 32)

    def words(x: int) -> list[int]:
        return [x >> 32 * i & 0xFFFFFFFF for i in range(limbs)]

    def array(name: str, values: Any) -> str:
        return f"constexpr u32 {name} = {{{', '.join(f'{v}u' for v in values)}}};"

    groups = [math.prod(moduli[i : i + 3]) for i in range(0, count, 3)]
    weights = list(zip(*(words(P // G) for G in groups), strict=True))
    rows = ", ".join("{" + ", ".join(f"{w}u" for w in row) + "}" for row in weights)
    return "\n".join(
        [
            '#include "integers.cuh"',
            f"constexpr int N = {count}, GROUPS = {len(groups)}, LIMBS = {limbs};",
            array("MODULUS[N]", moduli),
            array("MAGIC[N]", [2**32 // p for p in moduli]),
            array("W18[N]", [2**18 % p for p in moduli]),
            array("W36[N]", [2**36 % p for p in moduli]),
            array("LIFT[N]", [2**31 // p * p for p in moduli]),
            array("INVERSE[N]", [pow(P // p, -1, p) for p in moduli]),
            array("OTHERS[N]", [groups[i // 3] // p for i, p in enumerate(moduli)]),
            f"constexpr double SHARE[GROUPS] = {{{', '.join((1 / G).hex() for G in groups)}}};",
            f"constexpr u32 WEIGHT[LIMBS][GROUPS] = {{{rows}}};",
            array("PRODUCT[LIMBS]", words(P)),
            "",
        ]
    )


@lru_cache(maxsize=64)
def crt_source(count: int, once: bool = False, plain: bool = True, narrow: bool = False) -> str:
    """Return kernels/crt.cu for a number of moduli, with one rounding at the end or two, a plain sum, and D in fp32."""
    epilogue = {"ONCE": bool(once), "PLAIN": bool(plain), "NARROW": bool(narrow)}
    return f"{definitions(count)}{struct(epilogue, 'Epilogue')}\n{source('crt.cu')}"


@lru_cache(maxsize=64)
def residues_source(count: int, words: int) -> str:
    """Return kernels/residues.cu for a number of moduli, and integers of some words of 15 bits."""
    factors = [[_centred(pow(2, 15 * j, p), p) for p in ALL[:count]] for j in range(words)]
    rows = ", ".join("{" + ", ".join(f"{f}.0f" for f in row) + "}" for row in factors)
    constants = f"constexpr int PIECES = {words};\nconstexpr float FACTOR[PIECES][N] = {{{rows}}};\n"
    return definitions(count) + constants + source("residues.cu")


def words_of(longest: int) -> int:
    """Return the number of 15-bit words of integers below 2^longest in magnitude, with two bits to spare."""
    return -(-(longest + 2) // 15)


def _centred(x: int, p: int) -> int:
    return x - p * (2 * x > p)


class Residues(NamedTuple):
    """Residues of some rows: int8 (moduli, all_rows, width)."""

    data: Buffer
    all_rows: int
    width: int

    @property
    def plane(self) -> int:
        """Bytes per modulus."""
        return self.all_rows * self.width


def residues(
    work: Workspace, X: Rows, count: int, shifts: Buffer, sign: int, more: int, longest: int, flags: np.uint64
) -> Residues:
    """Queue the residues of trunc(x 2^shift), shift = sign · shifts[row] + more, below 2^longest in magnitude.

    flags : address of two int32, zero at first
        Receives whether a number was no integer, and the number of rows that became zero.
    """
    K, rows, name = X.loaded.K, X.loaded.rows, X.name
    all_rows, width = padded(rows, 16), padded(K, 128)
    data = work.get(f"residues of {name}", count * all_rows * width)
    words, grid = words_of(longest), min(all_rows, 1 << 16)
    numbers = (X.loaded.pointer, X.loaded.pitch, *int32(rows, all_rows, K), shifts, *int32(sign, more))
    out = (data, width, all_rows * width, flags)
    if words <= _WORDS:
        work.machine.launch(residues_source(count, words), "residues_by_pieces", grid, 256, *numbers, *out)
        return Residues(data, all_rows, width)
    powers = np.zeros((longest + 1, padded(count, 4)), np.uint8)
    powers[:, :count] = [[pow(2, s, p) for p in ALL[:count]] for s in range(longest + 1)]
    table, text = (work.table(powers), *int32(len(powers))), residues_source(count, 1)
    work.machine.launch(text, "residues", grid, 256, *numbers, *table, *out, shared=powers.nbytes)
    return Residues(data, all_rows, width)


class Exponents(NamedTuple):
    """Scaling of A' = A 2^(sign · rows[i] + more) and of B' with columns[j]; `more` is the sum of both."""

    rows: Buffer
    columns: Buffer
    sign: int
    more: int


def multiply(
    work: Workspace,
    a: Residues,
    b: Residues,
    count: int,
    exponents: Exponents,
    M: int,
    N: int,
    end: Any,
    *,
    once: bool,
    plain: bool,
) -> None:
    """Compute D from the residues of A and B, some rows at a time."""
    parts = -(-a.width // CHAIN)
    pitch = padded(b.all_rows, 32)
    rows = panel(work, M, count * parts * pitch * 4)
    T = work.get("products", count * parts * rows * pitch * 4)
    stride = rows * pitch
    program = crt_source(count, once, plain or not once, bool(end["D"]["narrow"][0]))
    for first in range(0, M, rows):
        height = min(rows, a.all_rows - first)
        for part in range(parts):
            k, length = part * CHAIN, min(CHAIN, a.width - part * CHAIN)
            A = Stack(a.data.pointer + first * a.width + k, a.width, a.plane)
            B = Stack(b.data.pointer + k, b.width, b.plane)
            D = Stack(T.pointer + 4 * part * stride, pitch, parts * stride)
            work.machine.gemm("int8", height, b.all_rows, length, A, B, D, batch=count)
        height = min(rows, M - first)
        if parts > 1:
            work.machine.launch(program, "fold", 1 << 14, 256, T, stride, *int32(parts))
        products = (T, parts * stride, pitch, *int32(height, N), exponents.rows, exponents.columns)
        last = (*int32(exponents.sign, exponents.more, first), end)
        work.machine.launch(program, "rebuild", (-(-N // 256), min(height, 65535)), 256, *products, *last)


def panel(work: Workspace, M: int, row_bytes: int) -> int:
    """Return the number of rows of D to compute at a time, a multiple of 16."""
    if padded(M, 16) * row_bytes <= min(PANEL, work.held("products")):  # the memory of an earlier product suffices
        return padded(M, 16)
    most = min(PANEL, (work.machine.room() + work.held("products")) // 2)
    held = max(16, most // row_bytes // 16 * 16)
    panels = -(-M // held)
    return min(padded(-(-M // panels), 16), padded(M, 16))


# --- scheme II

LONGEST = 1 << 18
"""Products of leading bits in one int32 sum: 2^12 · 2^18 = 2^30"""
_SPARE = 12  # bits of an integer beyond the square root of P
_FLAGS = [("incomplete", "i4"), ("vanished", "i4")]  # struct Cutting of residues.cu
_CONDITIONS = np.dtype([("flags", _FLAGS, 2), ("norms", "f8", 2)])  # of A and of B


def scheme2(work: Workspace, A: Rows, B: Rows, scheme: Ozaki2, spec: Any, end: Any) -> Report:
    """Compute D = alpha · (A B by the scheme) + beta · C; return the report. Waits for the GPU."""
    basis = scheme.basis()
    count, P = len(basis.moduli), basis.product
    K, M, N = A.loaded.K, A.loaded.rows, B.loaded.rows
    conditions = work.zeros("conditions", _CONDITIONS.itemsize)
    flags, norms = ([np.uint64(conditions.pointer + at + 8 * side) for side in (0, 1)] for at in (0, 16))
    mu, nu = exponents(work, A, B, scheme.scaling, P, norms)
    longest = P.bit_length() // 2 + _SPARE
    a = residues(work, A, count, mu, 1, 0, longest, flags[0])
    b = residues(work, B, count, nu, 1, 0, longest, flags[1])
    multiply(work, a, b, count, Exponents(mu, nu, 1, 0), M, N, end, once=False, plain=True)
    results = conditions.array(1, _CONDITIONS)[0]
    size, worst = (P - 1) // 2 * 2 + 0.0, None
    if scheme.scaling == "fast":
        size = 2 * math.prod(np.sqrt(results["norms"]).tolist()) * _upward(K)
        if size >= basis.limit:
            size, worst = _check(work, A, B, mu, nu, basis.limit)
    complete = not results["flags"]["incomplete"].any()
    return scheme.report(scheme.plan_for(spec, K), size, worst, results["flags"]["vanished"].tolist(), complete)


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
    step = panel(work, M, 4 * parts * pitch)
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
    """Return h and g of the limit g 4^h in `fpemu.schemes.errorfree.crt`, g in [1, 4) cut to 51 fraction bits."""
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
