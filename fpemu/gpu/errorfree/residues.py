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
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpemu.errors import InputError
from fpemu.gpu.errorfree.operands import ErrorFreeProduct, Rows, Workspace, most_shared, padded, panels, source
from fpemu.gpu.runtime.compiler import struct
from fpemu.gpu.runtime.cublas import Stack
from fpemu.gpu.runtime.device import Buffer
from fpemu.gpu.runtime.steps import Gemm
from fpemu.schemes.errorfree import crt
from fpemu.schemes.errorfree.plan import Report
from fpemu.schemes.ozaki2 import Ozaki2

_SMALLER = "167 163 157 151 149 139 137 131 127 113 109 107 103 101 97 89 83 79 73 71 67 61 59 53 47 43 41 37"
ALL = (*crt.MODULI, *map(int, _SMALLER.split()))
"""Pairwise coprime; N moduli are the first N."""
CHAIN = 1 << 16
"""Products of int8 in one int32 sum: 2^14 · 2^16 = 2^30."""
_WORDS = 8  # words of 15 bits whose sum is exact in fp32


def moduli_for(bits: int) -> int | None:
    """Return the number of moduli for integers |C| <= 2^bits, None if there are too few.

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

    groups = [math.prod(moduli[i : i + 3]) for i in range(0, count, 3)]
    arrays: dict[str, Sequence[Any]] = {
        "u32 MODULUS[N]": moduli,
        "u32 MAGIC[N]": [2**32 // p for p in moduli],
        "u32 W18[N]": [2**18 % p for p in moduli],
        "u32 W36[N]": [2**36 % p for p in moduli],
        "u32 LIFT[N]": [2**31 // p * p for p in moduli],
        "u32 INVERSE[N]": [pow(P // p, -1, p) for p in moduli],
        "u32 OTHERS[N]": [groups[i // 3] // p for i, p in enumerate(moduli)],
        "double SHARE[GROUPS]": [(1 / G).hex() for G in groups],
        "u32 WEIGHT[LIMBS][GROUPS]": list(zip(*(words(P // G) for G in groups), strict=True)),
        "u32 PRODUCT[LIMBS]": words(P),
    }
    sizes = f"constexpr int N = {count}, GROUPS = {len(groups)}, LIMBS = {limbs};"
    constants = [f"constexpr {name} = {_initializer(values)};" for name, values in arrays.items()]
    return "\n".join(['#include "integers.cuh"', sizes, *constants, ""])


@lru_cache(maxsize=64)
def total_definitions(count: int, once: bool = False) -> str:
    """Return the constants of struct Total in kernels/residue_sum.cu, whose sums have v <= 12 G."""
    moduli = ALL[:count]
    P = math.prod(moduli)
    groups = [math.prod(moduli[i : i + 3]) for i in range(0, count, 3)]
    weights, length, most = [*(P // G for G in groups), P], P.bit_length(), 12 * len(groups) * P
    # parts of the weights: the sums of the first are fewer than 2^8 P, and than 2^32 of the second part's units
    ends = [max(0, length - bits) for bits in ((0, 45, 66, 87, 107) if once else (0, 45, 66))]
    lowest = (len(groups) * 12 * max(groups) + 256) << ends[-1]  # of the sum of the last parts
    error = 2.0**-52 * ((len(groups) + 4) * lowest + (0 if once else 2.0**-50 * P))
    shift = min(max(0, most.bit_length() - 31), 63)
    numbers = {"ERROR": error, "INVERSE_P": 1 / P, "MOST": P / 2 * (1 - 2.0**-45)}
    others = [(*(G // p for p in moduli[3 * i : 3 * i + 2]), 0) for i, G in enumerate(groups)]
    names = ("HIGH", "MIDDLE", "THIRD", "FOURTH", "LOW") if once else ("HIGH", "MIDDLE", "LOW")
    parts = {
        name: [(w & (1 << start) - 1) >> end << end for w in weights]
        for name, start, end in zip(names, ends, [*ends[1:], 0], strict=True)
    }
    parts = dict.fromkeys(("THIRD", "FOURTH"), [0] * len(weights)) | parts
    lines = ["#ifdef __CUDACC__", "#define FPEMU_TABLE __constant__", "#else", "#define FPEMU_TABLE const", "#endif"]
    lines += [f"constexpr double {name} = {x.hex()};" for name, x in numbers.items()]
    flags = {"WHOLE": most < 1 << 63, "NEAR": error + 2.0**-104 * P < 0.125}
    lines += [f"constexpr bool {name} = {str(x).lower()};" for name, x in flags.items()]
    lines += [f"constexpr int SHIFT = {shift};"]
    lines += [f"constexpr float SHARE_32 = {float(np.float32(2**shift / P)).hex()}f;"]
    lines += [f"constexpr u64 WEIGHT_64[] = {_initializer([w & 2**64 - 1 for w in weights])};"]
    lines += [f"constexpr u32 PAIR[] = {_initializer([x | y << 16 for x, y, *_ in others])};"]
    lines += [
        f"FPEMU_TABLE double {name}[] = {_initializer([float(w).hex() for w in x])};" for name, x in parts.items()
    ]
    return "\n".join([*lines, ""])


def _initializer(values: Any) -> str:
    """Return numbers, texts and sequences of these in C++; integers are unsigned."""
    if isinstance(values, list | tuple):
        return "{" + ", ".join(map(_initializer, values)) + "}"
    return f"{values}ull" if isinstance(values, int) else str(values)


@lru_cache(maxsize=64)
def crt_source(count: int, once: bool = False, plain: bool = True, narrow: bool = False) -> str:
    """Return kernels/crt.cu for a number of moduli, with one rounding at the end or two, a plain sum, and D in fp32."""
    epilogue = {"ONCE": bool(once), "PLAIN": bool(plain), "NARROW": bool(narrow)}
    return f"{definitions(count)}{struct(epilogue, 'Epilogue')}\n{source('crt.cu')}"


@lru_cache(maxsize=64)
def residues_source(count: int, words: int) -> str:
    """Return kernels/residues.cu for a number of moduli, and integers of some words of 15 bits."""
    factors = [[float(_centred(pow(2, 15 * j, p), p)) for p in ALL[:count]] for j in range(words)]
    constants = f"constexpr int PIECES = {words};\nconstexpr float FACTOR[PIECES][N] = {_initializer(factors)};\n"
    return definitions(count) + constants + source("residues.cu")


def words_of(longest: int) -> int:
    """Return the number of 15-bit words of integers below 2^longest in magnitude, with two bits to spare."""
    return -(-(longest + 2) // 15)


def _centred(x: int, p: int) -> int:
    return x - p * (2 * x > p)


def residues(work: Workspace, X: Rows, count: int, shifts: Buffer, sign: int, longest: int, flags: int) -> Buffer:
    """Queue the residues of trunc(x 2^(sign · shifts[row])), below 2^longest in magnitude: int8 (moduli, rows, width).

    Zeros fill the rows up to a multiple of 16 and the width up to one of 128. flags: address of two int32, zero at
    first, for whether a number was no integer, and the number of rows that became zero.
    """
    all_rows, width = padded(X.rows, 16), padded(X.K, 128)
    data = work.get(f"residues of {X.name}", count * all_rows * width)
    words, grid = words_of(longest), min(all_rows, 1 << 16)
    numbers = (X.pointer, X.pitch, X.rows, all_rows, X.K, shifts, sign, 0)
    out = (data, width, all_rows * width, flags)
    if words <= _WORDS:
        work.launch(residues_source(count, words), "residues_by_pieces", grid, 256, *numbers, *out)
        return data
    powers = np.zeros((longest + 1, padded(count, 4)), np.uint8)
    powers[:, :count] = [[pow(2, s, p) for p in ALL[:count]] for s in range(longest + 1)]
    table, text = work.table(powers), residues_source(count, 1)
    work.launch(text, "residues", grid, 256, *numbers, table, len(powers), *out, shared=powers.nbytes)
    return data


def multiply(
    x: ErrorFreeProduct,
    count: int,
    shifts: tuple[Buffer, Buffer],
    sign: int,
    longest: tuple[int, int],
    flags: int,
    *,
    once: bool,
) -> None:
    """Queue D from the residues of A' = A 2^(sign · shifts of rows) and B' = B 2^(sign · shifts of columns).

    `count` is the number of moduli, `longest` the bits of the integers of A' and of B', `flags` the address of the
    flags of `residues` for A and for B. `once`: the result is rounded once, as in mode CR; else the product is first.
    """
    work, (M, N, K) = x.work, x.shape
    a, b = (
        residues(work, X, count, shifts[i], sign, longest[i], flags + 8 * i).pointer for i, X in enumerate((x.A, x.B))
    )
    all_rows, columns, width = padded(M, 16), padded(N, 16), padded(K, 128)
    blocks = range(0, width, CHAIN)
    T, parts = panels(x, count * len(blocks), 4)
    program = crt_source(count, once, x.plain or not once, bool(x.end["D"]["narrow"][0]))
    for first, rows, multiplied in parts:
        for block, k in enumerate(blocks):
            A = Stack(a + first * width + k, width, all_rows * width)
            B = Stack(b + k, width, columns * width)
            sizes = (multiplied, columns, min(CHAIN, width - k))
            work.queue(Gemm("int8", *sizes, A, B, T.stack(block, len(blocks)), count))
        if len(blocks) > 1:
            work.launch(program, "fold", 1 << 14, 256, T.pointer, T.stride, len(blocks))
        products = (T.pointer, len(blocks) * T.stride, T.pitch, rows, N)
        work.launch(program, "rebuild", x.grid(rows), 256, *products, *shifts, sign, 0, first, x.end)


# --- scheme II

LONGEST = 1 << 18
"""Products of leading bits in one int32 sum: 2^12 · 2^18 = 2^30"""
_SPARE = 12  # bits of an integer beyond the square root of P
_FLAGS = [("incomplete", "i4"), ("vanished", "i4")]  # struct Cutting of residues.cu
_CONDITIONS = np.dtype([("flags", _FLAGS, 2), ("norms", "f8", 2)])  # of A and of B


def scheme2(x: ErrorFreeProduct, scheme: Ozaki2, spec: Any, paired: bool = False) -> Report:
    """Compute D = alpha · (A B by the scheme) + beta · C; return the report. Waits for the GPU.

    paired : as of `powers_of_two`
    """
    if scheme.rounding != "truncate":
        raise InputError(f"ozaki2: rounding={scheme.rounding!r} with these options runs on the CPU and on Hopper alone")
    basis, K = scheme.basis(), x.shape[2]
    count, P = len(basis.moduli), basis.product
    conditions = x.work.zeros("conditions", _CONDITIONS.itemsize)
    powers = x.work.get("powers of A", 4 * x.A.rows), x.work.get("powers of B", 4 * x.B.rows)
    norms = 0 if scheme.scaling == "accurate" else conditions.pointer + 16
    powers_of_two(x, row_sums(x, scheme.scaling), scheme, powers, norms, paired=paired)
    longest = P.bit_length() // 2 + _SPARE
    multiply(x, count, powers, 1, (longest, longest), conditions.pointer, once=False)
    results = conditions.array(1, _CONDITIONS)[0]
    size, worst = (P - 1) // 2 * 2 + 0.0, None
    if scheme.scaling == "fast":
        size = 2 * math.prod(np.sqrt(results["norms"]).tolist()) * _upward(K)
        if size >= basis.limit:
            size, worst = _check(x, powers, basis.limit)
    complete = not results["flags"]["incomplete"].any()
    return scheme.report(scheme.plan_for(spec, K), size, worst, results["flags"]["vanished"].tolist(), complete)


class Sums(NamedTuple):
    """Of every row the exponent at which its power of two begins, and the sum that bounds it."""

    first: Buffer  # int32
    values: Buffer
    kind: int  # of `values`: int32, uint64, float64


def row_sums(x: ErrorFreeProduct, rule: str) -> list[Sums]:
    """Queue the sums of A and B from which a rule determines powers of two: of leading bits, or of squares."""
    work, sides, K, text = x.work, (x.A, x.B), x.shape[2], source("scaling.cu")
    row_bytes = 8 * K if most_shared() >= 8 * K else 0  # in shared memory; longer rows are read again
    width = padded(K, 128)
    blocks = range(0, width, LONGEST)  # of K, each with an int32 sum
    result, leading = [], []
    for X in sides:
        kind = 2 if rule != "accurate" else int(len(blocks) > 1)
        first, values = work.get(f"first of {X.name}", 4 * X.rows), work.zeros(f"sums of rows of {X.name}", 8 * X.rows)
        result.append(Sums(first, values, kind))
        if rule != "accurate":
            row = (*X.arguments, row_bytes > 0, values, first, X.special)
            work.launch(text, "squares", min(X.rows, 1 << 16), 512, *row, shared=row_bytes)
            continue
        all_rows = padded(X.rows, 16)
        leading.append(work.get(f"leading of {X.name}", all_rows * width))
        sizes = (X.pointer, X.pitch, X.rows, all_rows, K, row_bytes > 0)
        out = (leading[-1], width, first, X.special)
        work.launch(text, "leading", min(all_rows, 1 << 16), 512, *sizes, *out, shared=row_bytes)
    if not leading:
        return result
    T, parts = panels(x, len(blocks), 4)
    a, b = (each.values.pointer for each in result)
    for start, rows, multiplied in parts:
        for block, k in enumerate(blocks):
            A, B = (Stack(each.pointer + at * width + k, width) for each, at in zip(leading, (start, 0), strict=True))
            length = min(LONGEST, width - k)
            work.queue(Gemm("int8", multiplied, padded(x.B.rows, 16), length, A, B, T.stack(block, 0)))
        grid = (min(-(-x.B.rows // 256), 1024), max(1, min(multiplied // 32, 64)))
        kernel, long = ("largest_sums", ()) if len(blocks) == 1 else ("largest_long_sums", (len(blocks), T.stride))
        largest = (a + (4 if len(blocks) == 1 else 8) * start, b)
        work.launch(text, kernel, grid, 256, T.pointer, *long, T.pitch, rows, x.B.rows, *largest)
    return result


def powers_of_two(
    x: ErrorFreeProduct, sums: list[Sums], scheme: Ozaki2, out: Sequence[Any], norms: int = 0, *, paired: bool = False
) -> None:
    """Queue mu of every row of A and nu of every column of B to `out`, int32, from `row_sums`.

    norms : address of two doubles, zero at first, that receive bounds on the sums of squares of the rows of A' and the
    columns of B'; 0: none. paired : columns 2n and 2n + 1 of B belong to one column of a complex matrix
    """
    h, g = scaled_limit(scheme.basis().product, x.shape[2], scheme.scaling, scheme.rounding == "nearest")
    for i, (X, each) in enumerate(zip((x.A, x.B), sums, strict=True)):
        rule = (h, g, scheme.scaling == "fast", paired and i == 1 and each.kind < 2, out[i], norms and norms + 8 * i)
        x.work.launch(source("scaling.cu"), "powers", -(-X.rows // 256), 256, X.rows, *each, *rule)


@lru_cache(maxsize=64)
def scaled_limit(P: int, K: int, rule: str, nearest: bool = False) -> tuple[int, float]:
    """Return h and g of the limit g 4^h of a rule, g in [1, 4) cut to 51 fraction bits."""
    return crt.scaled(Fraction(P - 1, 8) if rule == "fast" else crt.limit(P, K, nearest))


def _upward(K: int) -> float:
    """Return a factor that is more than what K additions and a few operations round off."""
    return 1 + (K + 8) * 2.0**-52


def _check(x: ErrorFreeProduct, powers: tuple[Buffer, Buffer], limit: float) -> tuple[float, tuple[int, int] | None]:
    """Return a bound of 2 sum|a'||b'| by one fp64 product, and the index of its maximum if it reaches the limit."""
    work, (M, N, K), text = x.work, x.shape, source("scaling.cu")
    width = padded(K, 16)
    a, b = (work.zeros(f"sizes of {X.name}", 8 * X.rows * width) for X in (x.A, x.B))
    for X, power, sizes in zip((x.A, x.B), powers, (a, b), strict=True):
        work.launch(text, "sizes", min(X.rows, 1 << 16), 256, *X.arguments, power, sizes, width)
    T = work.get("products", 8 * M * N)
    work.queue(Gemm("fp64", M, N, width, Stack(a.pointer, width), Stack(b.pointer, width), Stack(T.pointer, N)))
    place, most = work.zeros("largest place", 16), work.zeros("largest sum", 8)
    for kernel in ("largest_double", "where_double"):
        work.launch(text, kernel, 1024, 256, T, M * N, most, place)
    bound = 2 * float(most.array(1, np.float64)[0]) * _upward(K)
    return bound, None if bound < limit else divmod(M * N - int(place.array(1, np.int64)[0]), N)
