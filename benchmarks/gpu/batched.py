"""Batches of small fp16 products: operands, implementations, errors of a sample.

Operands are uniform in [-1, 1], stored by rows, matrix after matrix; complex ones interleaved and planar, with the
same numbers in both. Launches repeat on the same memory, so that data that fit into the L2 cache stay there, for all
implementations. At some sizes there is a second time ("cold_s"), of launches that alternate between copies, so that
operands come from memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import timing
from benchmarks.gpu import cublas, prepared, shapes
from benchmarks.gpu.case import SEED, Case
from benchmarks.gpu.memory import DeviceArray
from benchmarks.gpu.prepared import Prepared
from benchmarks.gpu.steps import texts
from benchmarks.seeded import draw, fetch
from fpemu.errors import InputError
from fpemu.gpu.batched.configuration import Block, Configuration, Packed, text
from fpemu.gpu.batched.products import BatchedRequest
from fpemu.gpu.runtime import device, matrices
from fpemu.gpu.runtime.device import Buffer
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.steps import Address, Memory

SAMPLE = 4
"""Products of the batch whose outputs are compared."""
LARGE = 2**25
"""M·N·K from which on the sample is one product."""
ROUND, MOST = 2**28, 40
"""Bytes between two uses of an operand that is to come from memory, and the limit of the copies."""
COLD = (shapes.BASE, shapes.HALF, "ours")
KIND, BASE = shapes.BATCHED, shapes.BASE


def cases(quick: bool) -> Iterator[Case]:
    """Return the cases."""
    return shapes.cases(KIND, shapes.batched(quick))


def make(case: Case) -> Batch:
    """Draw the operands on the GPU."""
    return Batch((case.M, case.N, case.K), case.batch, case.data == "complex", SEED)


def measure(case: Case, batch: Batch) -> dict[str, Any]:
    """Return the fields of a row."""
    name = case.implementation
    fields = prepared.measure(prepare(batch, name), batch.result, batch.result.nbytes, batch.exact)
    if name in COLD and case.batch == shapes.BATCH and case.M == case.K and case.M in shapes.GOALS:
        turn = itertools.cycle([prepare(one, name).multiply for one in batch.copies])
        fields["cold_s"] = timing.measure(lambda: next(turn)(), replace(timing.STEADY, loop=0.0)).median
    planes = 2 if batch.complex else 1
    elements = case.M * case.K + case.K * case.N + case.M * case.N
    return {
        **fields,
        "operations": planes**2 * 2.0 * case.M * case.N * case.K * case.batch,
        "bytes": 2 * planes * elements * case.batch,
    }


def seconds(case: Case) -> float:
    """Estimate the seconds of a case."""
    return prepared.seconds(4.0 * (case.M * case.K + case.K * case.N) * case.batch)


class Batch:
    """Operands of a batch of `count` products."""

    def __init__(self, shape: tuple[int, int, int], count: int, complex: bool, seed: int = 0) -> None:
        self.shape, self.count, self.complex = shape, count, complex
        M, N, K = shape
        self.sides = {"A": (M, K), "B": (K, N), "D": (M, N)}
        planes = 2 if complex else 1
        self.planes = {
            name: draw("fp16", planes * count * r * c, 2 * seed + (name == "B"), -1.0, 1.0)
            for name, (r, c) in self.sides.items()
            if name != "D"
        }
        self.result = Buffer.poisoned(-(-2 * planes * count * M * N // 4) * 4)
        self.interleaved = {name: self._interleaved(name) for name in self.planes} if complex else {}

    @cached_property
    def copies(self) -> list[Batch]:
        """This batch and others of its size: `ROUND` bytes of operands and results, or `MOST` batches."""
        size = self.result.nbytes + sum(buffer.nbytes for buffer in self.planes.values())
        many = min(MOST, max(2, -(-ROUND // size)))
        return [self, *(Batch(self.shape, self.count, self.complex, seed) for seed in range(1, many))]

    def _interleaved(self, name: str) -> Buffer:
        entries = self.count * math.prod(self.sides[name])
        planes = Matrix(self.planes[name].pointer, np.dtype(np.float16), (entries, 2), (1, entries))
        owner = matrices.copy(planes).owner
        assert isinstance(owner, Buffer)
        device.synchronize()
        return owner

    def array(self, name: str, layout: str = "planar") -> DeviceArray:
        """Return an operand or the result as kernels take it; real ones have one layout."""
        shape: tuple[int, ...] = (self.count, *self.sides[name])
        if self.complex:
            shape = (2, *shape) if layout == "planar" else (*shape, 2)
        buffer = self.result if name == "D" else (self.interleaved if layout == "interleaved" else self.planes)[name]
        return DeviceArray(buffer.pointer, shape, np.dtype(np.float16), owner=buffer)

    @property
    def chosen(self) -> NDArray[np.int64]:
        """The indices of the sample's products; one where they are large."""
        many = SAMPLE if math.prod(self.shape) < LARGE else 1
        return np.unique(np.linspace(0, self.count - 1, many).astype(np.int64))

    def sample(self, name: str, layout: str = "planar") -> NDArray[np.float16]:
        """Fetch the sample of an operand or of the result; a complex one has shape (2, products, rows, columns)."""
        rows, columns = self.sides[name]
        size, array = rows * columns, self.array(name, layout)

        def products(width: int, plane: int = 0) -> NDArray[Any]:
            starts = [width * (plane * self.count + int(i)) * size for i in self.chosen]
            return np.stack([fetch(array.pointer, start, width * size, array.dtype) for start in starts])

        if not self.complex:
            return products(1).reshape(-1, rows, columns)
        if layout == "planar":
            return np.stack([products(1, plane) for plane in (0, 1)]).reshape(2, -1, rows, columns)
        return np.moveaxis(products(2).reshape(-1, rows, columns, 2), -1, 0)

    @cached_property
    def exact(self) -> NDArray[np.float64]:
        """The sample in fp64, where products of fp16 numbers are exact, and sums of 256 of them nearly."""
        A, B = (self.sample(name).astype(np.float64) for name in "AB")
        return np.stack([A[0] @ B[0] - A[1] @ B[1], A[0] @ B[1] + A[1] @ B[0]]) if self.complex else A @ B

    def library(self, name: str) -> Prepared:
        """Prepare a product of the vendor's library."""
        A, B, D = (x.pointer for x in (self.planes["A"], self.planes["B"], self.result))
        if name.endswith("in one"):
            call = cublas.planar_in_one(A, B, D, self.shape, self.count)
        elif self.complex:
            call = cublas.planar(A, B, D, self.shape, self.count)
        else:
            call = cublas.batched(A, B, D, self.shape, self.count, "fp16" if name.endswith("fp16") else "fp32")
        return Prepared(call, {}, sample=partial(self.sample, "D"))


def options(name: str, complex: bool) -> dict[str, Any]:
    """Return an implementation's arguments of `BatchedRequest`.

    >>> options("ours fp16", False), options("ours three products", True)
    ({'accumulate': 'fp16'}, {'layout': 'interleaved', 'products': 3})
    """
    chosen: dict[str, Any] = {}
    if complex:
        chosen["layout"] = "planar" if name.endswith("planar") else "interleaved"
    if name.endswith("planar"):
        chosen["algorithm"] = "fused"
    if name.startswith("magma-small"):
        chosen["kernel"] = "magma-small"
    if name.endswith("fp16") or name == "magma-small":
        chosen["accumulate"] = "fp16"
    if name.endswith("three products"):
        chosen["products"] = 3
    return chosen


def configuration(name: str, shape: tuple[int, int, int]) -> Configuration | None:
    """Return an implementation's configuration: blocks of MAGMA's design, or several products in an instruction.

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
        return Block((16, 16, 16), (shapes.WARPS_N,) * 3, (x, y))
    side = 16 if max(shape) <= 16 else 32
    return Block((16, 16, 16), (side, side, side), (8, 4), products=4, stages=1 if shape[2] <= side else 2)


def prepare(batch: Batch, name: str) -> Prepared:
    """Make an implementation ready."""
    if name.startswith("cublas"):
        return batch.library(name)
    chosen = options(name, batch.complex)
    layout = chosen.get("layout", "planar")
    A, B, D = (batch.array(operand, layout) for operand in "ABD")
    request = BatchedRequest(configuration=configuration(name, batch.shape), **chosen)
    queue = request.queued({"A": A, "B": B, "out": D})
    assert request.chosen is not None
    return Prepared(queue, {"kernel": text(request.chosen)}, sample=partial(batch.sample, "D", layout))


def sources(case: Case) -> list[str]:
    """Return the source of a case's kernel."""
    if case.implementation.startswith("cublas"):
        return []
    chosen = options(case.implementation, case.data == "complex")
    layout, given = chosen.pop("layout", None), configuration(case.implementation, (case.M, case.N, case.K))
    layouts: dict[str, Any] = {}
    for name, side in {"A": (case.M, case.K), "B": (case.K, case.N), "D": (case.M, case.N)}.items():
        shape: tuple[int, ...] = (case.batch, *side)
        shape = shape if layout is None else (2, *shape) if layout == "planar" else (*shape, 2)
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        layouts[name] = Matrix(Address(name), np.dtype(np.float16), shape, strides)
    with suppress(InputError):  # the measurement of the row reports it
        request = BatchedRequest(layout, configuration=given, **chosen)
        return texts(request.steps(layouts, Memory()))
    return []
