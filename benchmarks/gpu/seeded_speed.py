"""Speed of the emulated GEMM on the GPU, and the size from which it is faster than on the CPU: operands from a seed.

``python -m benchmarks.gpu.seeded_speed [SEED]`` prints a line for each arithmetic and compared instruction.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import timing
from fpemu import mma
from fpemu.mma import MmaSpec
from fpemu.mma import operand_streams as streams
from fpemu.mma.codes import codes, values

SIZE = 4096
_CALLS = 7  # timed calls of a size, at most
_SECONDS = 0.6  # of the timed calls of a size
_CHECKED = 48  # rows of D that the CPU computes too
_DRAWN = 2**16 - 1  # numbers drawn for an operand, which repeats them out of phase
_SIZES = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
SPECS: dict[str, tuple[Any, ...]] = {
    "truncated, L = 4 (V100)": ("volta",),
    "truncated, L = 8 (A100)": ("ampere",),
    "truncated, L = 16 (H100)": ("hopper",),
    "truncated, bf16 (H100)": ("hopper", "bf16"),
    "truncated, tf32 (A100)": ("ampere", "tf32"),
    "truncated, e4m3 (H100)": ("hopper", "e4m3"),
    "truncated, to fp16 (H100)": ("hopper", "fp16", "fp16"),
    "via-half, e4m3 (H100)": ("hopper", "e4m3", "fp32", "mma"),
    "flushed (MI210)": ("cdna2",),
    "cdna3 (MI300)": ("cdna3",),
    "cdna3-fp8 (MI300)": ("cdna3", "e4m3"),
    "exact (ideal)": ("ideal",),
    "exact, L = 4 (MI100)": ("cdna1",),
    "fma, fp32 (MI210)": ("cdna2", "fp32"),
    "fma, fp64 (H100)": ("hopper", "fp64"),
    "integer (H100)": ("hopper", "int8"),
}
"""Arguments of `fpemu.mma.spec` for each arithmetic and format"""
COMPARED: tuple[tuple[Any, ...], ...] = (("hopper",), ("cdna3",), ("hopper", "fp64"), ("hopper", "int8"))
"""Those of the instructions for which sizes are compared with the CPU"""


def operands(spec: MmaSpec, n: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return square matrices of uniform numbers."""
    A, B = (
        np.resize(values(streams.operand(spec, letter, "uniform", seed, 0, 1, 1, _DRAWN), fmt).reshape(-1), (n, n))
        for letter, fmt in zip("AB", streams.formats(spec), strict=False)
    )
    return A, B


def median(A: NDArray[Any], B: NDArray[Any], spec: MmaSpec, device: Any) -> float:
    """Return the median time of a call, transfers included, in milliseconds."""
    call = partial(mma.gemm, A, B, spec=spec, device=device)
    call()  # compiles
    calls = max(3, min(_CALLS, int(_SECONDS / timing.wall(call))))
    return 1e3 * timing.wall(call, repeats=calls)


def rate(spec: MmaSpec, seed: int, n: int = SIZE) -> dict[str, float]:
    """Time M = N = K = n on the GPU, and compare some rows of D with the CPU's.

    Returns the median time of a call in milliseconds, the rate in 10^9 multiply-adds per second, and the numbers of
    compared outputs and of mismatches.
    """
    A, B = operands(spec, n, seed)
    ms = median(A, B, spec, "cuda")
    rows = np.random.default_rng(seed).choice(n, min(_CHECKED, n), replace=False)
    got, want = (
        codes(D, spec.d_format)
        for D in (mma.gemm(A, B, spec=spec, device="cuda")[rows], mma.gemm(A[rows], B, spec=spec, device="cpu"))
    )
    return {"ms": ms, "rate": n**3 / ms / 1e6, "checked": want.size, "mismatches": int((got != want).sum())}


def crossover(spec: MmaSpec, seed: int) -> int | None:
    """Return the smallest size from which the GPU is faster than the CPU at every size tried; None if there is none."""
    first: int | None = None
    for n in reversed(_SIZES):
        A, B = operands(spec, n, seed)
        if median(A, B, spec, "cuda") >= median(A, B, spec, "cpu"):
            break
        first = n
    return first


def main(seed: int = 0) -> None:
    """Print a line for each arithmetic, and one for each compared instruction."""
    for name, arguments in SPECS.items():
        r = rate(mma.spec(*arguments), seed)
        checked = f"{r['mismatches']:.0f} of {r['checked']:,.0f} outputs differ"
        print(f"{name:28} {r['ms']:10.2f} ms {r['rate']:8.1f} · 10^9 multiply-adds/s, {checked}", flush=True)
    for arguments in COMPARED:
        spec = mma.spec(*arguments)
        n = crossover(spec, seed)
        where = "at no size tried" if n is None else f"from n = {n} on"
        print(f"{spec.name}: faster than the CPU here {where}, transfers included", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
