"""Matrices of more than 2^32 elements: some rows of what the kernels return against the emulation of those rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import simt
from fpemu.gpu.runtime import callers, device, properties
from fpemu.gpu.tallskinny import hopper, published
from fpemu.gpu.tallskinny.launch import Plan
from fpemu.gpu.tallskinny.problem import Problem
from fpemu.verify import seeded

SHAPES = ((65600, 65600, 2), (65603, 65601, 2), (2**28 + 12, 16, 2), (2**28 + 13, 17, 3))
"""(m, k, n): steps that are multiples of 16 bytes, and such that are not; a large A, and one of many rows"""
LAYOUTS = ("columns", "rows")
KERNELS = ("V1", "V3", "opt 1", "opt 2", "TSM2 hopper", "ISM2 hopper")
ROWS = 24
_SPARE = 2**30  # bytes of memory that stay free


@dataclass(frozen=True)
class Huge:
    """What was found about one kernel and one product."""

    kernel: str
    fmt: str
    sizes: tuple[int, int, int]
    layout: str
    outputs: int
    mismatches: int


def check(formats: Sequence[str] = ("fp32", "fp64"), seed: int = 0) -> Iterator[Huge]:
    """Multiply and compare, as far as the GPU's memory goes.

    Yields
    ------
    Huge
        One a kernel, a shape, a layout and a format.
    """
    device.compile_all(sources(formats), device.arch())
    for fmt in formats:
        for sizes in SHAPES:
            m, k, n = sizes
            size = 4 if fmt == "fp32" else 8
            if size * (m * k + k * n + m * n) + _SPARE > callers.free_bytes():
                continue
            A, B = (seeded.draw(fmt, count, 2 * seed + i, -1.0, 1.0) for i, count in enumerate((m * k, k * n)))
            C = device.Buffer(m * n * size)
            for layout in LAYOUTS:
                problem = _problem(fmt, sizes, layout, (A.pointer, B.pointer, C.pointer), (A, B, C))
                rows = _rows(m, k)
                want = _emulated(problem, rows, seed)
                for kernel in KERNELS:
                    C.fill(device.POISON)
                    _plan(kernel, problem).run(problem)
                    got = _fetched(problem, rows, want.dtype)
                    yield Huge(kernel, fmt, sizes, layout, want.size, int(np.count_nonzero(want != got)))
            for buffer in (A, B, C):
                buffer.free()


def sources(formats: Sequence[str]) -> list[str]:
    """The kernels that `check` takes, to have them compiled before."""
    found = [_problem(fmt, sizes, layout, (2**20,) * 3) for fmt in formats for sizes in SHAPES for layout in LAYOUTS]
    return list(dict.fromkeys(_plan(kernel, problem).source for problem in found for kernel in KERNELS))


def _problem(
    fmt: str, sizes: tuple[int, int, int], layout: str, addresses: tuple[int, int, int], owners: object = None
) -> Problem:
    m, k, n = sizes
    a, b, c = ((1, rows) if layout == "columns" else (columns, 1) for rows, columns in ((m, k), (k, n), (m, n)))
    return Problem(fmt, m, k, n, a, b, c, addresses, owners)


def _rows(m: int, k: int) -> NDArray[np.int64]:
    """The first and the last rows, those about an index of 2^31 and of 2^32, and others spread over all."""
    some = np.linspace(0, m - 1, ROWS - 6).astype(np.int64)
    about = [min(at // k + d, m - 1) for at in (2**31, 2**32) for d in (0, 1)]
    return np.unique([*some, *about, m - 2, m - 1])


def _plan(kernel: str, problem: Problem) -> Plan:
    model = published.here(problem.fmt)
    if kernel.startswith("V"):
        return published.tsm2(problem, model, kernel)
    if kernel.startswith("opt"):
        return published.ism2(problem, model, int(kernel[-1]))
    return (hopper.tsm2 if kernel == "TSM2 hopper" else hopper.ism2)(problem, properties.multiprocessors())


def _emulated(problem: Problem, rows: NDArray[np.int64], seed: int) -> NDArray[Any]:
    """The patterns of some rows of C: their rows of A are drawn again here."""
    k, n = problem.k, problem.n
    (row, step), (b_row, b_step) = problem.a, problem.b
    A = seeded.drawn_at(problem.fmt, rows[:, None] * row + np.arange(k, dtype=np.int64) * step, 2 * seed, -1.0, 1.0)
    index = np.arange(k, dtype=np.int64)[:, None] * b_row + np.arange(n) * b_step
    B = seeded.drawn_at(problem.fmt, index, 2 * seed + 1, -1.0, 1.0)
    D = np.asarray(simt.gemm(A, B, fmt=problem.fmt))
    return D.view(f"u{D.itemsize}")


def _fetched(problem: Problem, rows: NDArray[np.int64], dtype: Any) -> NDArray[Any]:
    row, step = problem.c
    out = np.empty((len(rows), problem.n), dtype)
    for i, r in enumerate(rows):
        for j in range(problem.n):
            out[i, j] = seeded.fetch(problem.addresses[2], int(r) * row + j * step, 1, dtype)[0]
    return out
