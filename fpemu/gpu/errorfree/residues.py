"""Exact products of integers on the GPU by their residues: int8 products through cuBLAS, and back by the CRT.

Smaller primes follow the moduli of `fpemu.schemes.errorfree.crt`, 48 moduli in all: they suffice for exact products of
matrices whose rows and columns each span up to about 150 bits. Mode CR is computed by them without slices, because its
result is the exact sum rounded once, by whatever method.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpemu.gpu.errorfree.machine import Workspace, int32, source
from fpemu.gpu.errorfree.operands import Rows, padded
from fpemu.gpu.runtime.constants import struct
from fpemu.gpu.runtime.cublas import Stack
from fpemu.gpu.runtime.device import Buffer
from fpemu.schemes.errorfree.crt import MODULI

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
