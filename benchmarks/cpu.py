"""``fpemu bench cpu``: speed and memory of the emulation on this machine, one line per kind of instruction.

A line shows the median time of several products, without compilation, in ns per multiply-add, or of an operation on
n × n entries in ns per entry; its ratio to np.matmul in
fp32 of the same shape in the same run; and the memory beyond the operands and the result, whose bar is four times the
operands and 64 MB. The bars are for n = 1024 and hold for two cores.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing import wall
from fpemu.errors import InputError

MEMORY_FIXED = 64e6
MEMORY_TIMES_OPERANDS = 4
LARGEST = 16384
RATIO_BAR = 35.0
"""The first line's bar relative to np.matmul."""


@dataclass(frozen=True)
class Case:
    """One line: the product, and its bar in ns per multiply-add (None: no bar)."""

    name: str
    hardware: str | None
    ab: str = "fp16"
    cd: str = "fp32"
    bar: float | None = None
    backend: str = "compiled"
    instruction: str | None = None
    size: int | None = None
    """n of this line, where it differs from the others'."""
    scheme: str | None = None
    """An error-free scheme in place of plain instructions, with the bar of `_scheme_bar`."""
    scale: str | None = None
    """Format of the scales of a block-scaled instruction."""
    operation: str | None = None
    """An operation of `_operations` in place of a product."""


CASES = (
    Case("hopper fp16->fp32", "hopper", bar=0.3),
    Case("ampere fp16->fp32", "ampere", bar=1.0),
    Case("volta fp16->fp32", "volta", bar=1.0),
    Case("hopper bf16->fp32", "hopper", "bf16", bar=1.0),
    Case("hopper tf32->fp32", "hopper", "tf32", bar=1.0),
    Case("ampere tf32->fp32", "ampere", "tf32", bar=1.0),
    Case("hopper fp16->fp16", "hopper", "fp16", "fp16", bar=1.0),
    Case("hopper wgmma e4m3->fp32", "hopper", "e4m3", bar=1.0, instruction="wgmma"),
    Case("hopper wgmma e5m2->fp32", "hopper", "e5m2", bar=1.0, instruction="wgmma"),
    Case("cdna1 fp16->fp32", "cdna1", bar=3.0),
    Case("cdna2 fp16->fp32", "cdna2", bar=3.0),
    Case("cdna2 bf16->fp32", "cdna2", "bf16", bar=3.0),
    Case("cdna3 fp16->fp32", "cdna3", bar=3.0),
    Case("cdna3 e4m3->fp32", "cdna3", "e4m3", bar=3.0),
    Case("ascend910a fp16->fp32", "ascend910a"),
    Case("ideal fp16->fp32", "ideal"),
    Case("simt fp32 (SGEMM)", None, "fp32", "fp32"),
    Case("simt bf16 accumulator", None, "bf16", "bf16", bar=3.0, size=512),
    Case("blackwell mxfp8 e4m3->fp32", "blackwell", "e4m3", bar=3.0, scale="ue8m0"),
    Case("blackwell nvfp4 e2m1->fp32", "blackwell", "e2m1", bar=3.0, scale="ue4m3"),
    Case("hopper fp16->fp32, NumPy form", "hopper", bar=25.0, backend="numpy", size=256),
    Case("turing ozaki CR (fp64)", "turing", "fp64", size=512, scheme="ozaki"),
    Case("round_to fp64->fp16", None, bar=1.5, operation="round_to"),
    Case("split of h2sgemm", None, bar=8.0, operation="split"),
    Case("inputs uniform", None, bar=5.0, operation="uniform"),
    Case("inputs wide", None, bar=12.0, operation="wide"),
    Case("inputs normal", None, bar=20.0, operation="normal"),
    Case("inputs lognormal", None, bar=25.0, operation="lognormal"),
    Case("inputs phi", None, bar=40.0, operation="phi"),
    Case("relative_l2", None, bar=8.0, operation="relative_l2"),
    Case("ulps", None, bar=5.0, operation="ulps"),
    Case("exact product (ns per entry)", None, size=512, operation="reference"),
    Case("sweep cell h2sgemm (ns per entry)", None, size=512, operation="cell"),
    Case("its three products (ns per entry)", None, size=512, operation="products"),
)


def run(size: int = 1024, repeat: int = 3, only: str | None = None) -> dict[str, Any]:
    """Measure every case, or those whose name contains `only`, as the median of `repeat` runs.

    "lines" is a list of dicts: case, n, ns (per multiply-add), ratio (to np.matmul in fp32), compile (seconds of the
    first call beyond a later one), memory and memory_bar (bytes), bar (ns), ok (None where there is no bar, or another
    size than the bar is for).
    """
    if not 1 <= size <= LARGEST or repeat < 1:
        raise InputError(f"size {size} must lie between 1 and {LARGEST}, and repeat {repeat} must be positive")
    chosen = [case for case in CASES if only is None or only.lower() in case.name.lower()]
    if not chosen:
        raise InputError(f"no case contains {only!r}: {', '.join(case.name for case in CASES)}")
    import numba

    from fpemu._system import threads

    lines = [_measure(case, size, repeat) for case in chosen]
    versions = {"python": sys.version.split()[0], "numpy": np.__version__, "numba": numba.__version__}
    return {"threads": threads(), "versions": versions, "lines": lines}


def _measure(case: Case, size: int, repeat: int) -> dict[str, Any]:
    n = case.size or size
    call, operands = _prepare(case, n)
    first = wall(call)
    X, Y = (np.asarray(x, np.float32) for x in operands)
    times, baseline = [], []
    for _ in range(repeat):  # alternately, so that other load on the machine slows both
        times.append(wall(call))
        baseline.append(wall(lambda: X @ Y))
    seconds = statistics.median(times)
    ratio = seconds / statistics.median(baseline)
    ns = seconds / n ** (2 if case.operation else 3) * 1e9
    memory = _extra_memory(call)
    memory_bar = MEMORY_TIMES_OPERANDS * sum(x.nbytes for x in operands) + MEMORY_FIXED
    ok: bool | None = memory <= memory_bar
    bar = case.bar if case.scheme is None else _scheme_bar(case, operands, repeat)
    if bar is not None and (size == 1024 or case.size):
        ok = ok and ns <= bar and (case is not CASES[0] or ratio <= RATIO_BAR)
    return {
        "case": case.name,
        "n": n,
        "ns": ns,
        "bar": bar,
        "ratio": ratio,
        "compile": max(0.0, first - seconds),
        "memory": memory,
        "memory_bar": memory_bar,
        "ok": ok,
    }


def _prepare(case: Case, n: int) -> tuple[Callable[[], Any], tuple[NDArray[Any], NDArray[Any]]]:
    """Return the product to time and its operands: seeded normal numbers rounded to the case's format."""
    from fpemu import formats, mma, simt
    from fpemu.rounding import round_to

    fmt = formats.get(case.ab)
    if case.operation is not None:
        return _operation(case.operation, n)
    generator = np.random.default_rng(20260101)
    A, B = (round_to(generator.standard_normal((n, n)), fmt).astype(fmt.dtype) for _ in range(2))
    if case.scheme is not None:
        from fpemu import schemes

        scheme, hardware = case.scheme, case.hardware
        return lambda: schemes.gemm(A, B, scheme=scheme, hardware=hardware, mode="CR"), (A, B)
    if case.hardware is None:
        return lambda: simt.gemm(A, B, fmt=case.ab, backend=case.backend), (A, B)  # type: ignore[arg-type]
    spec = mma.spec(case.hardware, case.ab, case.cd, case.instruction, scale=case.scale)
    return lambda: mma.gemm(A, B, spec=spec, backend=case.backend), (A, B)  # type: ignore[arg-type]


def _operation(name: str, n: int) -> tuple[Callable[[], Any], tuple[NDArray[Any], NDArray[Any]]]:
    """Return an operation on n × n entries, the operands of a cell of a sweep in fp64 and fp32."""
    from fpemu import inputs, metrics, mma, reference, rounding
    from fpemu.schemes.h2sgemm import H2sgemm
    from fpemu.sweep import Grid

    single, other = inputs.operands("uniform", n, n, n, 0)
    double = single.astype(np.float64)
    scheme, spec = H2sgemm(), mma.spec("H200", "fp16", "fp32")
    cell = Grid(inputs=["uniform"], schemes=["h2sgemm"], hardware="H200", M=n, N=n, K=n)
    a, b = scheme.split(single), scheme.split(other, "B")
    calls: dict[str, Callable[[], Any]] = {
        "round_to": lambda: rounding.round_to(double, "fp16"),
        "split": lambda: scheme.prepare(single, "A", "raise").words[0],
        "relative_l2": lambda: np.float64(metrics.relative_l2(other, double)),
        "ulps": lambda: metrics.ulps(other, single, "fp32"),
        "reference": lambda: reference.matmul(single, other),
        "cell": lambda: np.float64(cell.evaluate(cell.cells()[0])["relative_l2"]),
        "products": lambda: np.stack([mma.gemm(a[i], b[j], spec=spec) for i, j in ((1, 0), (0, 1), (0, 0))]),
    }
    return calls.get(name, lambda: inputs.make(name, (n, n), 0)), (single, double)


def _scheme_bar(case: Case, operands: tuple[NDArray[Any], NDArray[Any]], repeat: int) -> float:
    """Return 20 times np.matmul in fp64 plus np.matmul in fp32 for every product of slices, in ns per multiply-add."""
    from fpemu import schemes

    X, Y = operands
    x, y = X.astype(np.float32), Y.astype(np.float32)
    pairs = [(wall(lambda: X @ Y), wall(lambda: x @ y)) for _ in range(max(repeat, 5))]
    double, single = (statistics.median(t) for t in zip(*pairs, strict=True))
    products = schemes.certify(X, Y, scheme=case.scheme or "", hardware=case.hardware, mode="CR").report.products or 0
    return (20 * double + products * single) / len(X) ** 3 * 1e9


def _extra_memory(call: Callable[[], Any]) -> float:
    """Return the bytes at the peak of a call beyond those before it and its result.

    The larger of two measures: the allocations of NumPy and Python (tracemalloc), and, on Linux, the growth of the
    resident set, which includes allocations of compiled code.
    """
    gc.collect()
    before = _resident("VmRSS") if _reset_peak() else None
    result = call()
    peak = _resident("VmHWM")
    grown = peak - before - result.nbytes if before is not None and peak is not None else 0.0
    del result
    gc.collect()
    tracemalloc.start()
    try:
        result = call()
        traced = tracemalloc.get_traced_memory()[1] - result.nbytes
    finally:
        tracemalloc.stop()
    return float(max(grown, traced, 0))


def _reset_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _resident(field: str) -> float | None:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    sizes = [line.split()[1] for line in lines if line.startswith(field + ":")]
    return float(sizes[0]) * 1024 if sizes else None
