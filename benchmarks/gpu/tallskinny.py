"""Tall and narrow products: operands, implementations, errors of a sample.

Operands are uniform in [0, 1], as in the paper. Small ones exist in several copies, between which launches alternate,
so that A comes from memory and not from a cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu import cublas, prepared, shapes
from benchmarks.gpu.case import SEED, Case
from benchmarks.gpu.memory import DeviceArray
from benchmarks.gpu.prepared import Prepared
from benchmarks.seeded import draw, fetch
from fpemu import reference
from fpemu.gpu import tallskinny as gpu
from fpemu.gpu.runtime import matrices
from fpemu.gpu.runtime.device import Buffer
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.tallskinny.problem import Problem

SAMPLE = 16
"""Rows of the result that are compared."""
ROUND = 2**28
"""Bytes between two uses of an operand, where that takes `MOST` copies or fewer."""
MOST = 64
_TYPES: dict[str, Any] = {"fp32": np.dtype(np.float32), "fp64": np.dtype(np.float64)}
KIND, BASE = shapes.TALL, shapes.BASE


def cases(quick: bool) -> Iterator[Case]:
    """Return the cases."""
    return shapes.cases(KIND, shapes.tall(quick))


def make(case: Case) -> Tall:
    """Draw the operands on the GPU."""
    return Tall((case.M, case.N, case.K), case.fmt, case.data.endswith("columns"), SEED)


def measure(case: Case, tall: Tall) -> dict[str, Any]:
    """Return the fields of a row."""
    size = tall.dtype.itemsize
    fields = prepared.measure(prepare(tall, case.implementation), tall.buffers["D"], size * case.M * case.N, tall.exact)
    elements = case.M * case.K + case.K * case.N + case.M * case.N
    return {**fields, "operations": 2.0 * case.M * case.N * case.K, "bytes": size * elements}


def seconds(case: Case) -> float:
    """Estimate the seconds of a case."""
    slow = 40.0 if case.implementation == "V0" else 1.0
    return prepared.seconds(slow * 8.0 * case.M * case.K)


class Tall:
    """A (M, K), B (K, N) and D (M, N), all stored by columns or all by rows, with copies of A and D."""

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

    def array(self, name: str, copy: int = 0) -> DeviceArray:
        """Return an operand or the result, of one of the copies."""
        rows, columns = self.sides[name]
        step = 0 if name == "B" else _aligned(rows * columns) * self.dtype.itemsize
        pointer = self.buffers[name].pointer + copy * step
        return DeviceArray(pointer, (rows, columns), self.dtype, self.columns, self.buffers[name])

    def rows(self) -> NDArray[np.int64]:
        """Return the indices of the sample's rows."""
        return np.unique(np.linspace(0, self.shape[0] - 1, SAMPLE).astype(np.int64))

    def sample(self, name: str) -> NDArray[Any]:
        """Fetch the sample's rows of A or of the result, or all of B."""
        array, (rows, columns) = self.array(name), self.sides[name]
        if name == "B":
            flat = fetch(array.pointer, 0, rows * columns, self.dtype)
            return flat.reshape(columns, rows).T if self.columns else flat.reshape(rows, columns)
        return np.stack([array.row(int(row)) for row in self.rows()])

    @cached_property
    def exact(self) -> NDArray[np.float64]:
        """The sample's exact product, rounded to fp64."""
        return np.asarray(reference.matmul(self.sample("A"), self.sample("B")), np.float64)

    def library(self) -> Prepared:
        """Prepare cuBLAS' product."""
        copies, stored = range(self.copies), "columns" if self.columns else "rows"
        A, B, D = ([self.array(name, copy).pointer for copy in copies] for name in "ABD")
        return self.prepared([cublas.product(self.fmt, A[i], B[i], D[i], self.shape, stored) for i in copies], {})

    def prepared(self, calls: Sequence[Callable[[], None]], about: dict[str, Any]) -> Prepared:
        """Return an implementation that has a call for every copy."""
        turn = itertools.cycle(calls)
        return Prepared(
            lambda: next(turn)(), {**about, "copies": self.copies}, sample=partial(self.sample, "D"), examined=calls[0]
        )


def copies(size: int) -> int:
    """Return the number of copies, of `size` bytes each, between which launches alternate.

    >>> copies(2**28), copies(2**27), copies(1000)
    (1, 2, 64)
    """
    return max(1, min(MOST, -(-ROUND // size)))


def _aligned(count: int) -> int:
    """Round the distance of copies, in elements, to whole lines of a cache."""
    return -(-count // 64) * 64


def options(name: str, k: int) -> tuple[str, dict[str, Any]]:
    """Return an implementation's algorithm in `fpemu.gpu.tallskinny`, and its options.

    >>> options("V3", 20480), options("opt 2 tcf=8", 16), options("hopper", 16)
    (('tsm2', {'version': 'V3'}), ('ism2', {'optimisation': 2, 'tcf': 8}), ('ism2', {'optimisation': 'hopper'}))
    """
    if name == "hopper":
        return ("ism2", {"optimisation": "hopper"}) if k <= gpu.SMALL else ("tsm2", {"version": "hopper"})
    if name.startswith("opt "):
        words = name.split()
        factor = {"tcf": int(words[2].removeprefix("tcf="))} if len(words) == 3 else {}
        return "ism2", {"optimisation": int(words[1]), **factor}
    return "tsm2", {"version": name}


def prepare(tall: Tall, name: str) -> Prepared:
    """Make an implementation ready."""
    if name == BASE:
        return tall.library()
    algorithm, chosen = options(name, tall.shape[2])
    A, B, D = ([tall.array(operand, copy) for copy in range(tall.copies)] for operand in "ABD")
    first = Problem(*(matrices.take(x[0], operand) for x, operand in zip((A, B, D), "ABD", strict=True)))
    plan = gpu.plan(first, algorithm, **chosen)
    values = {name: int(value) if value is True else value for name, value in plan.parameters.items()}
    kernel = " ".join([plan.entry, *(f"{name}={value}" for name, value in values.items())])
    request = gpu.TallSkinnyRequest(algorithm, chosen)
    calls = [request.queued({"A": a, "B": b, "out": d}) for a, b, d in zip(A, B, D, strict=True)]
    return tall.prepared(calls, {"kernel": kernel})


def sources(case: Case) -> list[str]:
    """Return the source of a case's kernel."""
    if case.implementation == BASE:
        return []
    algorithm, chosen = options(case.implementation, case.K)
    columns, dtype = case.data.endswith("columns"), _TYPES[case.fmt]
    shapes_of = (case.M, case.K), (case.K, case.N), (case.M, case.N)
    steps = [(1, rows) if columns else (across, 1) for rows, across in shapes_of]
    problem = Problem(*(Matrix(2**20, dtype, *each) for each in zip(shapes_of, steps, strict=True)))
    with suppress(Exception):  # the measurement of the row reports it
        return [gpu.plan(problem, algorithm, **chosen).source]
    return []
