"""Tall and narrow products to measure: operands, contenders, errors of a sample.

Operands are uniform in [0, 1], as in the paper. Small ones are there several times over, and launches go round, so
that A comes from memory and not from a cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import reference
from fpemu.gpu import matrices
from fpemu.gpu import tallskinny as gpu
from fpemu.gpu.bench import runs, shapes, vendor
from fpemu.gpu.bench.places import Place, draw, fetch
from fpemu.gpu.bench.runs import Run
from fpemu.gpu.bench.task import SEED, Task
from fpemu.gpu.device import Buffer

SAMPLE = 16
"""Rows of the result that are compared."""
ROUND = 2**28
"""Bytes between two uses of an operand, where that takes `MOST` copies or fewer."""
MOST = 64
_TYPES: dict[str, Any] = {"fp32": np.dtype(np.float32), "fp64": np.dtype(np.float64)}
KIND, BASE = shapes.TALL, shapes.BASE


def tasks(quick: bool) -> Iterator[Task]:
    """The rows."""
    return shapes.tasks(KIND, shapes.tall(quick))


def make(task: Task) -> Tall:
    """Operands on the GPU."""
    return Tall((task.M, task.N, task.K), task.fmt, task.data.endswith("columns"), SEED)


def measure(task: Task, made: Tall) -> dict[str, Any]:
    """The fields of a row."""
    size = made.dtype.itemsize * task.M * task.N
    found = runs.measure(prepare(made, task.contender), made.buffers["D"], size, made.exact())
    elements = task.M * task.K + task.K * task.N + task.M * task.N
    return {**found, "operations": 2.0 * task.M * task.N * task.K, "bytes": made.dtype.itemsize * elements}


def seconds(task: Task) -> float:
    """About how long a row takes."""
    slow = 40.0 if task.contender == "V0" else 1.0
    return runs.seconds(slow * 8.0 * task.M * task.K)


class Tall:
    """A (M, K), B (K, N) and the result (M, N), `copies` times A and the result.

    Parameters
    ----------
    shape : (M, N, K)
    fmt : {"fp32", "fp64"}
    columns : bool
        All are stored by columns, else by rows.
    seed : int
    """

    def __init__(self, shape: tuple[int, int, int], fmt: str, columns: bool, seed: int = 0) -> None:
        self.shape, self.fmt, self.columns, self.dtype = shape, fmt, columns, _TYPES[fmt]
        M, N, K = shape
        self.sides = {"A": (M, K), "B": (K, N), "D": (M, N)}
        size = self.dtype.itemsize
        self.copies = copies(size * M * (K + N))
        self.buffers = {
            "A": draw(fmt, self.copies * _aligned(M * K), 2 * seed, 0.0, 1.0),
            "B": draw(fmt, K * N, 2 * seed + 1, 0.0, 1.0),
            "D": Buffer.poisoned(self.copies * _aligned(M * N) * size),
        }
        self._exact: NDArray[Any] | None = None

    def place(self, who: str, copy: int = 0) -> Place:
        """An operand or the result, of one of the copies."""
        rows, columns = self.sides[who]
        step = 0 if who == "B" else _aligned(rows * columns) * self.dtype.itemsize
        pointer = self.buffers[who].pointer + copy * step
        return Place(pointer, (rows, columns), self.dtype, self.columns, self.buffers[who])

    def rows(self) -> NDArray[np.int64]:
        """The rows of the sample."""
        return np.unique(np.linspace(0, self.shape[0] - 1, SAMPLE).astype(np.int64))

    def sample(self, who: str) -> NDArray[Any]:
        """The sample's rows of A or of the result, or all of B."""
        place, (rows, columns) = self.place(who), self.sides[who]
        if who == "B":
            flat = fetch(place.pointer, 0, rows * columns, self.dtype)
            return flat.reshape(columns, rows).T if self.columns else flat.reshape(rows, columns)
        return np.stack([_row(place, int(row)) for row in self.rows()])

    def exact(self) -> NDArray[np.float64]:
        """The sample, exact and rounded to fp64."""
        if self._exact is None:
            self._exact = np.asarray(reference.matmul(self.sample("A"), self.sample("B")), np.float64)
        return self._exact

    def library(self) -> Run:
        """cuBLAS."""
        calls = [vendor.tall(self.place("A", i).pointer, self.place("B").pointer, self.place("D", i).pointer,
                             self.shape, self.fmt, self.columns) for i in range(self.copies)]  # fmt: skip
        return self.run(calls, {})

    def run(self, calls: Sequence[Callable[[], None]], about: dict[str, Any]) -> Run:
        """A contender that has a call for every copy."""
        turn = itertools.cycle(calls)
        return Run(lambda: next(turn)(), calls[0], partial(self.sample, "D"), {**about, "copies": self.copies})


def copies(size: int) -> int:
    """How many copies of so many bytes launches go round in.

    >>> copies(2**28), copies(2**27), copies(1000)
    (1, 2, 64)
    """
    return max(1, min(MOST, -(-ROUND // size)))


def _aligned(count: int) -> int:
    """Elements from one copy to the next: whole lines of a cache."""
    return -(-count // 64) * 64


def _row(place: Place, row: int) -> NDArray[Any]:
    """A row of a matrix in memory."""
    rows, columns = place.shape
    if not place.columns:
        return fetch(place.pointer, row * columns, columns, place.dtype)
    from cuda.bindings import driver

    from fpemu.gpu import device

    out, size = np.empty(columns, place.dtype), place.dtype.itemsize
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice, copy.srcPitch = place.pointer + row * size, rows * size
    copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
    copy.dstHost, copy.dstPitch = out.ctypes.data, size
    copy.WidthInBytes, copy.Height = size, columns
    device.synchronize()
    device.check(device._enter().cuMemcpy2D(copy))
    return out


def asked(name: str, k: int) -> tuple[str, dict[str, Any]]:
    """The algorithm of `fpemu.gpu.tallskinny` behind a contender, and its options.

    >>> asked("V3", 20480), asked("opt 2 tcf=8", 16), asked("hopper", 16)
    (('tsm2', {'version': 'V3'}), ('ism2', {'optimisation': 2, 'tcf': 8}), ('ism2', {'optimisation': 'hopper'}))
    """
    if name == "hopper":
        return ("ism2", {"optimisation": "hopper"}) if k <= gpu.SMALL else ("tsm2", {"version": "hopper"})
    if name.startswith("opt "):
        words = name.split()
        factor = {"tcf": int(words[2].removeprefix("tcf="))} if len(words) == 3 else {}
        return "ism2", {"optimisation": int(words[1]), **factor}
    return "tsm2", {"version": name}


def prepare(tall: Tall, name: str) -> Run:
    """Make a contender ready."""
    if name == BASE:
        return tall.library()
    algorithm, options = asked(name, tall.shape[2])
    A, B, D = ([tall.place(who, copy) for copy in range(tall.copies)] for who in "ABD")
    calls = [gpu.prepare(*places, algorithm, **options).queue for places in zip(A, B, D, strict=True)]
    return tall.run(calls, {"kernel": _told(tall, algorithm, options)})


def _told(tall: Tall, algorithm: str, options: dict[str, Any]) -> str:
    """The kernel that is launched, and its parameters."""
    A, B, D = (matrices.take(tall.place(who), who) for who in "ABD")
    plan = gpu.plan(gpu.Problem.of(A, B, D), algorithm, **options)
    return " ".join([plan.entry, *(f"{name}={value}" for name, value in plan.parameters.items())])


def sources(task: Task) -> list[str]:
    """What the kernel of a row compiles."""
    if task.contender == BASE:
        return []
    algorithm, options = asked(task.contender, task.K)
    a, b, c = ((1, rows) if task.data.endswith("columns") else (columns, 1)
               for rows, columns in ((task.M, task.K), (task.K, task.N), (task.M, task.N)))  # fmt: skip
    problem = gpu.Problem(task.fmt, task.M, task.K, task.N, a, b, c, (2**20,) * 3)
    with suppress(Exception):  # it will be told where the row is measured
        return [gpu.plan(problem, algorithm, **options).source]
    return []
