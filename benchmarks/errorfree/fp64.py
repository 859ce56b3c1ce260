"""FP64 products of public calls against cuBLAS DGEMM and, optionally, GEMMul8, alternating in one process.

`python -m benchmarks.errorfree.fp64 1024 4096 --peer LIBRARY` prints effective TFLOP/s, 2 n^3 / time: the least and the
greatest of some rounds, first calls after a pause and sustained ones, and errors (relative L2, against long doubles on
samples). LIBRARY is a shared library with two C functions for row-major matrices of n rows and columns, in GEMMul8's
order of operands: `size_t g8_ws(m, n, k, moduli, 0)` and `g8_d(m, n, k, B, A, C, moduli, fast, workspace, 0)`.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

CALLS: dict[str, dict[str, Any]] = {
    "accurate": {},
    "invariant, nearest": {"scaling": "invariant", "rounding": "nearest"},
}
_ROUNDS, _PAUSE, _SUSTAINED = 3, 0.5, 0.8  # seconds


def _times(torch: Any, call: Callable[[], object], count: int) -> list[float]:
    """Return the seconds of each of some calls, by events."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) * 1e-3 for a, b in pairwise(events)]


def _first_and_sustained(torch: Any, call: Callable[[], object]) -> tuple[float, float]:
    torch.cuda.synchronize()
    time.sleep(_PAUSE)
    first = _times(torch, call, 8)
    count = max(6, min(2000, int(_SUSTAINED / max(first))))
    return float(np.median(first)), float(np.median(_times(torch, call, count)[count // 2 :]))


def _error(A: Any, B: Any, C: Any) -> float:
    """Return the relative L2 error of a few rows and columns."""
    rows, columns = range(0, A.shape[0], max(1, A.shape[0] // 4)), range(0, B.shape[1], max(1, B.shape[1] // 300))
    a, b, c = (X.cpu().numpy().astype(np.longdouble) for X in (A[rows], B[:, columns], C[rows][:, columns]))
    exact = a @ b
    return float(np.sqrt(((c - exact) ** 2).sum() / (exact**2).sum()))


def _peers(torch: Any, library: Any, A: Any, B: Any, C: Any) -> dict[str, Callable[[], object]]:
    n, pointers = ctypes.c_size_t(len(A)), [ctypes.c_void_p(X.data_ptr()) for X in (B, A, C)]
    workspace = torch.empty(library.g8_ws(n, n, n, 15, 0), dtype=torch.uint8, device="cuda")
    place = ctypes.c_void_p(workspace.data_ptr())

    def call(fast: int, keep: Any = workspace) -> Callable[[], object]:
        return lambda: library.g8_d(n, n, n, *pointers, 15, fast, place, 0)

    return {"GEMMul8 accurate": call(0), "GEMMul8 fast": call(1)}


def main() -> None:
    """Print a line for each size and implementation."""
    import torch

    import fpemu.gpu

    parser = argparse.ArgumentParser(description="FP64 products against DGEMM and GEMMul8")
    parser.add_argument("sizes", nargs="+", type=int)
    parser.add_argument("--peer", help="shared library of GEMMul8")
    given = parser.parse_args()
    library = ctypes.CDLL(given.peer) if given.peer else None
    if library is not None:
        library.g8_ws.restype = ctypes.c_size_t
        library.g8_init()
    for n in given.sizes:
        numbers = torch.rand(2, n, n, dtype=torch.float64, device="cuda") - 0.5
        A, B = numbers * torch.exp(0.5 * torch.randn_like(numbers))
        C = torch.empty_like(A)
        calls: dict[str, Callable[[], object]] = {
            name: partial(fpemu.gpu.gemm, A, B, scheme="ozaki2", out=C, **options) for name, options in CALLS.items()
        }
        calls |= _peers(torch, library, A, B, C) if library is not None else {}
        calls["DGEMM"] = partial(torch.mm, A, B, out=C)
        errors, rates = {}, {name: list[tuple[float, float]]() for name in calls}
        for name, call in calls.items():
            call()
            errors[name] = _error(A, B, C)
        for _ in range(_ROUNDS):
            for name, call in calls.items():
                first, sustained = _first_and_sustained(torch, call)
                rates[name].append((2e-12 * n**3 / first, 2e-12 * n**3 / sustained))
        for name, pairs in rates.items():
            spans = (f"{min(x):6.1f} to {max(x):6.1f}" for x in zip(*pairs, strict=True))
            print(f"n = {n:5d}  {name:18s}  first {'  sustained '.join(spans)}  error {errors[name]:.1e}", flush=True)
        fpemu.gpu.release()


if __name__ == "__main__":
    main()
