"""Choose the kernel for an arithmetic specification and run its panels on threads."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma.compiled.amd import Cdna3, Cdna3Fp8, Flushed
from fpemu.mma.compiled.exact import Exact
from fpemu.mma.compiled.fma import Fma16, Fma32, Fma64, Payloads64
from fpemu.mma.compiled.panel import WIDTH, panels
from fpemu.mma.compiled.truncated import Truncated32, Truncated64
from fpemu.mma.spec import MmaSpec
from fpemu.parallel import threads

_SMALL = 2**18  # multiply-adds below which threads are not worth starting
_ROWS = 256  # most rows of a task
_LONG = 2**15  # k of a panel at a time: 12 MB a thread


def chain(
    A: NDArray[Any],
    B: NDArray[Any],
    index_a: NDArray[Any],
    index_b: NDArray[Any],
    C: NDArray[Any],
    spec: MmaSpec,
    cuts: NDArray[np.bool_],
) -> NDArray[Any]:
    """Compute `fpemu.mma.numpy_chain.chain` for A (stack, M, K), B (stack, K, N), C (products, M, N) in their carriers.

    Product p is A[index_a[p]] B[index_b[p]] + C[p]. The three arrays are overwritten: C may become the result.
    """
    if spec.is_integer:
        return _integer(A, B, index_a, index_b, C)
    if getattr(numba.config, "DISABLE_JIT", 0):
        raise InputError("NUMBA_DISABLE_JIT is set, and the kernels need numba's compiler: unset it")
    if spec.arithmetic == "via-half":
        return _via_half(A, B, index_a, index_b, C, spec, cuts)
    if spec.arithmetic == "flushed":
        for x, fmt in zip((A, B), spec.operand_formats, strict=False):
            x[np.abs(x) < fmt.min_normal] = 0
    # contiguous operands and writable indices: Numba compiles a kernel for each combination of array types
    A, B, C = (np.ascontiguousarray(x) for x in (A, B, C))
    index_a, index_b = np.array(index_a), np.array(index_b)
    params = parameters(spec, bool(_bounded(A, B, C, spec)))
    dtype = spec.outer_dtype if cuts.any() else C.dtype
    out = C if dtype == C.dtype else np.empty(C.shape, dtype)  # in place: a row of C is read before it is written
    fa, fb, _, _ = spec.operand_formats
    width = min(WIDTH, -(-B.shape[-1] // 16) * 16)
    per = spec.k // len(params.block)

    promote = bool(cuts.any())
    products, M, N = C.shape
    rows = _ROWS if N > WIDTH else min(_ROWS, max(16, -(-M // threads())))
    # small products share a task: starting a task takes longer than computing one of them
    group = min(-(-products // threads()), max(1, _SMALL // (min(rows, M) * width * A.shape[-1])))

    def task(corner: tuple[int, int, int]) -> None:
        product, row, first = corner
        start = C
        for lo, hi in _stretches(cuts, max(_LONG // spec.k, 1)):
            panels(
                params,
                A,
                B,
                index_a,
                index_b,
                product,
                min(product + group, products),
                row,
                rows,
                lo * spec.k,
                first,
                width,
                start,
                cuts[lo:hi],
                promote,
                per,
                fa.emin,
                fb.emin,
                out,
            )
            start = out

    tasks = [(p, i, j) for p in range(0, products, group) for j in range(0, N, width) for i in range(0, M, rows)]
    task(tasks[0])  # alone: it may have to compile
    if C.size * A.shape[-1] < _SMALL or threads() == 1:
        for corner in tasks[1:]:
            task(corner)
    else:
        list(_pool().map(task, tasks[1:]))
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


def parameters(spec: MmaSpec, bounded: bool) -> Any:
    """Return the kernel's parameters; `bounded`: the values meet the float32 carrier's conditions."""
    _, _, _, d = spec.operand_formats
    block = (0,) * spec.block
    fraction = np.int64(spec.sum_fraction_bits)
    nearest = (0,) * (2 if spec.final == "RNE" else 1)
    if spec.arithmetic == "truncated":
        if bounded and _fits_float32(spec):
            fa, fb, _, _ = spec.operand_formats
            return Truncated32(block, np.int32(spec.F), np.int32(_lowest(fa, fb)))
        floor = -400 if spec.E0 is None else spec.E0  # -400: below every exponent
        return Truncated64(
            block, np.int64(spec.F), np.int64(floor), np.int64(d.emin), np.int64(d.emax), fraction, nearest
        )
    if spec.arithmetic == "exact":
        return Exact(block, np.int64(d.emin), np.int64(d.emax), fraction, nearest)
    if spec.arithmetic == "cdna3-fp8":
        return Cdna3Fp8(block, np.int64(25))
    if spec.arithmetic == "fma":
        if spec.payloads:
            return Payloads64(block, np.uint64(spec.nan_code or 0).astype(np.int64))
        return {"fp16": Fma16, "fp32": Fma32, "fp64": Fma64}[d.name](block)
    return Flushed((0,) * spec.k, block) if spec.arithmetic == "flushed" else Cdna3(block)


def _lowest(fa: FloatFormat, fb: FloatFormat) -> int:
    """Smallest exponent of a product; subnormals are not normalised."""
    return fa.emin + fb.emin


def _fits_float32(spec: MmaSpec) -> bool:
    """Whether the spec meets the float32 carrier's conditions (see `fpemu.mma.compiled.truncated`)."""
    fa, fb, _, d = spec.operand_formats
    narrow = fa.precision + fb.precision <= 22 and fa.emin + fb.emin >= -28 and fa.emax + fb.emax <= 30
    sums = spec.block * 2 ** (spec.F + 2) <= 2**31
    plain = d.name == "fp32" and spec.final == "RZ" and spec.fraction_bits in (None, 23)
    floor = spec.E0 is None or spec.E0 <= -126
    return narrow and sums and plain and floor and spec.F >= 23


def _bounded(A: NDArray[Any], B: NDArray[Any], C: NDArray[Any], spec: MmaSpec) -> bool:
    """Whether A, B and C are finite, and C so small that no sum reaches 2^127."""
    if spec.arithmetic != "truncated" or not _fits_float32(spec):
        return False
    limit = 2.0**120  # NaN compares false
    small = C.max(initial=0) <= limit and C.min(initial=0) >= -limit
    return bool(small and np.isfinite(A).all() and np.isfinite(B).all())


def _via_half(
    A: NDArray[Any],
    B: NDArray[Any],
    index_a: NDArray[Any],
    index_b: NDArray[Any],
    C: NDArray[Any],
    spec: MmaSpec,
    cuts: NDArray[np.bool_],
) -> NDArray[Any]:
    """Each instruction is a chain of two half-precision instructions from zero, added to C with one rounding.

    For fp16 the sum is rounded to fp32 and then to fp16, which equals one rounding (24 >= 2 * 11 + 2).
    """
    half, fmt = spec.half_precision(), spec.operand_formats[3]
    out = C
    for i in range(0, C.shape[-2], _ROWS):  # some rows at a time, to bound the memory of the intermediate sums
        rows = slice(i, i + _ROWS)
        outer = C[:, rows].copy()
        d = np.zeros_like(outer) if cuts.any() else outer
        for q, cut in enumerate(cuts):
            ks = q * spec.k + spec.k_order
            zero = np.zeros_like(outer)
            part = chain(A[:, rows][..., ks], B[:, ks], index_a, index_b, zero, half, np.zeros(2, bool))
            d = (d + part).astype(fmt.dtype).astype(np.float32)
            if cuts.any() and cut:
                outer += d
                d = np.zeros_like(d)
        out[:, rows] = outer if cuts.any() else d
    return out


def _integer(
    A: NDArray[Any], B: NDArray[Any], index_a: NDArray[Any], index_b: NDArray[Any], C: NDArray[Any]
) -> NDArray[Any]:
    """Exact modulo 2^32: the fp32 sum of 1024 int8 products is exact (2^14 each, 2^24 at most)."""
    for p, (i, j) in enumerate(zip(index_a, index_b, strict=True)):
        for k in range(0, A.shape[-1], 1024):
            b = B[j, k : k + 1024].astype(np.float32)
            for row in range(0, C.shape[-2], _ROWS):
                rows = slice(row, row + _ROWS)
                C[p, rows] += (A[i, rows, k : k + 1024].astype(np.float32) @ b).astype(np.int32)
    return C


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads(), thread_name_prefix="fpemu")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
