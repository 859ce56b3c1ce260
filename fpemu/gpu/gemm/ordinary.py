"""SGEMM and DGEMM on ordinary cores, in any order over K: every output one chain of fused multiply-adds, or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.gemm.base import Kernel, Output, Prepared
from fpemu.gpu.runtime import compiler, device, matrices, modules
from fpemu.gpu.runtime.steps import Memory, Step
from fpemu.mma import KOrder
from fpemu.schemes.base import Scheme

_TILE = 64  # in fma_gemm.cu
_CHAIN_ENDS, _SLICE_ENDS = 1, 2
_REAL = {"fp32": "float", "fp64": "double"}


def sequence(order: KOrder, K: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """The positions of K as an order adds them, and after which of them a chain ends, a slice, or both.

    Examples
    --------
    >>> [x.tolist() for x in sequence(KOrder(split=4, tile=3, residue_first=True), 5)]
    [[0, 1, 2, 3, 4], [0, 0, 0, 2, 2]]
    """
    ks: list[NDArray[np.int32]] = []
    ends = np.zeros(K, np.uint8)
    at = 0
    for chains in order.sequence(order.segments(K)):
        for chain in chains:
            ks += [np.arange(start, stop, dtype=np.int32) for start, stop in chain]
            at += sum(stop - start for start, stop in chain)
            ends[at - 1] |= _CHAIN_ENDS if order.promote is not None else 0
        ends[at - 1] |= _SLICE_ENDS
    return np.concatenate(ks), ends


def source(real: str, order: KOrder) -> str:
    """The kernel for "float" or "double" and an order."""
    pairs = "#define JOIN_PAIRS\n" if order.split is not None and order.join == "pairwise" else ""
    promoted = f"#define PROMOTED {int(order.promote is not None)}\n"
    return f"#define REAL {real}\n{promoted}{pairs}{compiler.kernel_source('fma_gemm.cu')}"


class Ordinary(Kernel):
    """sgemm or dgemm as chains of fused multiply-adds, a tile of 64 x 64 outputs per thread block."""

    def __init__(self, scheme: Scheme, K: int, order: KOrder | None) -> None:
        self.name, self.scheme, self.spec, self.order = f"ordinary {_TILE}x{_TILE}", scheme, None, order
        self._real = np.dtype(scheme.operand.dtype)
        path = KOrder() if order is None else order
        ks, ends = sequence(path, K)
        self._ks, self._ends = device.Buffer.of(ks), device.Buffer.of(ends)
        self._module = modules.module(source(_REAL[scheme.operand.name], path), "fma_gemm.cu")

    def split(self, operands: Sequence[Prepared], policy: str, memory: Memory) -> list[Step]:
        return []

    def multiply(self, a: Prepared, b: Prepared, end: Output, memory: Memory) -> list[Step]:
        D, real = end.D, self._real.type
        blocks = end.count * -(-a.rows // _TILE) * -(-b.rows // _TILE)
        if not blocks:
            return []
        operands: list[Any] = []
        for X in (a.source, b.source):
            operands += [X.pointer, matrices.table(X, end.lead), *X.strides[-2:]]
        result = (D.pointer, matrices.table(D), D.strides[-2], *end.addend)
        scalars = real(end.alpha), real(end.beta), np.uint64(self.scheme.nan_code(None))
        arguments = (*operands, *result, a.rows, b.rows, a.K, self._ks, self._ends, *scalars)
        return [self._module.step("ordinary", blocks, 256, *arguments)]
