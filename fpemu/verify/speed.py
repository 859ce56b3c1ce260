"""How fast GEMMs are emulated on the GPU at hand, and from which size on that is faster than the CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.gpu.emulation import chains
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.device import Buffer, check
from fpemu.mma import MmaSpec, operands
from fpemu.mma import operand_streams as streams
from fpemu.mma.codes import values
from fpemu.verify import trials

SIZE = 4096
_REPEAT = 11
_SECONDS = 0.6  # of launches that are timed for each spec, and of calls for each size
_CHECKED = 48  # rows of D that the CPU computes too
_DRAWN = 2**16  # numbers drawn for an operand; it repeats them out of step
_SIZES = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def variants() -> dict[str, MmaSpec]:
    """A spec of each arithmetic and width, by what it stands for."""
    return {
        "truncated, L = 4 (V100)": mma.spec("volta"),
        "truncated, L = 8 (A100)": mma.spec("ampere"),
        "truncated, L = 16 (H100)": mma.spec("hopper"),
        "truncated, bf16 (H100)": mma.spec("hopper", "bf16"),
        "truncated, tf32 (A100)": mma.spec("ampere", "tf32"),
        "truncated, e4m3 (H100)": mma.spec("hopper", "e4m3"),
        "truncated, to fp16 (H100)": mma.spec("hopper", "fp16", "fp16"),
        "via-half, e4m3 (H100)": mma.spec("hopper", "e4m3", instruction="mma"),
        "flushed (MI210)": mma.spec("cdna2"),
        "cdna3 (MI300)": mma.spec("cdna3"),
        "cdna3-fp8 (MI300)": mma.spec("cdna3", "e4m3"),
        "exact (ideal)": mma.spec("ideal"),
        "exact, L = 4 (MI100)": mma.spec("cdna1"),
        "fma, fp32 (MI210)": mma.spec("cdna2", "fp32"),
        "fma, fp64 (H100)": mma.spec("hopper", "fp64"),
        "integer (H100)": mma.spec("hopper", "int8"),
    }


def sources() -> list[str]:
    """The kernels that `rates` runs."""
    return [chains.source(spec) for spec in variants().values()]


class Clock:
    """Milliseconds on the GPU between `start` and `stop`, by its own events."""

    def __init__(self) -> None:
        self._events = [check(device._enter().cuEventCreate(0)) for _ in range(2)]

    def start(self) -> None:
        """Queue the first event."""
        check(device._enter().cuEventRecord(self._events[0], 0))

    def stop(self) -> float:
        """Queue the second, wait for it: the time between them."""
        cuda = device._enter()
        check(cuda.cuEventRecord(self._events[1], 0))
        check(cuda.cuEventSynchronize(self._events[1]))
        return float(check(cuda.cuEventElapsedTime(*self._events)))


def rates(seed: int, n: int = SIZE, clock: Callable[[], Any] = Clock) -> Iterator[dict[str, Any]]:
    """The speed of each of `variants` at M = N = K = n, operands on the GPU; some rows of D are compared.

    Yields
    ------
    dict
        "what", "spec", "n", "ms" (median), "fastest", "slowest", "runs", "rate" (10^9 multiply-adds a second),
        "checked" (outputs compared with the CPU's) and "mismatches"; or "what" and "failed", the error.
    """
    for what, spec in variants().items():
        try:
            yield {"what": what, "spec": spec.name, "n": n, **_timed(spec, n, seed, clock())}
        except Exception as problem:
            said = " ".join(str(problem).split())[:300]
            yield {"what": what, "spec": spec.name, "n": n, "failed": f"{type(problem).__name__}: {said}"}


def _timed(spec: MmaSpec, n: int, seed: int, clock: Any) -> dict[str, Any]:
    A, B = (_square(spec, letter, n, seed) for letter in "AB")
    wide = np.float64 if str(spec.d_format) == "fp64" else np.float32
    start = np.zeros((1, n, n), np.int32 if spec.is_integer else wide)
    one, cuts = np.zeros(1, np.int64), np.zeros(-(-n // spec.k), bool)
    run = chains.prepare(A, B, one, one, start, spec, cuts)
    assert run is not None
    D = Buffer.poisoned(start.nbytes)
    run.launch(D)  # to warm up, and for the bits
    got = D.array(start.shape, start.dtype)
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 3 or (len(times) < _REPEAT and time.perf_counter() - began < _SECONDS):
        clock.start()
        run.launch(D, wait=False)
        times.append(clock.stop())
    device.synchronize()
    draw = trials.Draw(seed, "rows", spec.name)
    rows = sorted({draw.below(n) for _ in range(_CHECKED)})
    from fpemu.mma import compiled

    want = compiled.chain(A[:, rows], B, one, one, start[:, rows], spec, cuts)
    ms = statistics.median(times)
    return {
        "ms": round(ms, 3),
        "fastest": round(min(times), 3),
        "slowest": round(max(times), 3),
        "runs": len(times),
        "rate": round(n**3 / ms / 1e6, 1),
        "checked": want.size,
        "mismatches": int((trials.codes(got[:, rows]) != trials.codes(want.astype(got.dtype, copy=False))).sum()),
    }


def _square(spec: MmaSpec, letter: str, n: int, seed: int) -> NDArray[Any]:
    """A carrier (1, K, n) or (1, n, K), K whole instructions: the numbers of ordinary data."""
    fmt = spec.a_format if letter == "A" else spec.b_format
    drawn = streams.operand(spec, letter, "uniform", seed, 0, 1, 1, _DRAWN - 1)
    few = values(drawn, fmt).reshape(-1)
    out = np.empty(few.shape, operands.carrier(fmt))
    operands.carry(few, fmt, out)
    K = -(-n // spec.k) * spec.k
    return np.resize(out, (1, n, K) if letter == "A" else (1, K, n))


def crossover(seed: int, repeat: int = 7) -> Iterator[dict[str, Any]]:
    """From which size on a call on the GPU, transfers included, takes less time than on the CPU.

    Yields
    ------
    dict
        "spec", "sizes" (M = N = K), "cpu" and "cuda" (milliseconds, medians), "from": the least size from which on the
        GPU is faster at every size tried; None if there is none.
    """
    for spec in (mma.spec("hopper"), mma.spec("cdna3"), mma.spec("hopper", "fp64"), mma.spec("hopper", "int8")):
        times: dict[Any, list[float]] = {"cpu": [], "cuda": []}
        for n in _SIZES:
            A, B = (_square(spec, letter, n, seed)[0] for letter in "AB")
            A, B = A[:, :n], B[:n]
            if not spec.is_integer:
                A, B = A.astype(spec.a_format.dtype), B.astype(spec.b_format.dtype)  # type: ignore[union-attr]
            for where, found in times.items():
                found.append(_median(partial(mma.gemm, A, B, spec=spec, device=where), repeat))
        faster = [g < c for c, g in zip(times["cpu"], times["cuda"], strict=True)]
        last = max((i for i, won in enumerate(faster) if not won), default=-1) + 1
        yield {"spec": spec.name, "sizes": list(_SIZES), **times, "from": _SIZES[last] if last < len(_SIZES) else None}


def _median(call: Callable[[], Any], repeat: int) -> float:
    """Milliseconds."""
    call()
    times: list[float] = []
    while len(times) < repeat and (len(times) < 3 or sum(times) < 1e3 * _SECONDS):
        began = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - began))
    return round(statistics.median(times), 4)
