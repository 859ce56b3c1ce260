"""The NumPy reference implementation of a chain of instructions: block after block, vectorised over leading axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.mma import amd, exact, fma, fused
from fpemu.mma.spec import MmaSpec
from fpemu.rounding import round_to

_TILE = 128  # rows and columns computed at a time, so that the temporaries stay in cache


def chain(A: NDArray[Any], B: NDArray[Any], C: NDArray[Any], spec: MmaSpec, ends: NDArray[np.bool_]) -> NDArray[Any]:
    """Run the instructions over K.

    A (..., M, K), B (..., K, N), C (..., M, N) with K whole instructions. `ends` has one entry per instruction: True
    where the accumulator is added to an outer sum after it and restarts from zero. C starts the accumulator, or the
    outer sum if there is one. Returns values in the format of D, or of the outer sum if there is one.
    """
    out = np.empty(C.shape, spec.outer_dtype if ends.any() else C.dtype)
    for i in range(0, C.shape[-2], _TILE):
        for j in range(0, C.shape[-1], _TILE):
            rows, columns = slice(i, i + _TILE), slice(j, j + _TILE)
            out[..., rows, columns] = _tile(A[..., rows, :], B[..., columns], C[..., rows, columns], spec, ends)
    return out


def _tile(A: NDArray[Any], B: NDArray[Any], C: NDArray[Any], spec: MmaSpec, ends: NDArray[np.bool_]) -> NDArray[Any]:
    step = _INSTRUCTIONS.get(spec.arithmetic, _blocks)
    outer: NDArray[Any] | None = C.astype(spec.outer_dtype) if ends.any() else None
    d = np.zeros_like(C) if outer is not None else C
    for index, end in enumerate(ends):
        ks = slice(index * spec.k, (index + 1) * spec.k)
        d = step(A[..., ks], B[..., ks, :], d, spec)
        if outer is not None and end:
            outer = outer + d.astype(outer.dtype)
            d = np.zeros_like(d)
    return d if outer is None else outer


def _blocks(A: NDArray[Any], B: NDArray[Any], C: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
    """One instruction as its blocks."""
    block = _BLOCKS[spec.arithmetic]
    C = amd.enter_cdna2(C) if spec.arithmetic == "flushed" else C
    for k in range(0, spec.k, spec.block):
        C = block(A[..., k : k + spec.block], B[..., k : k + spec.block, :], C, spec)
    return C


def _via_half(A: NDArray[Any], B: NDArray[Any], C: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
    """fp8 through mma.sync on Hopper: from zero, first k mod 4 in {0, 1}, then {2, 3}; C by one RNE afterwards.

    Adding two numbers of 24 bits in float64 and rounding again is one rounding (53 >= 2 * 24 + 2).
    """
    half = spec.half_precision()
    d = np.zeros_like(C)
    first = np.arange(spec.k) % 4 < 2
    for ks in (first, ~first):
        d = fused.block(A[..., ks], B[..., ks, :], d, half)
    return np.asarray(round_to(C + d, spec.operand_formats[3])).astype(np.float64)


def _integer(A: NDArray[Any], B: NDArray[Any], C: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
    """Exact, modulo 2^32."""
    return (C.astype(np.int64) + A.astype(np.int64) @ B.astype(np.int64)).astype(np.int32)


_BLOCKS: dict[str, Callable[[NDArray[Any], NDArray[Any], NDArray[Any], MmaSpec], NDArray[Any]]] = {
    "truncated": fused.block,
    "exact": exact.block,
    "fma": fma.block,
    "flushed": amd.block_cdna2,
    "cdna3": amd.block_cdna3,
    "cdna3-fp8": amd.block_cdna3_fp8,
}
_INSTRUCTIONS = {"via-half": _via_half, "integer": _integer}
