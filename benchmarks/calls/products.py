"""Time of calls until the GPU has finished, in microseconds, beside the library's product of the same operands."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import fpemu
from benchmarks import timing
from benchmarks.calls.timer import Call, Row, Timer
from benchmarks.gpu import implementations
from benchmarks.gpu.operands import Operands

VARIANTS: dict[str, dict[str, Any]] = {
    "staged": {},
    "staged, balanced": {"high_rounding": "balanced"},
    "staged, Strassen": {"levels": 1},
}
"""Options of `staged` by the name of a sustained call."""


def batch(timer: Timer, n: int, count: int) -> Row:
    """Measure a batch of fp16 products n×n×n."""
    A, B, D = (timer.draw(count, n, n, dtype="float16") for _ in range(3))
    return timer.whole_and_replayed(
        {"bmm": partial(timer.torch.bmm, A, B, out=D), "fpemu": partial(fpemu.gpu.batched.hgemm, A, B, out=D)}
    )


def square(timer: Timer, n: int) -> Row:
    """Measure products n×n×n by three schemes, with B split in each call or once, beside SGEMM and three fp16 calls."""
    A, B, D = (timer.draw(n, n) for _ in range(3))
    calls: dict[str, Call] = {"SGEMM": partial(timer.torch.mm, A, B, out=D), "three fp16": _three(timer, A, B)}
    for scheme in ("staged", "ootomo", "legemm"):
        plan = fpemu.gpu.plan(scheme, A, B)
        calls[scheme] = partial(fpemu.gpu.gemm, A, B, scheme=scheme, out=D)
        calls[f"{scheme} prepared"] = partial(plan, A, plan.prepare(B), out=D)
    return timer.whole_and_replayed(calls)


def long_sum(timer: Timer, M: int, N: int, K: int) -> Row:
    """Measure a product of few outputs and a large K, which thread blocks share in slices."""
    A, B, D = timer.draw(M, K), timer.draw(K, N), timer.draw(M, N)
    return timer.whole_and_replayed(
        {"SGEMM": partial(timer.torch.mm, A, B, out=D), "staged": partial(fpemu.gpu.gemm, A, B, scheme="staged", out=D)}
    )


def tall(timer: Timer, m: int, k: int, n: int, dtype: str) -> Row:
    """Measure a tall and skinny product m×k×n."""
    A, B, D = (timer.draw(*shape, dtype=dtype) for shape in ((m, k), (k, n), (m, n)))
    return timer.whole(
        {
            "torch.mm": partial(timer.torch.mm, A, B, out=D),
            "multiply": partial(fpemu.gpu.tallskinny.multiply, A, B, out=D),
        }
    )


def ozaki2(timer: Timer, n: int) -> Row:
    """Measure the Ozaki scheme II on products n×n×n in fp64 by its three scalings."""
    A, B, D = (timer.draw(n, n, dtype="float64") for _ in range(3))
    calls: dict[str, Call] = {
        scaling: partial(fpemu.gpu.gemm, A, B, scheme="ozaki2", scaling=scaling, out=D)
        for scaling in ("fast", "accurate", "invariant")
    }
    return timer.whole({"DGEMM": partial(timer.torch.mm, A, B, out=D), **calls})


def sustained(timer: Timer, n: int, names: tuple[str, ...]) -> Row:
    """Measure sustained calls of products n×n×n by `staged` beside three fp16 products of cuBLAS."""
    A, B, D = (timer.draw(n, n) for _ in range(3))
    calls: dict[str, Call] = {"three fp16": _three(timer, A, B)}
    for name in names:
        calls[name] = partial(fpemu.gpu.gemm, A, B, scheme="staged", out=D, **VARIANTS[name])
    return timer.sustained(calls)


def split(timer: Timer, n: int) -> Row:
    """Measure the kernels of a product n×n×n by `staged`: the split alone, the product alone, and both."""
    prepared = implementations.prepare(implementations.find("staged"), Operands(n, n, n))
    calls = {"split": prepared.split, "product": prepared.multiply, "both": prepared.both}
    method = replace(timing.STEADY, loop=0.0)
    return {name: round(1e6 * timing.measure(call, method).median, 2) for name, call in calls.items() if call}


def _three(timer: Timer, A: Any, B: Any) -> Call:
    """Return three fp16 products of cuBLAS with fp16 results: the least work of a scheme with three products."""
    a, b = A.half(), B.half()
    d = timer.torch.empty_like(a)

    def three() -> None:
        for _ in range(3):
            timer.torch.mm(a, b, out=d)

    return three
