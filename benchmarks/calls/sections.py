"""The sections of the record: the cases of each, and its time limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from benchmarks.calls import host, products
from benchmarks.calls.timer import Row, Timer

BATCHES = {n: min(200_000, 2**24 // n**2) for n in (2, 4, 8, 11, 16, 24, 32, 48, 63, 64, 97, 127, 128)}
LONG_SUMS = ((128, 128, 65536), (64, 256, 32768), (16, 16, 65536), (256, 256, 16384), (512, 512, 8192))
"""M, N, K."""
TALL = (
    (1_000_000, 32, 4, "float32"),
    (20_480, 20_480, 8, "float32"),
    (15_360, 15_360, 16, "float64"),
    *((20_480, 20_480, n, "float64") for n in (2, 8, 16)),
)
"""Rows and columns of A, columns of B, and their dtype."""


@dataclass(frozen=True)
class Section:
    """Cases by name, and the functions that return their rows."""

    seconds: float  # no case begins later
    cases: Mapping[str, Callable[[Timer], Row]]
    on_host: bool = False  # host times: no power and clock, because their thread would take host time


SECTIONS = {
    "host": Section(
        15,
        {scheme: partial(host.product, scheme=scheme) for scheme in host.SCHEMES}
        | {"hgemm, 16 of 16x16x16": host.batch, "multiply, 512x32x4": host.tall},
        on_host=True,
    ),
    "products": Section(22, {str(n): partial(products.square, n=n) for n in (512, 1024, 2048, 4096)}),
    "sustained": Section(
        32,
        {
            str(n): partial(products.sustained, n=n, names=("staged", *more))
            for n, more in {4096: (), 8192: ("staged, balanced",), 16384: (*products.VARIANTS,)[1:]}.items()
        },
    ),
    "batches": Section(
        10, {f"{n} x {count}": partial(products.batch, n=n, count=count) for n, count in BATCHES.items()}
    ),
    "tall": Section(
        8, {f"{m}x{k}x{n} {dtype}": partial(products.tall, m=m, k=k, n=n, dtype=dtype) for m, k, n, dtype in TALL}
    ),
    "long_sums": Section(10, {f"{M}x{N}x{K}": partial(products.long_sum, M=M, N=N, K=K) for M, N, K in LONG_SUMS}),
    "ozaki2": Section(10, {str(n): partial(products.ozaki2, n=n) for n in (8192, 4096, 1024)}),
    "split": Section(10, {str(n): partial(products.split, n=n) for n in (512, 1024, 2048, 4096)}),
    "operators": Section(
        30,
        {"gemm": host.gemm, "hgemm": host.hgemm, "multiply": host.multiply, "gradients": host.gradients}
        | {f"compiled, {mode}": partial(host.compiled, mode=mode) for mode in ("default", "reduce-overhead")},
        on_host=True,
    ),
}
"""In the order of their measurement; together at most 147 s."""
