"""FP64 and complex products of public calls against cuBLAS and, optionally, GEMMul8, alternating in one process.

`python -m benchmarks.errorfree.fp64 1024 4096 --peer LIBRARY` prints effective TFLOP/s, 2 n^3 / time (8 n^3 of complex
products), of first calls after a pause and of sustained ones, the energy of a sustained call by the GPU's counter
(NVML), and errors (relative L2, against long doubles on samples). The numbers are medians of some rounds.
`--record FILE.json` writes them for the page speed/fp64, and keeps the file's other sizes. `--steps` prints the time of
each step of a call instead, from events between the steps, which therefore do not overlap.
LIBRARY is a shared library with C functions for row-major matrices of n rows and columns, in GEMMul8's order of
operands: `size_t g8_ws(m, n, k, moduli, 0)` and `g8_d(m, n, k, B, A, C, moduli, fast, workspace, 0)`, and for complex
products `g8_zws` and `g8_z`, of fp32 `g8_c`.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import math
import time
from collections.abc import Callable
from functools import cache, partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from fpemu._system import write_atomic

Call = Callable[[], object]
NEAREST = {"scaling": "invariant", "rounding": "nearest"}
SEVEN = NEAREST | {"moduli": 7, "precision": "fp32"}
CALLS: dict[str, dict[str, dict[str, Any]]] = {
    "real": {
        "accurate": {},
        "invariant, nearest": NEAREST,
        "invariant, nearest, 14": NEAREST | {"moduli": 14},
        "exact": {"scheme": "ozaki", "mode": "CR"},
    },
    "complex": {"accurate": {}, "invariant, nearest": NEAREST, "invariant, nearest, 14": NEAREST | {"moduli": 14}},
    "complex64": {"invariant, nearest, 7": SEVEN, "invariant, nearest, 6": SEVEN | {"moduli": 6}},
}
"""Calls of each kind by the name of a row: options of `fpemu.gpu.gemm`, with ozaki2 if they name no scheme."""
PEERS = {"real": ("g8_ws", "g8_d", 15), "complex": ("g8_zws", "g8_z", 14), "complex64": ("g8_zws", "g8_c", 7)}
"""Functions of the peer, and its number of moduli."""
_ROUNDS, _PAUSE, _SUSTAINED = 2, 0.5, 0.5  # seconds


def _times(torch: Any, call: Call, count: int) -> list[float]:
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


def _measured(torch: Any, call: Call, flops: float) -> tuple[float, float, float]:
    """Return TFLOP/s of first and of sustained calls, and the joules of one of the latter."""
    torch.cuda.synchronize()
    time.sleep(_PAUSE)
    first = _times(torch, call, 8)
    count = max(6, min(2000, int(_SUSTAINED / max(first))))
    before = _counter()()
    sustained = _times(torch, call, count)
    joules = (_counter()() - before) / count
    return 1e-12 * flops / np.median(first), 1e-12 * flops / np.median(sustained[count // 2 :]), joules


def _error(A: Any, B: Any, C: Any) -> float:
    """Return the relative L2 error of a few rows and columns."""
    rows, columns = range(0, A.shape[0], max(1, A.shape[0] // 4)), range(0, B.shape[1], max(1, B.shape[1] // 300))
    kind = np.clongdouble if A.is_complex() else np.longdouble
    a, b, c = (X.cpu().numpy().astype(kind) for X in (A[rows], B[:, columns], C[rows][:, columns]))
    exact = a @ b
    return float(np.sqrt((np.abs(c - exact) ** 2).sum() / (np.abs(exact) ** 2).sum()))


def _peers(torch: Any, library: Any, kind: str, A: Any, B: Any, C: Any) -> dict[str, Call]:
    size, multiply, moduli = PEERS[kind]
    if not hasattr(library, multiply):
        return {}
    getattr(library, size).restype = ctypes.c_size_t
    n, pointers = ctypes.c_size_t(len(A)), [ctypes.c_void_p(X.data_ptr()) for X in (B, A, C)]
    workspace = torch.empty(getattr(library, size)(n, n, n, moduli, 0), dtype=torch.uint8, device="cuda")
    place = ctypes.c_void_p(workspace.data_ptr())

    def call(fast: int, keep: Any = workspace) -> Call:
        return lambda: getattr(library, multiply)(n, n, n, *pointers, moduli, fast, place, 0)

    return {"GEMMul8 accurate": call(0), "GEMMul8 fast": call(1)}


def _calls(torch: Any, n: int, kind: str) -> tuple[dict[str, Call], Any, Any, Any]:
    """Return the library's calls, and A, B and C."""
    import fpemu.gpu

    numbers = torch.rand(2, n, n, dtype=torch.float64, device="cuda") - 0.5
    A, B = numbers * torch.exp(0.5 * torch.randn_like(numbers))
    if kind != "real":
        A, B = (
            X.to(getattr(torch, "complex64" if kind == "complex64" else "complex128")) for X in (A + 1j * B, B + 1j * A)
        )
    C = torch.empty_like(A)
    calls: dict[str, Call] = {
        name: partial(fpemu.gpu.gemm, A, B, out=C, **{"scheme": "ozaki2"} | options)
        for name, options in CALLS[kind].items()
    }
    return calls, A, B, C


def steps(n: int, kind: str) -> dict[str, list[tuple[str, float]]]:
    """Return the milliseconds of each step of the library's calls, medians of some repetitions."""
    import torch

    import fpemu.gpu
    from fpemu.gpu.runtime.plan import Plan

    result, queue = {}, Plan.queue
    for name, call in _calls(torch, n, kind)[0].items():
        call()
        queued: list[Any] = []
        with patch.object(Plan, "queue", lambda plan, *given, **_: queued.append((plan, *given[:2]))):  # noqa: B023
            call()
        each = [(plan, at, stream, i) for plan, at, stream in queued for i in range(len(plan.kernels))]
        turns = cycle(each)

        def step(turns: Any = turns) -> None:
            plan, at, stream, i = next(turns)
            queue(plan, at, stream, i, i + 1)

        times = _times(torch, step, 10 * len(each))
        medians = np.median(np.reshape(times, (10, -1)), axis=0)
        result[name] = [(plan.kernels[i], 1e3 * t) for (plan, *_, i), t in zip(each, medians.tolist(), strict=True)]
    fpemu.gpu.release()
    return result


def measure(n: int, kind: str, library: Any) -> list[dict[str, Any]]:
    """Return the rows of all implementations of one size, for real or complex products."""
    import torch

    import fpemu.gpu

    calls, A, B, C = _calls(torch, n, kind)
    flops = (2.0 if kind == "real" else 8.0) * n**3
    calls |= _peers(torch, library, kind, A, B, C) if library is not None else {}
    calls["library"] = partial(torch.mm, A, B, out=C)
    errors = {}
    for name, call in calls.items():
        call()
        errors[name] = _error(A, B, C)
    rounds = {name: list[tuple[float, float, float]]() for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            rounds[name].append(_measured(torch, call, flops))
    fpemu.gpu.release()
    rows = []
    for name, of in rounds.items():
        numbers = dict(zip(("first", "sustained", "joules"), np.median(of, axis=0), strict=True))
        numbers = {key: float(f"{x:.5g}") for key, x in (numbers | {"error": errors[name]}).items()}
        rows.append({"kind": kind, "n": n, "way": name} | numbers)
    return rows


def main() -> None:
    """Print a line for each size and implementation."""
    import torch

    from benchmarks.gpu.run import head

    parser = argparse.ArgumentParser(description="FP64 products against cuBLAS and GEMMul8")
    parser.add_argument("sizes", nargs="+", type=int)
    parser.add_argument("--peer", help="shared library of GEMMul8")
    parser.add_argument("--kind", choices=list(CALLS), default="real", help="float64, complex128 or complex64")
    parser.add_argument("--steps", action="store_true", help="print the time of each step instead")
    parser.add_argument("--record", type=Path, help="JSON file of the page speed/fp64")
    given = parser.parse_args()
    library = ctypes.CDLL(given.peer) if given.peer else None
    if library is not None:
        library.g8_init()
    kind, here = given.kind, head()["runs"][0]
    record = {**here, "torch": torch.__version__, "date": datetime.date.today().isoformat(), "rows": []}
    if given.record and given.record.is_file():
        record["rows"] = json.loads(given.record.read_bytes())["rows"]
    for n in given.sizes:
        if given.steps:
            for name, each in steps(n, kind).items():
                parts = "  ".join(f"{kernel} {t:.4f}" for kernel, t in each)
                print(f"{kind} n = {n:5d}  {name:22s}  ms: {parts}", flush=True)
            continue
        rows = measure(n, kind, library)
        for row in rows:
            speed = f"first {row['first']:6.1f}  sustained {row['sustained']:6.1f}  J {row['joules']:8.2f}"
            print(f"{kind} n = {n:5d}  {row['way']:22s}  {speed}  error {row['error']:.1e}", flush=True)
        record["rows"] = [row for row in record["rows"] if (row["kind"], row["n"]) != (kind, n)] + rows
        if given.record:
            write_atomic(given.record, (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
