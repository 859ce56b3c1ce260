"""The readable form of a chain: one block after another, NumPy, vectorised over leading axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.mma import amd, exact, fma, fused
from fpemu.mma.spec import MmaSpec
from fpemu.rounding import round_to

_TILE = 128  # rows and columns done at a time, so that the temporaries stay in cache


def chain(A: NDArray[Any], B: NDArray[Any], C: NDArray[Any], spec: MmaSpec, cuts: NDArray[np.bool_]) -> NDArray[Any]:
    """Run the instructions over K.

    A (..., M, K), B (..., K, N), C (..., M, N) with K whole instructions. `cuts` has one entry per instruction: True
    where the accumulator is added to an outer sum after it and starts again from zero. C starts the accumulator, or the
    outer sum if there is one. Returns values of D's format (of the outer sum's, if there is one).
    """
    out = np.empty(C.shape, outer_dtype(spec) if cuts.any() else C.dtype)
    for i in range(0, C.shape[-2], _TILE):
        for j in range(0, C.shape[-1], _TILE):
            rows, columns = slice(i, i + _TILE), slice(j, j + _TILE)
            out[..., rows, columns] = _tile(A[..., rows, :], B[..., columns], C[..., rows, columns], spec, cuts)
    return out


def outer_dtype(spec: MmaSpec) -> Any:
    """The arithmetic outside the matrix core: fp32, fp64 for fp64, int32 for integers."""
    return {"fp64": np.float64, "int32": np.int32}.get(str(spec.d_format), np.float32)


def _tile(A: NDArray[Any], B: NDArray[Any], C: NDArray[Any], spec: MmaSpec, cuts: NDArray[np.bool_]) -> NDArray[Any]:
    step = _INSTRUCTIONS.get(spec.arithmetic, _blocks)
    outer: NDArray[Any] | None = C.astype(outer_dtype(spec)) if cuts.any() else None
    d = np.zeros_like(C) if outer is not None else C
    for index, cut in enumerate(cuts):
        ks = slice(index * spec.k, (index + 1) * spec.k)
        d = step(A[..., ks], B[..., ks, :], d, spec)
        if outer is not None and cut:
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
    half = half_spec(spec)
    d = np.zeros_like(C)
    first = np.arange(spec.k) % 4 < 2
    for ks in (first, ~first):
        d = fused.block(A[..., ks], B[..., ks, :], d, half)
    return np.asarray(round_to(C + d, spec.operand_formats[3])).astype(np.float64)


@cache
def half_spec(spec: MmaSpec) -> MmaSpec:
    """The half-precision instruction that a converted one is made of: its operands are fp16, subnormals and all."""
    return spec.replace(a_format="fp16", b_format="fp16", arithmetic="truncated", k=spec.k // 2, block=spec.k // 2)


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
