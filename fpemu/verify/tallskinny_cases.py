"""What `fpemu verify tallskinny` multiplies: products as functions of a seed and a number, the same on every machine.

Every size from 1 to 130 comes once as m, once as k and once as n; what is larger than that follows. Operands are of the
classes of `fpemu.mma.operand_streams`: subnormals, overflow, cancellation, zeros of both signs, NaN and Inf among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import simt
from fpemu.gpu.tallskinny import hopper, published
from fpemu.gpu.tallskinny.launch import Plan
from fpemu.gpu.tallskinny.problem import Problem
from fpemu.mma import operand_streams as streams
from fpemu.mma.codes import values
from fpemu.verify import trials

KERNELS = ("V0", "V1", "V2", "V3", "opt 1", "opt 2", "TSM2 hopper", "ISM2 hopper")
FORMATS = ("fp32", "fp64")
LAYOUTS = ("columns", "rows", "columns apart", "rows apart", "columns odd", "rows odd", "spaced")
"""How a matrix lies in memory. apart: with a leading dimension, a multiple of 16 bytes; odd: neither that nor the
address is"""
_TOGETHER = ((0, 0, 0), (1, 1, 1), (2, 2, 2), (4, 4, 4), (5, 5, 5), (6, 6, 6), (0, 1, 3), (3, 6, 0))
"""Which layouts A, B and C have: few, as kernels are compiled for them"""
SWEPT = 130
_ROWS = (1, 31, 64, 130, 97, 8, 33, 256, 300)
_INNER = (2, 7, 16, 33, 64, 130)
_COLUMNS = (2, 3, 8, 16, 33)
LARGER = (
    (1000, 1000, 16),
    (4100, 257, 8),
    (300, 4000, 4),
    (20000, 16, 16),
    (9999, 2, 2),
    (5001, 7, 5),
    (2049, 513, 2),
    (700, 96, 40),
    (10000, 8, 8),
    (1, 10000, 16),
    (640, 640, 1),
    (12345, 4, 4),
    (2500, 33, 3),
    (515, 2051, 6),
)
"""(m, k, n) of the products after those"""
CASES = 3 * SWEPT + len(LARGER)
_TILES = ((256, 1, 4), (96, 3, 3), (64, 8, 2), (128, 16, 8), (32, 20, 1))
"""t1, t2, t3: few, as each is a kernel to compile"""
_KINDS = tuple(kind for kind in streams.CLASSES if kind != "deep")


@dataclass(frozen=True)
class Case:
    """One product: all that decides its bits, but for the operands, which are drawn from `key`; and how it is run."""

    fmt: str
    key: int
    sizes: tuple[int, int, int]
    """m, k, n"""
    layouts: tuple[str, str, str]
    kinds: tuple[str, str]
    """Classes of `fpemu.mma.operand_streams` of A's and B's operands"""
    tiles: tuple[int, int, int]
    tcf: int
    sms: int
    """Multiprocessors that the kernels for Hopper count on, which decides how many rows a thread has"""
    rows: int = 0
    """Rows that a thread of TSM2's kernel for Hopper has; 0: as many as it chooses. With one multiprocessor a single
    thread block takes all tiles of rows, one after another"""
    spread: int = 0
    """Of `hopper.ism2`, whose choice by the number of rows would be the same for nearly all products"""

    def __str__(self) -> str:
        m, k, n = self.sizes
        parts = f"{self.fmt} {m}×{k} by {k}×{n}", " and ".join(self.kinds), " / ".join(self.layouts)
        return ", ".join([*parts, f"t = {self.tiles}, tcf = {self.tcf}"])


def case(fmt: str, number: int, seed: int) -> Case:
    """The product of a number, from 0 to `CASES` - 1.

    Examples
    --------
    >>> [case("fp32", number, 0).sizes[number % 3] for number in (0, 1, 2, 387, 388, 389)]
    [1, 1, 1, 130, 130, 130]
    """
    draw = trials.Draw(seed, "tall and skinny", fmt, number)
    if number < 3 * SWEPT:
        sizes = [draw.pick(_ROWS), draw.pick(_INNER), draw.pick(_COLUMNS)]
        sizes[number % 3] = number // 3 + 1
    else:
        sizes = list(LARGER[(number - 3 * SWEPT) % len(LARGER)])
    kinds = draw.pick(_KINDS), draw.pick(_KINDS)
    if max(sizes[1], 1) > 16 and "any-bits" in kinds and number % 2:  # else nearly every long sum is NaN
        kinds = "mixed", "mixed"
    layouts = tuple(LAYOUTS[which] for which in draw.pick(_TOGETHER))
    tiles = draw.pick([tiles for tiles in _TILES if tiles[1] <= sizes[2]])
    return Case(
        fmt,
        draw.word(),
        (sizes[0], sizes[1], sizes[2]),
        (layouts[0], layouts[1], layouts[2]),
        kinds,
        tiles,
        draw.pick((1, 2, 3)),
        draw.pick((132, 132, 1)),
        draw.pick((0, 0, 0, 1)),
        draw.pick((0, 0, 1, 2)),
    )


def operands(case: Case) -> tuple[NDArray[Any], NDArray[Any]]:
    """A and B, values in C order."""
    m, k, n = case.sizes
    row = simt.SPECS[case.fmt].replace(k=k)
    fmt = row.operand_formats[0]
    a = streams.operand(row, "A", case.kinds[0], trials.Draw(case.key, "A").word(), 0, 1, m, k)
    b = streams.operand(row, "B", case.kinds[1], trials.Draw(case.key, "B").word(), 0, 1, n, k)
    return np.ascontiguousarray(values(a, fmt)[0]), np.ascontiguousarray(values(b, fmt)[0].T)


@dataclass(frozen=True)
class Memory:
    """How a matrix lies in a flat array.

    Parameters
    ----------
    length : int
        Elements of the array.
    first : int
        Where element (0, 0) is.
    steps : (int, int)
        Elements from one row and from one column to the next.
    """

    length: int
    first: int
    steps: tuple[int, int]

    @classmethod
    def of(cls, layout: str, shape: tuple[int, int], vector: int) -> Memory:
        """The memory of a layout; `vector` elements are 16 bytes."""
        rows, columns = shape
        if layout == "spaced":
            return cls(6 * rows * columns, 0, (6 * columns, 3))
        inner, outer = (rows, columns) if layout.startswith("columns") else (columns, rows)
        pitch, first = inner, 0
        if layout.endswith("apart"):
            pitch = -(-inner // vector) * vector + vector
        elif layout.endswith("odd"):
            pitch, first = inner + 1 + inner % 2, 1
        return cls(first + outer * pitch, first, (1, pitch) if layout.startswith("columns") else (pitch, 1))

    def view(self, flat: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
        """The matrix in a flat array."""
        size = flat.itemsize
        return np.lib.stride_tricks.as_strided(flat[self.first :], shape, tuple(s * size for s in self.steps))

    def laid(self, x: NDArray[Any]) -> NDArray[Any]:
        """A flat array that holds a matrix, NaN everywhere else."""
        flat = np.full(self.length, np.nan, x.dtype)
        self.view(flat, x.shape)[...] = x
        return flat


def memories(case: Case) -> tuple[Memory, Memory, Memory]:
    """The memory of A, B and C."""
    m, k, n = case.sizes
    vector = 4 if case.fmt == "fp32" else 2
    shapes = ((m, k), (k, n), (m, n))
    a, b, c = (Memory.of(layout, shape, vector) for layout, shape in zip(case.layouts, shapes, strict=True))
    return a, b, c


def problem(case: Case, addresses: tuple[int, int, int], owners: object = None) -> Problem:
    """The product of matrices whose memory begins at some addresses."""
    a, b, c = memories(case)
    size = 4 if case.fmt == "fp32" else 8
    at = tuple(address + memory.first * size for address, memory in zip(addresses, (a, b, c), strict=True))
    return Problem(case.fmt, *case.sizes, a.steps, b.steps, c.steps, (at[0], at[1], at[2]), owners)


def plan(kernel: str, case: Case, found: Problem) -> Plan:
    """The launch of one of `KERNELS` with a case's parameters."""
    model = published.here(case.fmt)
    t1, t2, t3 = case.tiles
    if kernel in ("V0", "V1"):
        return published.tsm2(found, model, kernel)
    if kernel.startswith("V"):
        return published.tsm2(found, model, kernel, t1, t2, t3)
    if kernel.startswith("opt"):
        return published.ism2(found, model, int(kernel[-1]), case.tcf, t1, t2, t3)
    if kernel == "TSM2 hopper":
        return hopper.tsm2(found, case.sms, **({"ROWS": case.rows} if case.rows else {}))
    return hopper.ism2(found, case.sms, case.tcf, spread=case.spread)
