"""Run the panels of a kernel on threads; the two arithmetics without a kernel, on half precision and on integers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from fpemu._system import map_tasks, threads
from fpemu.errors import InputError
from fpemu.mma.arithmetic import Operands
from fpemu.mma.compiled.panel import WIDTH, panels
from fpemu.mma.spec import MmaSpec
from fpemu.rounding import _mixed_seed

_SMALL = 2**18  # multiply-adds below which threads are not worth starting
_ROWS = 256  # most rows of a task
_LONG = 2**15  # k of a panel at a time: 12 MB a thread


def run(params: Any, x: Operands, spec: MmaSpec) -> NDArray[Any]:
    """Compute `fpemu.mma.reference.chain` by the kernel of these parameters."""
    if getattr(numba.config, "DISABLE_JIT", 0):
        raise InputError("NUMBA_DISABLE_JIT is set, and the kernels need numba's compiler: unset it")
    # contiguous operands and writable indices: Numba compiles a kernel for each combination of array types
    A, B, C = (np.ascontiguousarray(words) for words in (x.A, x.B, x.C))
    index_a, index_b, cuts = np.array(x.index_a), np.array(x.index_b), x.cuts
    dtype = spec.outer_dtype if cuts.any() else C.dtype
    out = C if dtype == C.dtype else np.empty(C.shape, dtype)  # in place: a row of C is read before it is written
    operands, emins = (A, B, index_a, index_b), tuple(fmt.emin for fmt in spec.operand_formats[:2])
    width = min(WIDTH, -(-B.shape[-1] // 16) * 16)
    per = spec.words // len(params.block)
    seed, unused, (above, begun) = np.uint64(0), np.uint64(0), map(np.uint64, x.first)
    stochastic: tuple[int, ...] = ()
    if spec.final == "SR":
        seed, unused, stochastic = _mixed_seed(spec.seed), np.uint64(64 - (spec.random_bits or 0)), (0,)
    promote, workers = bool(cuts.any()), threads()
    products, M, N = C.shape
    rows = _ROWS if N > WIDTH else min(_ROWS, max(16, -(-M // workers)))
    # small products share a task: starting a task takes longer than computing one of them
    group = min(-(-products // workers), max(1, _SMALL // (min(rows, M) * width * A.shape[-1])))

    most = max(_LONG // spec.words, 1)  # instructions of a panel at a time
    stretches = [(0, len(cuts))] if len(cuts) <= most else _stretches(cuts, most)

    def task(corner: tuple[int, int, int]) -> None:
        product, row, first = corner
        some, at, start = (product, min(product + group, products)), ((row, rows), (first, width)), C
        for lo, hi in stretches:
            random = (seed, unused, above, begun + np.uint64(lo * per), stochastic)
            panels(params, operands, some, *at, lo * spec.words, start, cuts[lo:hi], promote, per, emins, random, out)
            start = out

    tasks = [(p, i, j) for p in range(0, products, group) for j in range(0, N, width) for i in range(0, M, rows)]
    if C.size * A.shape[-1] < _SMALL or len(tasks) < 3:
        for corner in tasks:
            task(corner)
    else:
        map_tasks(task, tasks)
    return out


def _stretches(cuts: NDArray[np.bool_], most: int) -> list[tuple[int, int]]:
    """Divide a long K into stretches of about `most` instructions, so that a panel's copy of B stays small.

    With promotion a stretch ends where a chain ends: between chains only the outer sum is carried on.
    """
    ends = [*range(most, len(cuts), most)] if not cuts.any() else []
    if cuts.any():
        at = 0
        for end in np.flatnonzero(cuts) + 1:
            if end - at >= most:
                ends.append(int(end))
                at = int(end)
    bounds = sorted({0, *ends, len(cuts)})
    return list(pairwise(bounds))


def via_half(x: Operands, spec: MmaSpec) -> NDArray[Any]:
    """Each instruction is a chain of two half-precision instructions from zero, added to C with one rounding.

    For fp16 the sum is rounded to fp32 and then to fp16, which equals one rounding (24 >= 2 * 11 + 2).
    """
    half, fmt = spec.issued, spec.operand_formats[3]
    A, B, C, cuts = x.A, x.B, x.C, x.cuts
    for i in range(0, C.shape[-2], _ROWS):  # some rows at a time, to bound the memory of the intermediate sums
        rows = slice(i, i + _ROWS)
        outer = C[:, rows].copy()
        d = np.zeros_like(outer) if cuts.any() else outer
        for q, cut in enumerate(cuts):
            ks = q * spec.k + spec.k_order
            zero = np.zeros_like(outer)
            words = Operands(A[:, rows][..., ks], B[:, ks], x.index_a, x.index_b, zero, np.zeros(2, bool))
            part = half.rules.chain(words, half)
            d = (d + part).astype(fmt.dtype).astype(np.float32)
            if cuts.any() and cut:
                outer += d
                d = np.zeros_like(d)
        C[:, rows] = outer if cuts.any() else d
    return C


def integer(x: Operands, spec: MmaSpec) -> NDArray[Any]:
    """Exact modulo 2^32: the fp32 sum of 1024 int8 products, or of 256 of uint8, is exact (2^24 at most)."""
    A, B, C = x.A, x.B, x.C
    step = 1024 if spec.a_format == spec.b_format == "int8" else 256
    for p, (i, j) in enumerate(zip(x.index_a, x.index_b, strict=True)):
        for k in range(0, A.shape[-1], step):
            b = B[j, k : k + step].astype(np.float32)
            for row in range(0, C.shape[-2], _ROWS):
                rows = slice(row, row + _ROWS)
                C[p, rows] += (A[i, rows, k : k + step].astype(np.float32) @ b).astype(np.int32)
    return C
