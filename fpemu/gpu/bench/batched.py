"""Batches of small fp16 products to measure: operands, contenders, errors of a sample.

Operands are uniform in [-1, 1], stored by rows, matrix after matrix; complex ones interleaved and planar, the same
numbers in both. Between two launches nothing is moved: what fits into the L2 cache stays there, for all contenders. At
some sizes there is a second time ("cold_s"), of launches that go round in copies, so that operands come from memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu import batched as gpu
from fpemu.gpu import device, matrices
from fpemu.gpu.batched import configuration as gpu_configuration
from fpemu.gpu.batched import stacks
from fpemu.gpu.batched.choice import choose
from fpemu.gpu.batched.configuration import Block, Configuration, Packed, fitted, text
from fpemu.gpu.batched.source import plan
from fpemu.gpu.bench import points, runs, shapes, vendor
from fpemu.gpu.bench.places import Place, draw, fetch
from fpemu.gpu.bench.runs import Run
from fpemu.gpu.bench.shapes import WARPS_N
from fpemu.gpu.bench.task import SEED, Task
from fpemu.gpu.device import Buffer
from fpemu.gpu.matrices import Matrix

SAMPLE = 4
"""Products of the batch whose entries are compared."""
LARGE = 2**25
"""M·N·K from which on it is one product."""
ROUND, MOST = 2**28, 40
"""Bytes between two uses of an operand where it is to come from memory, and copies at most."""
COLD = (shapes.BASE, shapes.HALF, "ours")
KIND, BASE = shapes.BATCHED, shapes.BASE


def tasks(quick: bool) -> Iterator[Task]:
    """The rows."""
    return shapes.tasks(KIND, shapes.batched(quick))


def make(task: Task) -> Batch:
    """Operands on the GPU."""
    return Batch((task.M, task.N, task.K), task.batch, task.data == "complex", SEED)


def measure(task: Task, made: Batch) -> dict[str, Any]:
    """The fields of a row."""
    found = runs.measure(prepare(made, task.contender), made.result, made.result.nbytes, made.exact())
    if task.contender in COLD and task.batch == shapes.BATCH and task.M == task.K and task.M in shapes.GOALS:
        turn = itertools.cycle([prepare(one, task.contender).queue for one in made.copies()])
        found["cold_s"] = points.measure(lambda: next(turn)(), replace(runs.RULES, loop=0.0)).median
    parts = 2 if made.complex else 1
    elements = task.M * task.K + task.K * task.N + task.M * task.N
    return {**found, "operations": parts**2 * 2.0 * task.M * task.N * task.K * task.batch,
            "bytes": 2 * parts * elements * task.batch}  # fmt: skip


def seconds(task: Task) -> float:
    """About how long a row takes."""
    return runs.seconds(4.0 * (task.M * task.K + task.K * task.N) * task.batch)


class Batch:
    """Operands of a batch.

    Parameters
    ----------
    shape : (M, N, K)
    count : int
        Products.
    complex : bool
    seed : int
    """

    def __init__(self, shape: tuple[int, int, int], count: int, complex: bool, seed: int = 0) -> None:
        self.shape, self.count, self.complex = shape, count, complex
        M, N, K = shape
        self.sides = {"A": (M, K), "B": (K, N), "D": (M, N)}
        parts = 2 if complex else 1
        self.planes = {who: draw("fp16", parts * count * r * c, 2 * seed + (who == "B"), -1.0, 1.0)
                       for who, (r, c) in self.sides.items() if who != "D"}  # fmt: skip
        self.result = Buffer.poisoned(-(-2 * parts * count * M * N // 4) * 4)
        self.mixed = {who: self._interleaved(who) for who in self.planes} if complex else {}
        self._exact: NDArray[Any] | None = None
        self._copies: list[Batch] = []

    def copies(self) -> list[Batch]:
        """This batch and others of its size: `ROUND` bytes of operands and results, or `MOST` of them."""
        size = self.result.nbytes + sum(buffer.nbytes for buffer in self.planes.values())
        many = min(MOST, max(2, -(-ROUND // size)))
        if not self._copies:
            self._copies = [Batch(self.shape, self.count, self.complex, seed) for seed in range(1, many)]
        return [self, *self._copies]

    def _interleaved(self, who: str) -> Buffer:
        entries = self.count * math.prod(self.sides[who])
        planes = Matrix(self.planes[who].pointer, np.dtype(np.float16), (entries, 2), (1, entries))
        owner = matrices.copy(planes).owner
        assert isinstance(owner, Buffer)
        device.synchronize()
        return owner

    def place(self, who: str, layout: str = "planar") -> Place:
        """An operand or the result as kernels take it; real ones have one layout."""
        shape: tuple[int, ...] = (self.count, *self.sides[who])
        if self.complex:
            shape = (2, *shape) if layout == "planar" else (*shape, 2)
        buffer = self.result if who == "D" else self.mixed[who] if layout == "interleaved" else self.planes[who]
        return Place(buffer.pointer, shape, np.dtype(np.float16), owner=buffer)

    @property
    def chosen(self) -> NDArray[np.int64]:
        """The products of the sample; one where they are large."""
        many = SAMPLE if math.prod(self.shape) < LARGE else 1
        return np.unique(np.linspace(0, self.count - 1, many).astype(np.int64))

    def sample(self, who: str, layout: str = "planar") -> NDArray[np.float16]:
        """The sample of an operand or of the result, complex ones as (2, products, rows, columns)."""
        rows, columns = self.sides[who]
        one, place = rows * columns, self.place(who, layout)
        if not self.complex:
            parts = [fetch(place.pointer, int(i) * one, one, place.dtype) for i in self.chosen]
            return np.stack(parts).reshape(-1, rows, columns)
        if layout == "planar":
            starts = [[plane * self.count * one + int(i) * one for i in self.chosen] for plane in (0, 1)]
            parts = [np.stack([fetch(place.pointer, at, one, place.dtype) for at in some]) for some in starts]
            return np.stack(parts).reshape(2, -1, rows, columns)
        parts = [fetch(place.pointer, 2 * int(i) * one, 2 * one, place.dtype) for i in self.chosen]
        return np.moveaxis(np.stack(parts).reshape(-1, rows, columns, 2), -1, 0)

    def exact(self) -> NDArray[np.float64]:
        """The sample in fp64: products of fp16 numbers are exact in it, and sums of 256 of them nearly."""
        if self._exact is None:
            A, B = (self.sample(who).astype(np.float64) for who in "AB")
            self._exact = np.stack([A[0] @ B[0] - A[1] @ B[1], A[0] @ B[1] + A[1] @ B[0]]) if self.complex else A @ B
        return self._exact

    def library(self, name: str) -> Run:
        """A product of the vendor's library by the contender's name."""
        A, B, D = (x.pointer for x in (self.planes["A"], self.planes["B"], self.result))
        sums = "fp16" if name.endswith("fp16") else "fp32"
        if name.endswith("in one"):
            queue = vendor.planar_in_one(A, B, D, self.shape, self.count)
        elif self.complex:
            queue = vendor.planar(A, B, D, self.shape, self.count)
        else:
            queue = vendor.batched(A, B, D, self.shape, self.count, sums)
        return Run(queue, queue, partial(self.sample, "D"), {})


def asked(name: str, complex: bool) -> dict[str, Any]:
    """What a contender of this package asks of `fpemu.gpu.batched.prepare`.

    >>> asked("ours fp16", False), asked("ours three products", True)
    ({'accumulate': 'fp16'}, {'layout': 'interleaved', 'products': 3})
    """
    found: dict[str, Any] = {}
    if complex:
        found["layout"] = "planar" if name.endswith("planar") else "interleaved"
    if name.endswith("planar"):
        found["algorithm"] = "fused"
    if name.startswith("magma-small"):
        found["kernel"] = "magma-small"
    if name.endswith("fp16") or name == "magma-small":
        found["accumulate"] = "fp16"
    if name.endswith("three products"):
        found["products"] = 3
    return found


def configuration(name: str, shape: tuple[int, int, int]) -> Configuration | None:
    """The configuration that a contender is: blocks of MAGMA's design, or several products in an instruction.

    >>> configuration("magma 16x8", (64, 64, 64)).threads
    (16, 8)
    """
    if name == "tiny":
        return Packed()
    form = name.removeprefix("magma").strip()
    if not name.startswith("magma") or form.startswith("-small"):
        return None
    if form:
        x, y = (int(side) for side in form.split("x"))
        return Block((16, 16, 16), (WARPS_N, WARPS_N, WARPS_N), (x, y))
    side = 16 if max(shape) <= 16 else 32
    return Block((16, 16, 16), (side, side, side), (8, 4), products=4, stages=1 if shape[2] <= side else 2)


def prepare(batch: Batch, name: str) -> Run:
    """Make a contender ready."""
    if name.startswith("cublas"):
        return batch.library(name)
    options = asked(name, batch.complex)
    layout = options.get("layout", "planar")
    A, B, D = (batch.place(who, layout) for who in "ABD")
    products = gpu.prepare(A, B, out=D, configuration=configuration(name, batch.shape), **options)

    def queue() -> None:
        for product in products:
            product.queue()

    return Run(queue, queue, partial(batch.sample, "D", layout), {"kernel": text(products[0].configuration)})


def sources(task: Task) -> list[str]:
    """What the kernel of a row compiles."""
    if task.contender.startswith("cublas"):
        return []
    complex, shape = task.data == "complex", (task.M, task.N, task.K)
    options = asked(task.contender, complex)
    layout = options.get("layout")
    sides = {"A": (task.M, task.K), "B": (task.K, task.N), "D": (task.M, task.N)}
    widths = []
    for who, side in sides.items():
        lead: tuple[int, ...] = (task.batch, *side)
        lead = lead if layout is None else (2, *lead) if layout == "planar" else (*lead, 2)
        steps = tuple(math.prod(lead[axis + 1 :]) for axis in range(len(lead)))
        place = stacks.operand(Matrix(2**20, np.dtype(np.float16), lead, steps), layout, who)
        widths.append(stacks.stack(place, (task.batch,), True)[1])
    found = configuration(task.contender, shape)
    with suppress(Exception):  # it will be told where the row is measured
        made = gpu_configuration.Task(
            *shape, complex, layout == "planar", options.get("accumulate", "fp32"), options.get("products", 4),
            width=min(widths), contiguous=True,
        )  # fmt: skip
        chosen = choose(made, task.batch, options.get("kernel", "tensor")) if found is None else fitted(found, made)
        return [plan(made, chosen).source]
    return []
