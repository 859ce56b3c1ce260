"""Cells of a sweep on the GPU: operands, emulated products of split schemes, exact products, relative errors.

Matrices stay on the GPU. Each function has the bits of its counterpart on the CPU, or returns None for numbers outside
the range of its kernels; the caller then computes on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fpemu.gpu.emulation import chains
from fpemu.gpu.emulation.specification import format_type
from fpemu.gpu.errorfree import gemm as errorfree
from fpemu.gpu.errorfree.operands import Workspace, source
from fpemu.gpu.gemm.splitting import definition
from fpemu.gpu.runtime.device import Buffer, multiprocessors, per_device
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.modules import module
from fpemu.gpu.runtime.steps import fields
from fpemu.mma.gemm import _slices, carrier
from fpemu.mma.order import KOrder
from fpemu.mma.spec import MmaSpec
from fpemu.schemes.base import build
from fpemu.schemes.lowering import Lowering
from fpemu.schemes.words import Word

Sizes = tuple[int, int, int]
_SUMS = fields("8u8 sum, 8i4 band, i4 count exponent as_run in_double")  # struct Sums of kernels/cell.cu
_BINS = 34  # as there
_NOT_FINITE = 0x80  # as in kernels/split.cuh


@per_device()
def _work() -> Workspace:
    """Return the buffers of cells on the current GPU."""
    return Workspace()


def _launch(kernel: str, *arguments: Any, text: str = "") -> None:
    _work().launch(text or source("cell.cu"), kernel, 4 * multiprocessors(), 256, *arguments)


def uniform(seed: np.random.SeedSequence, count: int, low: float, span: float) -> Buffer:
    """Return low + span · u rounded to fp32, u the numbers that ``Generator(PCG64(seed)).random(count)`` returns."""
    state = np.random.PCG64(seed).state["state"]
    words = [part for name in ("state", "inc") for part in divmod(state[name], 1 << 64)]
    out = Buffer(4 * count)
    _launch("draw", out, count, _work().table(np.array(words, np.uint64)), low, span)
    return out


def fits(sizes: Sizes) -> bool:
    """Return whether the matrices of a cell fit into the GPU, 32 bytes an entry with their words and residues."""
    M, N, K = sizes
    return max(M * K, K * N, M * N) * 32 <= chains._most() and max(sizes) <= chains._LONGEST


def gains(sizes: Sizes) -> bool:
    """Return whether a cell is faster on the GPU than on the CPU."""
    return chains.chain_gains((1, *sizes[:2]), sizes[2])


def supports(lowering: Lowering, spec: MmaSpec, sizes: Sizes) -> bool:
    """Return whether `product` computes these sums: no split-K, fp32 carriers, matrices that fit into its buffers."""
    accumulators, (M, N, K) = lowering.accumulators, sizes
    longest = max(len(acc.products) for acc in accumulators) * (K + spec.k)
    return (
        lowering.block is None
        and len(accumulators) <= 8
        and all(isinstance(acc.order, KOrder) and acc.order.split is None for acc in accumulators)
        and carrier(spec.a_format) is np.float32
        and str(spec.d_format) == "fp32"
        and 4 * max(M * N, max(M, N) * longest) <= chains._most()
        and longest <= chains._LONGEST
    )


@lru_cache(maxsize=64)
def _split_source(rules: tuple[Word, ...]) -> str:
    """Return the kernel that splits by some rules."""
    low = format_type(rules[0].format)
    return f'#include "split.cuh"\n{definition(rules)}typedef {low} Low;\n{source("cell_words.cu")}'


def product(
    A: Buffer,
    B: Buffer,
    sizes: Sizes,
    rules: Mapping[str, Sequence[Word]],
    lowering: Lowering,
    spec: MmaSpec,
    *,
    overflow_is_error: bool,
) -> Buffer | None:
    """Return `fpemu.schemes.lowering.run` of the words of A and B, fp32 (M, N); the next call overwrites the buffer.

    A (M, K) and B (K, N) are fp32; `rules` has the words of "A" and of "B". None if an entry is NaN or infinite, or if
    a word overflows and `overflow_is_error`.
    """
    work, (M, N, K) = _work(), sizes
    found, zeros = work.zeros("found", 4), work.zeros("zeros", 4 * M * N)
    refused = 0xFF if overflow_is_error else _NOT_FINITE
    sums: list[tuple[int, Buffer]] = []
    for number, acc in enumerate(lowering.accumulators):
        part = _slices(acc.order, K, len(acc.products), acc.turn, spec.k)[0]
        places = np.full((3, part.length), -1, np.int32)  # a k, the word of A, the word of B
        for term, k, place in part.copies:
            places[0, place], (places[1, place], places[2, place]) = np.arange(k.start, k.stop), acc.products[term]
        # one table, because a later one may free those before it; the last four bytes are the index of A and of B
        parts = places.view(np.uint8).ravel(), np.zeros(4, np.uint8), part.ends.view(np.uint8)
        table = work.table(np.concatenate(parts))
        at = [table.pointer + 4 * part.length * row for row in range(4)]
        words = []
        for name, X, word, (outer, inner) in (("A", A, at[1], (M, 1)), ("B", B, at[2], (1, N))):
            out = work.get(f"words of {name}", 4 * outer * inner * part.length)
            shape = (outer, K, part.length, inner)
            _launch("lay_out", X, out, at[0], word, *shape, refused, found, text=_split_source(tuple(rules[name])))
            words.append(out)
        D = work.get(f"sum {number}", 4 * M * N)
        numbers = [np.int32(size) for size in (M, N, part.length, part.ends.any())]
        arguments = (*words, zeros, D, at[3], at[3], at[3] + 4, *numbers)
        gemm, tiles = module(chains.source(spec), "emulated_gemm.cu"), chains._tiles((1, M, N))
        work.queue(gemm.step("gemm", tiles, chains.THREADS, *arguments))
        sums.append((acc.band, D))
    D = work.get("D", 4 * M * N)
    _combine(sums, lowering, D, M * N)
    return None if found.array(1, np.int32)[0] else D


def _combine(sums: list[tuple[int, Buffer]], lowering: Lowering, D: Buffer, count: int) -> None:
    """Queue the sum of the accumulators, `fpemu.schemes.lowering._combined`."""
    as_run = lowering.join == "as-run"
    ordered = sums if as_run else sorted(sums, key=lambda one: -one[0])
    record = np.zeros(1, _SUMS)
    record["band"][0, : len(sums)] = [band for band, _ in ordered]
    record["sum"][0, : len(sums)] = [buffer.pointer for _, buffer in ordered]
    for name, value in (("count", len(sums)), ("exponent", lowering.exponent), ("as_run", as_run)):
        record[name] = value
    record["in_double"] = lowering.in_double
    _launch("combine", record, D, count)


def exact(A: Buffer, B: Buffer, sizes: Sizes, dtype: Any, work: Workspace | None = None) -> Buffer | None:
    """Return the product of A (M, K) and B (K, N) of a dtype, rounded once to fp64: the Ozaki scheme in mode CR."""
    (M, N, K), scheme, dtype = sizes, build("ozaki", {"mode": "CR"}), np.dtype(dtype)
    D = Buffer(8 * M * N)
    kinds = ((A, dtype, (M, K)), (B, dtype, (K, N)), (D, np.dtype(np.float64), (M, N)))
    a, b, d = (Matrix(X.pointer, kind, shape, (shape[1], 1), X) for X, kind, shape in kinds)
    spec = scheme.spec("hopper")
    assert spec is not None
    return D if errorfree.gemm(a, b, d, scheme, spec, work=work).ok else None


def norms(C: Buffer, dtype: Any, R: Buffer, count: int) -> tuple[tuple[float, int], tuple[float, int]] | None:
    """Return the norms of C - R and of R (fp64) as `fpemu.metrics.analysis.norm` does, C of a dtype.

    None if an entry of C or R is NaN or infinite, or its binary exponent is beyond ±400.
    """
    work, blocks, narrow = _work(), 4 * multiprocessors(), np.dtype(dtype) == np.float32
    maxima = work.get("maxima", 24 * blocks)
    _launch("compare", C, narrow, R, count, maxima)
    *largest, irregular = maxima.array((blocks, 3), np.uint64).max(axis=0)
    if irregular:
        return None
    tops = [math.frexp(float(code.view(np.float64)))[1] for code in largest]
    sums = work.zeros("sums", 16 * _BINS)
    _launch("squares", C, narrow, R, count, *(math.ldexp(1.0, -top) for top in tops), sums)
    roots = []
    for bins in sums.array((2, _BINS), np.uint64).tolist():
        total = sum(digit << 32 * place for place, digit in enumerate(bins))
        roots.append(math.sqrt(total / (1 << 1074)))  # the quotient of integers is rounded once
    return (roots[0], tops[0]), (roots[1], tops[1])
