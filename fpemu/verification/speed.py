"""Speed of the emulated GEMM on the GPU, and the size from which it is faster than on the CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.gpu.emulation import chains
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.device import Buffer, check
from fpemu.mma import MmaSpec
from fpemu.mma import operand_streams as streams
from fpemu.mma.arithmetic import Operands
from fpemu.mma.codes import values
from fpemu.mma.gemm import carried
from fpemu.verification.cases import Draw, codes
from fpemu.verification.records import Outcome

RATE, CROSSOVER = "speed: ", "crossover: "
"""Prefixes of the names of measurements"""
SIZE = 4096
_REPEAT = 11  # timed launches of a specification, at most
_CALLS = 7  # timed calls of a size, at most
_SECONDS = 0.6  # of the timed launches of a specification, and of the calls of a size
_CHECKED = 48  # rows of D that the CPU computes too
_DRAWN = 2**16  # numbers drawn for an operand, which repeats them out of phase
_SIZES = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_ARCHITECTURES: dict[str, tuple[Any, ...]] = {
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
_COMPARED: tuple[tuple[Any, ...], ...] = (("hopper",), ("cdna3",), ("hopper", "fp64"), ("hopper", "int8"))


def specs() -> dict[str, MmaSpec]:
    """Return a specification of each arithmetic and format, by the name of its measurement."""
    return {f"{RATE}{name}": mma.spec(*arguments) for name, arguments in _ARCHITECTURES.items()}


def groups() -> list[str]:
    """Return the names of all measurements."""
    return [*specs(), *(f"{CROSSOVER}{mma.spec(*arguments).name}" for arguments in _COMPARED)]


def sources() -> list[str]:
    """Return the sources of the kernels that are timed."""
    return [chains.source(spec) for spec in specs().values()]


class Clock:
    """GPU time between `start` and `stop` in milliseconds, by CUDA events."""

    def __init__(self) -> None:
        self._events = [check(device.driver().cuEventCreate(0)) for _ in range(2)]

    def start(self) -> None:
        """Record the first event."""
        check(device.driver().cuEventRecord(self._events[0], 0))

    def stop(self) -> float:
        """Record the second event, wait for it, and return the time between them."""
        cuda = device.driver()
        check(cuda.cuEventRecord(self._events[1], 0))
        check(cuda.cuEventSynchronize(self._events[1]))
        return float(check(cuda.cuEventElapsedTime(*self._events)))


def measure(group: str, seed: int) -> Outcome:
    """Run one of `groups`; the facts of the outcome are what `rate` or `crossover` returns."""
    try:
        if group.startswith(CROSSOVER):
            return Outcome(group, facts=crossover(group.removeprefix(CROSSOVER), seed))
        facts = rate(specs()[group], seed)
        return Outcome(group, mismatches=facts.pop("mismatches"), facts=facts)
    except Exception as problem:
        message = " ".join(str(problem).split())[:300]
        return Outcome(group, failed=1, first=[f"{type(problem).__name__}: {message}"])


def rate(spec: MmaSpec, seed: int, n: int = SIZE, clock: Callable[[], Any] = Clock) -> dict[str, Any]:
    """Time M = N = K = n with operands on the GPU, and compare some rows of D.

    Returns milliseconds ("ms": the median), "rate" in 10^9 multiply-adds per second, and the outputs "checked".
    """
    timer = clock()
    A, B = (_square(spec, letter, n, seed) for letter in "AB")
    wide = np.float64 if str(spec.d_format) == "fp64" else np.float32
    start = np.zeros((1, n, n), np.int32 if spec.is_integer else wide)
    one, cuts = np.zeros(1, np.int64), np.zeros(-(-n // spec.k), bool)
    run = chains.prepare(Operands(A, B, one, one, start, cuts), spec)
    assert run is not None
    D = Buffer.poisoned(start.nbytes)
    run.launch(D)  # warm-up; its result is compared
    got = D.array(start.shape, start.dtype)
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 3 or (len(times) < _REPEAT and time.perf_counter() - began < _SECONDS):
        timer.start()
        run.launch(D, wait=False)
        times.append(timer.stop())
    device.synchronize()
    draw = Draw(seed, "rows", spec.name)
    rows = sorted({draw.below(n) for _ in range(_CHECKED)})
    want = spec.rules.chain(Operands(A[:, rows], B, one, one, start[:, rows], cuts), spec)
    ms = statistics.median(times)
    return {
        "spec": spec.name,
        "n": n,
        "ms": round(ms, 3),
        "fastest": round(min(times), 3),
        "slowest": round(max(times), 3),
        "runs": len(times),
        "rate": round(n**3 / ms / 1e6, 1),
        "checked": want.size,
        "mismatches": int((codes(got[:, rows]) != codes(want.astype(got.dtype, copy=False))).sum()),
    }


def _square(spec: MmaSpec, letter: str, n: int, seed: int) -> NDArray[Any]:
    """Draw a carrier (1, K, n) or (1, n, K) of uniform numbers; K is a multiple of the instruction's."""
    fmt = spec.a_format if letter == "A" else spec.b_format
    drawn = streams.operand(spec, letter, "uniform", seed, 0, 1, 1, _DRAWN - 1)
    out = carried(values(drawn, fmt).reshape(-1), fmt)
    K = -(-n // spec.k) * spec.k
    return np.resize(out, (1, n, K) if letter == "A" else (1, K, n))


def crossover(name: str, seed: int) -> dict[str, Any]:
    """Compare the time of a call on the GPU, transfers included, with the CPU's.

    Returns the medians for each size M = N = K in milliseconds, and "from": the smallest size from which the GPU is
    faster at every size tried, or None.
    """
    spec = next(row for row in mma.catalog.rows() if row.name == name)
    times: dict[Any, list[float]] = {"cpu": [], "cuda": []}
    for n in _SIZES:
        A, B = (_square(spec, letter, n, seed)[0] for letter in "AB")
        A, B = A[:, :n], B[:n]
        if not spec.is_integer:
            A, B = A.astype(spec.a_format.dtype), B.astype(spec.b_format.dtype)  # type: ignore[union-attr]
        for place, medians in times.items():
            medians.append(_median(partial(mma.gemm, A, B, spec=spec, device=place)))
    slower = [i for i, (c, g) in enumerate(zip(times["cpu"], times["cuda"], strict=True)) if g >= c]
    first = max(slower, default=-1) + 1
    return {"spec": name, "sizes": list(_SIZES), **times, "from": _SIZES[first] if first < len(_SIZES) else None}


def _median(call: Callable[[], Any]) -> float:
    """Median of up to `_CALLS` calls, in milliseconds."""
    call()
    times: list[float] = []
    while len(times) < _CALLS and (len(times) < 3 or sum(times) < 1e3 * _SECONDS):
        began = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - began))
    return round(statistics.median(times), 4)
