"""Sums of exact products of slices on the GPU: in the operands' format and a stated order, or exact, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fpemu.formats import FloatFormat
from fpemu.gpu.errorfree.machine import Workspace, source
from fpemu.gpu.errorfree.operands import CARRIERS, Digits, padded
from fpemu.gpu.errorfree.residues import panel
from fpemu.gpu.runtime.cublas import Strides

_MOST = 64  # as in kernels/exact_sums.cu
PAIRS = np.dtype([("a", "i4", _MOST), ("b", "i4", _MOST), ("more", "i4", _MOST), ("count", "i4"), ("parts", "i4")])
_AT_ONCE = 16  # products held at a time
_TAME = 900  # exponents this near to zero leave products and their powers of two exact
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
    a: Digits,
    b: Digits,
    terms: Sequence[Term],
    k_block: int,
    first: int,
    rows: int,
    T: int,
    stride: int,
    pitch: int,
) -> None:
    """Queue the products of some terms for some rows of A: a T for every k-block of every term, one after another."""
    size = CARRIERS[a.kind][1]
    blocks = range(0, a.width, k_block)
    start = 0
    while start < len(terms):
        # neighbours that differ by one slice of A, and none or one of B, are a batch
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
            work.machine.gemm(
                a.kind,
                rows,
                b.all_rows,
                K,
                a.place(p) + size * (first * a.stride + k),
                Strides(a.stride, a.width),
                b.place(q) + size * k,
                Strides(b.stride, -step * b.width),
                T + (8 if a.kind == "fp64" else 4) * (start * len(blocks) + block) * stride,
                Strides(pitch, len(blocks) * stride),
                batch=count,
            )
        start += count


class Sum(NamedTuple):
    """A sum in floating point.

    Parameters
    ----------
    terms : list of Term
        In their order.
    by_tops : bool
        Exponents are tops and the terms' `more`, not those of the slices.
    fmt : FloatFormat
        The format of the additions.
    k_block : int
        Length in k of what one product sums.
    """

    terms: list[Term]
    by_tops: bool
    fmt: FloatFormat
    k_block: int


def add_up(
    work: Workspace, a: Digits, b: Digits, M: int, N: int, how: Sum, may_overflow: bool, K: int, end: Any
) -> None:
    """D from the sum of the terms, finished."""
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
    # tops are the exponents of first slices and the bits of one (26 at most); the terms' `more` takes the others off
    farthest = a.deepest + b.deepest + 52 + max((abs(term.more) for term in how.terms), default=0)
    tame = parts == 1 and not may_overflow and farthest <= _TAME and (not narrow or a.kind != "fp64")
    exponents = (a.tops, b.tops) if how.by_tops else (a.exponents, b.exponents)
    for first in range(0, M, rows):
        some, held = min(rows, M - first), min(rows, a.all_rows - first)
        grid = (-(-N // 256), min(some, 65535))
        for start in range(0, len(how.terms), at_once):
            terms = how.terms[start : start + at_once]
            queue_products(work, a, b, terms, how.k_block, first, held, T.pointer, stride, pitch)
            pairs = np.zeros(1, PAIRS)
            for name in ("p", "q", "more"):
                column = {"p": "a", "q": "b"}.get(name, name)
                if name == "more" or not how.by_tops:
                    pairs[column][0, : len(terms)] = [getattr(term, name) for term in terms]
            pairs["count"], pairs["parts"] = len(terms), parts
            products = (T, np.int32(_PRODUCT.get(a.kind, 1)), stride, pitch, np.int32(some), np.int32(N), pairs)
            sides = (exponents[0], np.int32(a.all_rows), exponents[1], np.int32(b.all_rows))
            last = (np.int32(first), np.int32(start == 0))
            if tame:
                work.machine.launch(
                    source("exact_sums.cu"),
                    "add_tame_products",
                    (grid[0], min(-(-some // 4), 65535)),
                    256,
                    total,
                    np.int32(narrow),
                    *products,
                    *sides,
                    *last,
                )
                continue
            work.machine.launch(
                source("exact_sums.cu"),
                "add_products",
                grid,
                256,
                total,
                spare,
                np.int32(narrow),
                *products,
                *sides,
                a.tops,
                b.tops,
                np.int32(back),
                *last,
            )
        work.machine.launch(
            source("exact_sums.cu"),
            "finish",
            grid,
            256,
            total,
            spare,
            np.int32(narrow),
            np.int32(some),
            np.int32(N),
            a.tops,
            b.tops,
            np.int32(back),
            np.int32(first),
            end,
        )


def round_exactly(
    work: Workspace, a: Digits, b: Digits, M: int, N: int, bits: int, room: int, plain: bool, end: Any
) -> int:
    """D from the exact sum of all products of slices on one grid, `room` of them in one accumulator; how many T."""
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
        some, held = min(rows, M - first), min(rows, a.all_rows - first)
        for i, term in enumerate(terms):
            queue_products(
                work, a, b, [term], term.length * a.width, first, held, T.pointer + item * i * stride, stride, pitch
            )
        digits = terms[-1].more // 32 + 3
        work.machine.launch(
            source("exact_sums.cu"),
            "round_products",
            (-(-N // 256), min(some, 65535)),
            256,
            T,
            np.int32(_PRODUCT.get(a.kind, 1)),
            stride,
            pitch,
            np.int32(some),
            np.int32(N),
            np.int32(len(terms)),
            offsets,
            np.int32(digits),
            a.tops,
            b.tops,
            np.int32(-(s + t) * bits),
            np.int32(first),
            np.int32(plain),
            end,
        )
    return len(terms)
