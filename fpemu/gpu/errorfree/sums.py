"""Sums of exact products of slices on the GPU: in a format and a stated order, or exact and rounded once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fpemu.formats import FloatFormat
from fpemu.gpu.errorfree import hopper
from fpemu.gpu.errorfree.operands import ErrorFreeProduct, Products, Slices, Term, panels, source
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.steps import Gemm, fields

_PAIRS = fields("64i4 a b more, i4 count parts")  # as in kernels/exact_sums.cu
_AT_ONCE = 16  # products in memory at a time
_EXACT_RANGE = 900  # products of numbers with smaller exponents, scaled by powers of two, are exact in fp64
TYPES = {"int8": (0, 4), "fp16": (1, 4), "bf16": (1, 4), "tf32": (1, 4), "fp32": (1, 4), "fp64": (2, 8)}
"""Code in kernels/exact_sums.cuh and bytes of the products of each format of slices."""


def _batches(terms: Sequence[Term]) -> Iterator[tuple[int, int, int]]:
    """Yield consecutive terms that one batch multiplies: the first, their number, and the step of B's slice.

    The slice of A advances by one, that of B by zero or minus one.
    """
    start = 0
    while start < len(terms):
        p, q, length, _ = terms[start]
        count, step = 1, terms[start + 1].q - q if start + 1 < len(terms) else 0
        while step in (0, -1) and terms[start + count : start + count + 1] and length == 1:
            if terms[start + count][:3] != (p + count, q + count * step, 1):
                break
            count += 1
        yield start, count, step if count > 1 else 0
        start += count


def queue_products(
    x: ErrorFreeProduct,
    a: Slices,
    b: Slices,
    terms: Sequence[Term],
    T: Products,
    first: int,
    rows: int,
    k_block: int | None = None,
) -> None:
    """Queue the products of some terms for some rows of A, each in blocks of `k_block` along K, by default in one.

    The blocks of each term are consecutive products of T.
    """
    if a.kind == "int8" and device.arch() == "sm_90a" and (k_block or a.width) >= a.width:
        for launch in hopper.slice_products(a, b, terms, T, first, rows):
            x.work.queue(launch)
        return
    blocks = range(0, a.width, k_block or a.width)
    for start, count, step in _batches(terms):
        p, q, length, _ = terms[start]
        for block, k in enumerate(blocks):
            K = length * a.width if len(blocks) == 1 else min(blocks.step, a.width - k)
            A, B = a.stack(p, 1, row=first, k=k), b.stack(q, step, k=k)
            D = T.stack(start * len(blocks) + block, len(blocks))
            x.work.queue(Gemm(a.kind, rows, b.all_rows, K, A, B, D, count))


def add_up(
    x: ErrorFreeProduct,
    a: Slices,
    b: Slices,
    terms: Sequence[Term],
    fmt: FloatFormat,
    k_block: int,
    *,
    by_tops: bool = False,
    may_overflow: bool = False,
) -> None:
    """Queue D from the sum of terms in their order, in a format, with products of length `k_block` along K.

    by_tops: exponents are the rows' tops and the terms' `more`, not those of the slices. may_overflow: sums are kept a
    second time, brought down by a power of two.
    """
    work, (_, N, K), text = x.work, x.shape, source("exact_sums.cu")
    kind, item = TYPES[a.kind]
    parts, at_once = -(-a.width // k_block), max(1, min(_AT_ONCE, len(terms)))
    narrow = fmt.name == "fp32"
    T, rows_at_once = panels(x, at_once * parts, item, more=N * 16)
    nbytes = T.stride // T.pitch * N * (4 if narrow else 8)
    total = work.get("sums", nbytes)
    spare = work.get("sums brought down", nbytes) if may_overflow else 0
    back = K.bit_length() + 2 - fmt.emax
    # a top is the exponent of the first slice plus its bits (26 at most); the terms' `more` accounts for later slices
    farthest = a.deepest + b.deepest + 52 + max((abs(term.more) for term in terms), default=0)
    exact = parts == 1 and not may_overflow and farthest <= _EXACT_RANGE and (not narrow or a.kind != "fp64")
    exponents = (a.tops, a.all_rows, b.tops, b.all_rows)
    if not by_tops:
        exponents = (a.exponents, a.all_rows, b.exponents, b.all_rows)
    for first, rows, multiplied in rows_at_once:
        for start in range(0, len(terms), at_once):
            some = terms[start : start + at_once]
            queue_products(x, a, b, some, T, first, multiplied, k_block)
            pairs = np.zeros(1, _PAIRS)
            pairs["count"], pairs["parts"] = len(some), parts
            p, q, _, more = zip(*some, strict=True)
            for name, values in (("more", more),) if by_tops else (("a", p), ("b", q), ("more", more)):
                pairs[name][0, : len(some)] = values
            products = (T.pointer, kind, T.stride, T.pitch, rows, N, pairs, *exponents)
            if exact:
                grid = (-(-N // 256), min(-(-rows // 4), 65535))
                work.launch(text, "add_tame_products", grid, 256, total, narrow, *products, first, start == 0)
                continue
            scaled = (total, spare, narrow, *products, a.tops, b.tops, back, first, start == 0)
            work.launch(text, "add_products", x.grid(rows), 256, *scaled)
        result = (total, spare, narrow, rows, N, a.tops, b.tops, back, first, x.end)
        work.launch(text, "finish", x.grid(rows), 256, *result)


def round_exactly(x: ErrorFreeProduct, a: Slices, b: Slices, bits: int, longest: int) -> None:
    """Queue D from the exact sum of all products of slices on one grid, whose units are `bits` bits apart.

    longest: products that one accumulator holds exactly.
    """
    s, t, (kind, item) = a.slices, b.slices, TYPES[a.kind]
    terms = []
    for g in range(s + t - 2, -1, -1):  # the lowest weight first
        p, last = max(0, g - t + 1), min(g, s - 1)
        terms += [
            Term(i, g - i, min(longest, last + 1 - i), (s + t - 2 - g) * bits) for i in range(p, last + 1, longest)
        ]
    T, parts = panels(x, len(terms), item)
    offsets = x.work.table(np.array([term.more for term in terms], np.int32))
    for first, rows, multiplied in parts:
        queue_products(x, a, b, terms, T, first, multiplied)
        products = (T.pointer, kind, T.stride, T.pitch, rows, x.B.rows, len(terms), offsets)
        scale = (terms[-1].more // 32 + 3, a.tops, b.tops, -(s + t) * bits, first, x.plain)
        x.work.launch(source("exact_sums.cu"), "round_products", x.grid(rows), 256, *products, *scale, x.end)
