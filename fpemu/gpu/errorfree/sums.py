"""Sums of exact products of slices on the GPU: in a format and a stated order, or exact and rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fpemu.formats import FloatFormat
from fpemu.gpu.errorfree.operands import CARRIERS, Slices, Workspace, int32, padded
from fpemu.gpu.errorfree.residues import panel
from fpemu.gpu.runtime.cublas import Stack

_MOST = 64  # as in kernels/exact_sums.cu
PAIRS = np.dtype([("a", "i4", _MOST), ("b", "i4", _MOST), ("more", "i4", _MOST), ("count", "i4"), ("parts", "i4")])
_AT_ONCE = 16  # products in memory at a time
_EXACT_RANGE = 900  # products of numbers with smaller exponents, scaled by powers of two, are exact in fp64
_PRODUCT = {"int8": 0, "fp64": 2}


class Term(NamedTuple):
    """Products of slices added in one accumulator: (p, q), (p + 1, q - 1) ... `length` of them.

    `more` is added to the exponent of the product.
    """

    p: int
    q: int
    length: int = 1
    more: int = 0


def queue_products(
    work: Workspace,
    a: Slices,
    b: Slices,
    terms: Sequence[Term],
    k_block: int,
    first: int,
    rows: int,
    T: int,
    stride: int,
    pitch: int,
) -> None:
    """Queue the products of some terms and rows of A; consecutive matrices T are the k-blocks of each term."""
    size = CARRIERS[a.kind][1]
    blocks = range(0, a.width, k_block)
    start = 0
    while start < len(terms):
        # consecutive terms whose slice of A advances by one, and that of B by zero or one, form a batch
        p, q, length, _ = terms[start]
        count, step = 1, 0
        while start + count < len(terms) and length == 1 and terms[start + count].length == 1:
            other = terms[start + count]
            down = q + (count * step) - other.q if count > 1 else q - other.q
            if count == 1 and other.p == p + 1 and down in (0, 1):
                step = -down
                count += 1
            elif count > 1 and other.p == p + count and down == 0:
                count += 1
            else:
                break
        for block, k in enumerate(blocks):
            K = length * a.width if len(blocks) == 1 else min(k_block, a.width - k)
            A = Stack(a.place(p) + size * (first * a.stride + k), a.stride, a.width)
            B = Stack(b.place(q) + size * k, b.stride, -step * b.width)
            at = T + (8 if a.kind == "fp64" else 4) * (start * len(blocks) + block) * stride
            work.machine.gemm(a.kind, rows, b.all_rows, K, A, B, Stack(at, pitch, len(blocks) * stride), batch=count)
        start += count


class Sum(NamedTuple):
    """A sum in floating point.

    Parameters
    ----------
    terms : list of Term
        In their order.
    by_tops : bool
        The exponents are the rows' tops and the terms' `more` instead of those of the slices.
    fmt : FloatFormat
        Format of the additions.
    k_block : int
        Length along K of one product.
    """

    terms: list[Term]
    by_tops: bool
    fmt: FloatFormat
    k_block: int


def add_up(
    work: Workspace, a: Slices, b: Slices, M: int, N: int, how: Sum, may_overflow: bool, K: int, end: Any
) -> None:
    """Compute D from the sum of the terms."""
    parts = -(-a.width // how.k_block)
    item = 8 if a.kind == "fp64" else 4
    pitch, at_once = padded(N, 32), max(1, min(_AT_ONCE, len(how.terms)))
    narrow = how.fmt.name == "fp32"
    rows = panel(work, M, at_once * parts * pitch * item + N * 16)
    stride = rows * pitch
    T = work.get("products", at_once * parts * stride * item)
    total = work.get("sums", rows * N * (4 if narrow else 8))
    spare = work.get("sums brought down", rows * N * (4 if narrow else 8)) if may_overflow else 0
    back = K.bit_length() + 2 - how.fmt.emax
    # a top is the exponent of the first slice plus its bits (26 at most); the terms' `more` accounts for later slices
    farthest = a.deepest + b.deepest + 52 + max((abs(term.more) for term in how.terms), default=0)
    exact = parts == 1 and not may_overflow and farthest <= _EXACT_RANGE and (not narrow or a.kind != "fp64")
    exponents = (a.tops, b.tops) if how.by_tops else (a.exponents, b.exponents)
    for first in range(0, M, rows):
        count, held = min(rows, M - first), min(rows, a.all_rows - first)
        grid = (-(-N // 256), min(count, 65535))
        for start in range(0, len(how.terms), at_once):
            terms = how.terms[start : start + at_once]
            queue_products(work, a, b, terms, how.k_block, first, held, T.pointer, stride, pitch)
            pairs = np.zeros(1, PAIRS)
            for name in ("p", "q", "more"):
                column = {"p": "a", "q": "b"}.get(name, name)
                if name == "more" or not how.by_tops:
                    pairs[column][0, : len(terms)] = [getattr(term, name) for term in terms]
            pairs["count"], pairs["parts"] = len(terms), parts
            kind = _PRODUCT.get(a.kind, 1)
            products = (T, *int32(kind), stride, pitch, *int32(count, N), pairs)
            sides = (exponents[0], *int32(a.all_rows), exponents[1], *int32(b.all_rows))
            last = int32(first, start == 0)
            if exact:
                tile = (grid[0], min(-(-count // 4), 65535))
                work.launch(
                    "exact_sums.cu", "add_tame_products", tile, 256, total, *int32(narrow), *products, *sides, *last
                )
                continue
            scaled = (total, spare, *int32(narrow), *products, *sides, a.tops, b.tops, *int32(back), *last)
            work.launch("exact_sums.cu", "add_products", grid, 256, *scaled)
        result = (total, spare, *int32(narrow, count, N), a.tops, b.tops, *int32(back, first), end)
        work.launch("exact_sums.cu", "finish", grid, 256, *result)


def round_exactly(
    work: Workspace, a: Slices, b: Slices, M: int, N: int, bits: int, room: int, plain: bool, end: Any
) -> int:
    """Compute D from the exact sum of all products of slices on one grid; return the number of matrices T.

    room : int
        Products that one accumulator holds exactly.
    plain : bool
        D is the sum times a power of two.
    """
    s, t = a.slices, b.slices
    terms = []
    for g in range(s + t - 2, -1, -1):  # the lowest weight first
        p, last = max(0, g - t + 1), min(g, s - 1)
        terms += [Term(i, g - i, min(room, last + 1 - i), (s + t - 2 - g) * bits) for i in range(p, last + 1, room)]
    item = 8 if a.kind == "fp64" else 4
    pitch = padded(N, 32)
    rows = panel(work, M, len(terms) * pitch * item)
    stride = rows * pitch
    T = work.get("products", len(terms) * stride * item)
    offsets = work.table(np.array([term.more for term in terms], np.int32))
    for first in range(0, M, rows):
        count, held = min(rows, M - first), min(rows, a.all_rows - first)
        for i, term in enumerate(terms):
            at = T.pointer + item * i * stride
            queue_products(work, a, b, [term], term.length * a.width, first, held, at, stride, pitch)
        products = (T, *int32(_PRODUCT.get(a.kind, 1)), stride, pitch, *int32(count, N, len(terms)), offsets)
        scale = (*int32(terms[-1].more // 32 + 3), a.tops, b.tops, *int32(-(s + t) * bits, first, plain))
        work.launch("exact_sums.cu", "round_products", (-(-N // 256), min(count, 65535)), 256, *products, *scale, end)
    return len(terms)
