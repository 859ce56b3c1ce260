"""Choosing the kernel for a spec, and running its panels on threads."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FloatFormat
from fpemu.mma.compiled.amd import Cdna3, Cdna3Fp8, Flushed
from fpemu.mma.compiled.exact import Exact
from fpemu.mma.compiled.fma import Fma16, Fma32, Fma64
from fpemu.mma.compiled.panel import WIDTH, panel
from fpemu.mma.compiled.truncated import Truncated32, Truncated64
from fpemu.mma.readable import half_spec, outer_dtype
from fpemu.mma.spec import MmaSpec

_SMALL = 2**18  # multiply-adds below which threads are not worth starting
_ROWS = 256  # most rows of a task
_LONG = 2**15  # k of a panel at a time: 12 MB a thread


def chain(
    A: NDArray[Any], B: NDArray[Any], index_a: NDArray[Any], index_b: NDArray[Any], C: NDArray[Any], spec: MmaSpec,
    cuts: NDArray[np.bool_],
) -> NDArray[Any]:  # fmt: skip
    """As `fpemu.mma.readable.chain`, with A (stack, M, K), B (stack, K, N), C (products, M, N) in their carriers.

    Product p is A[index_a[p]] B[index_b[p]] + C[p].
    """
    if spec.is_integer:
        return _integer(A, B, index_a, index_b, C, cuts)
    if spec.arithmetic == "via-half":
        return _via_half(A, B, index_a, index_b, C, spec, cuts)
    if spec.arithmetic == "flushed":
        for x, fmt in zip((A, B), spec.operand_formats, strict=False):
            x[np.abs(x) < fmt.min_normal] = 0  # A and B are the caller's scratch: gathered copies
    params = parameters(spec, bool(_bounded(A, B, C, spec)))
    out = np.empty(C.shape, outer_dtype(spec) if cuts.any() else C.dtype)
    fa, fb, _, _ = spec.operand_formats
    width = min(WIDTH, -(-B.shape[-1] // 16) * 16)
    per = spec.k // len(params.block)

    promote = bool(cuts.any())

    def task(where: tuple[int, int, int]) -> None:
        p, row, first = where
        part = slice(row, row + rows)
        start = C[p][part]
        for lo, hi in _stretches(cuts, max(_LONG // spec.k, 1)):
            panel(
                params, A[index_a[p]][part], B[index_b[p]], lo * spec.k, first, width, start, cuts[lo:hi], promote, per,
                fa.emin, fb.emin, out[p][part],
            )  # fmt: skip
            start = out[p][part]

    M, N = C.shape[-2:]
    rows = _ROWS if N > WIDTH else min(_ROWS, max(16, -(-M // _threads())))
    tasks = [(p, i, j) for p in range(len(C)) for j in range(0, N, width) for i in range(0, M, rows)]
    task(tasks[0])  # alone: it may have to compile
    if C.size * A.shape[-1] < _SMALL or _threads() == 1:
        for where in tasks[1:]:
            task(where)
    else:
        list(_pool().map(task, tasks[1:]))
    return out


def _stretches(cuts: NDArray[np.bool_], most: int) -> list[tuple[int, int]]:
    """Cut a long K into stretches of about `most` instructions, so that a panel's copy of B stays small.

    With promotion a stretch ends where a chain does: between chains only the outer sum is alive.
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
    """The kernel's parameters; `bounded` says that the float32 carrier's conditions on the values hold."""
    _, _, _, d = spec.operand_formats
    block = (0,) * spec.block
    fraction = np.int64(d.fraction_bits if spec.fraction_bits is None else spec.fraction_bits)
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
        return {"fp16": Fma16, "fp32": Fma32, "fp64": Fma64}[d.name](block)
    return Flushed((0,) * spec.k, block) if spec.arithmetic == "flushed" else Cdna3(block)


def _lowest(fa: FloatFormat, fb: FloatFormat) -> int:
    """Smallest exponent of a product: subnormals are not normalised."""
    return fa.emin + fb.emin


def _fits_float32(spec: MmaSpec) -> bool:
    """The float32 carrier's conditions on the spec: see `fpemu.mma.compiled.truncated`."""
    fa, fb, _, d = spec.operand_formats
    narrow = fa.precision + fb.precision <= 22 and fa.emin + fb.emin >= -28 and fa.emax + fb.emax <= 30
    sums = spec.block * 2 ** (spec.F + 2) <= 2**31
    plain = d.name == "fp32" and spec.final == "RZ" and spec.fraction_bits in (None, 23)
    floor = spec.E0 is None or spec.E0 <= -126
    return narrow and sums and plain and floor and spec.F >= 23


def _bounded(A: NDArray[Any], B: NDArray[Any], C: NDArray[Any], spec: MmaSpec) -> bool:
    """Finite operands, and a C that no sum of products can bring near 2^127."""
    if spec.arithmetic != "truncated" or not _fits_float32(spec):
        return False
    largest = max(float(np.abs(C).max(initial=0)), 0.0)  # NaN compares false below
    return bool(np.isfinite(A).all() and np.isfinite(B).all() and largest <= 2.0**120 and A.shape[-1] < 2**60)


def _via_half(
    A: NDArray[Any], B: NDArray[Any], index_a: NDArray[Any], index_b: NDArray[Any], C: NDArray[Any], spec: MmaSpec,
    cuts: NDArray[np.bool_],
) -> NDArray[Any]:  # fmt: skip
    """Each instruction is a chain of two half-precision ones from zero, added to C by one rounding.

    For fp16 the sum is made in fp32 and rounded again, which is one rounding (24 >= 2 * 11 + 2).
    """
    half, fmt = half_spec(spec), spec.operand_formats[3]
    k = np.arange(spec.k)
    turn = np.concatenate([k[k % 4 < 2], k[k % 4 >= 2]])
    none = np.zeros(2, bool)
    outer = C.astype(outer_dtype(spec)) if cuts.any() else None
    d = np.zeros_like(C) if outer is not None else C
    for q, cut in enumerate(cuts):
        ks = q * spec.k + turn
        part = chain(A[..., ks], B[..., ks, :], index_a, index_b, np.zeros_like(C), half, none)
        d = (d + part).astype(fmt.dtype).astype(C.dtype)
        if outer is not None and cut:
            outer += d
            d = np.zeros_like(d)
    return d if outer is None else outer


def _integer(
    A: NDArray[Any], B: NDArray[Any], index_a: NDArray[Any], index_b: NDArray[Any], C: NDArray[Any],
    cuts: NDArray[np.bool_],
) -> NDArray[Any]:  # fmt: skip
    """int8 products add exactly in float64 up to K = 2^39; promotion changes nothing modulo 2^32."""
    a, b = A.astype(np.float64), B.astype(np.float64)
    products = np.stack([a[i] @ b[j] for i, j in zip(index_a, index_b, strict=True)])
    return (C.astype(np.int64) + products.astype(np.int64)).astype(np.int32)


def _threads() -> int:
    """Threads to run on: FPEMU_THREADS, or as many as this process has cores."""
    asked = os.environ.get("FPEMU_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_threads(), thread_name_prefix="fpemu")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
