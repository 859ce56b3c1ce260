"""Exact products of integers on the GPU by their residues: int8 products through cuBLAS, and back by the CRT.

Besides the moduli of `fpemu.schemes.errorfree.crt` there are smaller primes here, 48 moduli in all: enough for exact
products of any two matrices whose rows and columns spread over some 150 bits each, which is how CR mode is computed
without slices: its result is the exact sum rounded once, however the sum is found.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpemu.gpu.errorfree.machine import Memory, Workspace, source
from fpemu.gpu.errorfree.operands import Rows, padded
from fpemu.gpu.runtime.cublas import Strides
from fpemu.schemes.errorfree.crt import MODULI

ALL = (
    *MODULI,
    167,
    163,
    157,
    151,
    149,
    139,
    137,
    131,
    127,
    113,
    109,
    107,
    103,
    101,
    97,
    89,
    83,
    79,
    73,
    71,
    67,
    61,
    59,
    53,
    47,
    43,
    41,
    37,
)
"""Pairwise coprime; N moduli are the first N."""
CHAIN = 1 << 16
"""Products of int8 in one int32 sum: 2^14 · 2^16 = 2^30."""
_PIECES = 8  # of 15 bits: more would not add up exactly in floats
PANEL = 12 << 30
"""Bytes of products held at a time, at most."""


def moduli_for(bits: int) -> int | None:
    """How many moduli it takes for integers |C| <= 2^bits, None if there are not enough.

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
    """The constants that kernels/crt.cu and residues.cu want before them."""
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
    """kernels/crt.cu for so many moduli."""
    kind = f"#define ONCE {int(once)}\n#define PLAIN {int(plain)}\n#define RESULT Binary{32 if narrow else 64}\n"
    return definitions(count) + kind + source("crt.cu")


@lru_cache(maxsize=64)
def residues_source(count: int, pieces: int) -> str:
    """kernels/residues.cu for so many moduli, and integers of so many pieces of 15 bits."""
    factors = [[_centred(pow(2, 15 * j, p), p) for p in ALL[:count]] for j in range(pieces)]
    rows = ", ".join("{" + ", ".join(f"{f}.0f" for f in row) + "}" for row in factors)
    own = f"constexpr int PIECES = {pieces};\nconstexpr float FACTOR[PIECES][N] = {{{rows}}};\n"
    return definitions(count) + own + source("residues.cu")


def pieces_of(longest: int) -> int:
    """Pieces of 15 bits that hold integers below 2^longest in magnitude: they have two bits to spare."""
    return -(-(longest + 2) // 15)


def _centred(x: int, p: int) -> int:
    return x - p * (2 * x > p)


class Residues(NamedTuple):
    """Residues of some rows: int8 (moduli, all_rows, width)."""

    data: Memory
    all_rows: int
    width: int
    found: Memory  # int32: whether a number was no integer; rows of which nothing is left

    @property
    def plane(self) -> int:
        """Bytes from one modulus to the next."""
        return self.all_rows * self.width


def residues(work: Workspace, X: Rows, count: int, shifts: Memory, sign: int, more: int, longest: int) -> Residues:
    """Residues of trunc(x 2^shift) with shift = sign · shifts[row] + more, below 2^longest in magnitude."""
    K, rows, name = X.loaded.K, X.loaded.rows, X.name
    all_rows, width = padded(rows, 16), padded(K, 128)
    data = work.get(f"residues of {name}", count * all_rows * width)
    found = work.zeros(f"cutting of {name}", 8)
    pieces = pieces_of(longest)
    grid, shift = min(all_rows, 1 << 16), (shifts, np.int32(sign), np.int32(more))
    given = (X.loaded.pointer, X.loaded.pitch, np.int32(rows), np.int32(all_rows), np.int32(K), *shift)
    if pieces <= _PIECES:
        program = residues_source(count, pieces)
        work.machine.launch(program, "residues_by_pieces", grid, 256, *given, data, width, all_rows * width, found)
        return Residues(data, all_rows, width, found)
    powers = np.zeros((longest + 1, padded(count, 4)), np.uint8)
    powers[:, :count] = [[pow(2, s, p) for p in ALL[:count]] for s in range(longest + 1)]
    work.machine.launch(
        residues_source(count, 1),
        "residues",
        grid,
        256,
        *given,
        work.table(powers),
        np.int32(len(powers)),
        data,
        width,
        all_rows * width,
        found,
        shared=powers.nbytes,
    )
    return Residues(data, all_rows, width, found)


class Exponents(NamedTuple):
    """A' = A 2^(sign · rows[i] + more), B' alike with columns[j]; `more` is what both add up to."""

    rows: Memory
    columns: Memory
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
    """D from the residues of A and of B, some rows at a time."""
    parts = -(-a.width // CHAIN)
    pitch = padded(b.all_rows, 32)
    rows = panel(work, M, count * parts * pitch * 4)
    T = work.get("products", count * parts * rows * pitch * 4)
    stride = rows * pitch
    program = crt_source(count, once, plain or not once, bool(end["D"]["narrow"][0]))
    for first in range(0, M, rows):
        some = min(rows, a.all_rows - first)
        for part in range(parts):
            k, length = part * CHAIN, min(CHAIN, a.width - part * CHAIN)
            work.machine.gemm(
                "int8",
                some,
                b.all_rows,
                length,
                a.data.pointer + first * a.width + k,
                Strides(a.width, a.plane),
                b.data.pointer + k,
                Strides(b.width, b.plane),
                T.pointer + 4 * part * stride,
                Strides(pitch, parts * stride),
                batch=count,
            )
        some = min(rows, M - first)
        if parts > 1:
            work.machine.launch(program, "fold", 1 << 14, 256, T, stride, np.int32(parts))
        work.machine.launch(
            program,
            "rebuild",
            (-(-N // 256), min(some, 65535)),
            256,
            T,
            parts * stride,
            pitch,
            np.int32(some),
            np.int32(N),
            exponents.rows,
            exponents.columns,
            np.int32(exponents.sign),
            np.int32(exponents.more),
            np.int32(first),
            end,
        )


def panel(work: Workspace, M: int, row_bytes: int) -> int:
    """Rows of D at a time, a multiple of 16."""
    most = min(PANEL, (work.machine.room() + work.held("products")) // 2)
    held = max(16, most // row_bytes // 16 * 16)
    pieces = -(-M // held)
    return min(padded(-(-M // pieces), 16), padded(M, 16))
