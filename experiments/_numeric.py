"""Exact products, norms and the words on a matrix unit that pages of several papers share."""

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs, mma, reference, schemes
from fpemu.mma.device import Device


@functools.lru_cache(maxsize=1)  # neighbouring cells share the operands
def problem(
    name: str, m: int, n: int, k: int, seed: int, device: Device = "cpu", **parameters: Any
) -> tuple[Any, Any, Any]:
    """Return fp32 operands of a distribution, and their product rounded once to fp64."""
    A, B = inputs.operands(name, m, n, k, seed, **parameters)
    return A, B, reference.matmul(A, B, device=device)


@functools.lru_cache(maxsize=1)
def problem_with_sgemm(
    m: int, n: int, k: int, seed: int, low: float, high: float, device: Device = "cpu"
) -> tuple[Any, Any, dict[str, Any]]:
    """Return uniform fp32 operands, and the two results to compare with: SGEMM's "s" and the product "exact"."""
    A, B, exact = problem("uniform", m, n, k, seed, device, low=low, high=high)
    return A, B, {"s": schemes.gemm(A, B, scheme="sgemm", hardware="ampere", device=device), "exact": exact}


def complex_product(A: Any, B: Any, device: Device = "cpu") -> NDArray[np.float64]:
    """Return both parts of the exact product of planar complex operands, each rounded once to fp64."""
    (ar, ai), (br, bi) = A, B
    rows, imaginary_rows = np.concatenate([ar, -ai], -1), np.concatenate([ar, ai], -1)
    real = reference.matmul(rows, np.concatenate([br, bi], -2), device=device)
    return np.stack([real, reference.matmul(imaginary_rows, np.concatenate([bi, br], -2), device=device)])


def product_in_two(A: Any, B: Any, device: Device = "cpu") -> tuple[Any, Any]:
    """Return the exact product as a sum of two fp64 matrices: errors of fp64 results need both."""
    head = reference.matmul(A, B, device=device)
    return head, reference.matmul(A, B, head, beta=-1, device=device)


def unit(hardware: str) -> str:
    """Return a fp16 instruction and the evidence of its model, for captions and assumptions.

    Examples
    --------
    >>> unit("volta")
    'volta mma m8n8k4 fp16->fp32 (replayed model)'
    """
    spec = mma.spec(hardware, "fp16", "fp32")
    return f"{spec.name} ({spec.evidence} model)"


def norm(X: NDArray[Any]) -> float:
    """Return the Frobenius norm from a sum that is rounded once, the same on every machine."""
    return math.sqrt(math.fsum(np.square(X).ravel().tolist()))
