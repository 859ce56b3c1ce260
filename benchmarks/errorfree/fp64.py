"""FP64 products of public calls against cuBLAS DGEMM and, optionally, GEMMul8, alternating in one process.

`python -m benchmarks.errorfree.fp64 1024 4096 --peer LIBRARY` prints effective TFLOP/s, 2 n^3 / time (8 n^3 of complex
products, with --complex): the least and the greatest of some rounds, first calls after a pause and sustained ones, the
energy of a sustained call by the GPU's counter (NVML), and errors (relative L2, against long doubles on samples).
LIBRARY is a shared library with two C functions for row-major matrices of n rows and columns, in GEMMul8's order of
operands: `size_t g8_ws(m, n, k, moduli, 0)` and `g8_d(m, n, k, B, A, C, moduli, fast, workspace, 0)`.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import time
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

CALLS: dict[str, dict[str, Any]] = {
    "accurate": {},
    "invariant, nearest": {"scaling": "invariant", "rounding": "nearest"},
    "exact": {"scheme": "ozaki", "mode": "CR"},
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


@cache
def _counter() -> Callable[[], float]:
    """Return a function that returns the energy in joules that the first GPU has taken; NaN without NVML."""
    try:
        nvml, handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    except OSError:
        return lambda: math.nan
    nvml.nvmlInit_v2()
    nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))

    def joules() -> float:
        energy = ctypes.c_ulonglong()  # in millijoules
        failed = nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(energy))
        return math.nan if failed else energy.value * 1e-3

    return joules


def _measured(torch: Any, call: Callable[[], object]) -> tuple[float, float, float]:
    """Return the seconds of a first and of a sustained call, and the joules of the latter."""
    torch.cuda.synchronize()
    time.sleep(_PAUSE)
    first = _times(torch, call, 8)
    count = max(6, min(2000, int(_SUSTAINED / max(first))))
    before = _counter()()
    sustained = _times(torch, call, count)
    joules = (_counter()() - before) / count
    return float(np.median(first)), float(np.median(sustained[count // 2 :])), joules


def _error(A: Any, B: Any, C: Any) -> float:
    """Return the relative L2 error of a few rows and columns."""
    rows, columns = range(0, A.shape[0], max(1, A.shape[0] // 4)), range(0, B.shape[1], max(1, B.shape[1] // 300))
    kind = np.clongdouble if A.is_complex() else np.longdouble
    a, b, c = (X.cpu().numpy().astype(kind) for X in (A[rows], B[:, columns], C[rows][:, columns]))
    exact = a @ b
    return float(np.sqrt((np.abs(c - exact) ** 2).sum() / (np.abs(exact) ** 2).sum()))


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
    parser.add_argument("--peer", help="shared library of GEMMul8, for real products")
    parser.add_argument("--complex", action="store_true", help="ZGEMM in the place of DGEMM")
    given = parser.parse_args()
    library = ctypes.CDLL(given.peer) if given.peer else None
    if library is not None:
        library.g8_ws.restype = ctypes.c_size_t
        library.g8_init()
    for n in given.sizes:
        numbers = torch.rand(2, n, n, dtype=torch.float64, device="cuda") - 0.5
        A, B = numbers * torch.exp(0.5 * torch.randn_like(numbers))
        flops = 2 * n**3
        if given.complex:
            A, B, flops = torch.complex(A, B), torch.complex(B, A), 4 * flops
        C = torch.empty_like(A)
        calls: dict[str, Callable[[], object]] = {
            name: partial(fpemu.gpu.gemm, A, B, out=C, **{"scheme": "ozaki2"} | options)
            for name, options in CALLS.items()
        }
        calls |= _peers(torch, library, A, B, C) if library is not None and not given.complex else {}
        calls["ZGEMM" if given.complex else "DGEMM"] = partial(torch.mm, A, B, out=C)
        errors, rates = {}, {name: list[tuple[float, float, float]]() for name in calls}
        for name, call in calls.items():
            call()
            errors[name] = _error(A, B, C)
        for _ in range(_ROUNDS):
            for name, call in calls.items():
                first, sustained, joules = _measured(torch, call)
                rates[name].append((1e-12 * flops / first, 1e-12 * flops / sustained, joules))
        for name, rounds in rates.items():
            spans = [f"{min(x):6.1f} to {max(x):6.1f}" for x in zip(*rounds, strict=True)]
            speed = "first {}  sustained {}  J {}".format(*spans)
            print(f"n = {n:5d}  {name:18s}  {speed}  error {errors[name]:.1e}", flush=True)
        fpemu.gpu.release()


if __name__ == "__main__":
    main()
