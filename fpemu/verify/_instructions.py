"""Comparison of an instruction with its emulation on the GPU: kernels, buffers and counts (``kernels/verify.cu``)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import digests, mma
from fpemu.digests import SAMPLE, digest
from fpemu.errors import GpuError
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime import compiler, device
from fpemu.gpu.runtime.device import Buffer
from fpemu.gpu.runtime.modules import Module
from fpemu.mma import MmaSpec
from fpemu.mma import codes as mma_codes
from fpemu.mma import operand_streams as streams

COUNTS = ("outputs", "mismatches", "nan_codes", "first", "digest", "nan", "infinite", "zero", "subnormal")
_CHUNK = 2**25  # outputs on the GPU at a time
_CHECKED = 2**11  # outputs of each class that are computed again on the CPU
_EXAMPLES = 256  # mismatches of each class that are copied back
_BLOCKS, _THREADS = 132 * 64, 128
_NONE = 2**64 - 1


@dataclass(frozen=True)
class ClassCounts:
    """Result of the comparison in one class of operands.

    Attributes
    ----------
    kind : str
        Class, a key of `fpemu.mma.operand_streams.CLASSES`.
    outputs, mismatches : int
        Outputs compared, and those that differ.
    nan_codes : int
        Mismatches where both are NaN, with different codes.
    first : int or None
        Index of the first mismatching output: (test · rows + row) · columns + column.
    digest : str
        Digest of all outputs of the hardware and their indices.
    nan, infinite, zero, subnormal : int
        Numbers of outputs of the hardware of each kind.
    examples : tuple of (int, int)
        Some of the mismatching outputs: index, and the code that the hardware returned.
    sample : str
        Digest of the hardware's first tests.
    """

    kind: str
    outputs: int
    mismatches: int
    nan_codes: int
    first: int | None
    digest: str
    nan: int
    infinite: int
    zero: int
    subnormal: int
    examples: tuple[tuple[int, int], ...]
    sample: str = ""


def source(spec: MmaSpec, n: int | None, model: MmaSpec) -> str:
    """Return the source of the kernels that compare an instruction with the arithmetic of `model`."""
    tile = instructions.instruction(spec, n=n)
    sizes = f"constexpr int TILE_ROWS = {tile.m}, TILE_COLUMNS = {tile.n};\n"
    return f'#include "arithmetic.cuh"\n{emulation.definition(model)}{sizes}{compiler.kernel_source("verify.cu")}'


class Bench:
    """Kernels and buffers for one instruction, compared with the arithmetic of `model`."""

    def __init__(self, spec: MmaSpec, model: MmaSpec, n: int | None, seed: int) -> None:
        self.spec, self.model, self.seed = spec, model, seed
        self.tile = instructions.instruction(spec, n=n)
        self.m, self.n = self.tile.m, self.tile.n
        self.instruction = Module(instructions.source(spec, n=n), name=spec.name)
        self.kernels = Module(source(spec, n, model), name=f"verification of {spec.name}")
        self.chunk = max(1, _CHUNK // (self.m * self.n))  # tests
        self.dtypes = [mma_codes.code_dtype(f) for f in (*streams.formats(spec), spec.d_format)]
        self.shapes = [(self.m, spec.k), (self.n, spec.k), (self.m, self.n), (self.m, self.n)]
        sizes = [self.chunk * int(np.prod(s)) * t.itemsize for s, t in zip(self.shapes, self.dtypes, strict=True)]
        self.A, self.B, self.C, self.D = (Buffer(size) for size in sizes)
        self.order = Buffer.of(np.arange(self.chunk, dtype=np.int32))
        self.checked = 0  # outputs computed again on the CPU
        self.detected = False  # whether a deliberately changed output was detected

    def run(self, kind: str, tests: int, progress: Callable[[str, int], None] | None) -> tuple[ClassCounts, float]:
        """Run all tests of a class; return the counts and the duration in seconds."""
        numbers = np.stack([r.numbers() for r in streams.recipes(self.spec, kind)])
        index = np.int64(list(streams.CLASSES).index(kind))
        totals, examples = _Counts(), Buffer.poisoned(16 * _EXAMPLES)
        seconds, sample = 0.0, ""
        for first in range(0, tests, self.chunk):
            some = min(self.chunk, tests - first)
            begun = time.perf_counter()
            operands = (self.A, self.B, self.C)
            drawn_from = (numbers, np.uint64(self.seed), index, np.uint64(first), np.int64(some))
            self.kernels.launch("generate", min(some, _BLOCKS), _THREADS, *operands, *drawn_from, wait=False)
            self.D.fill(device.POISON)
            blocks = -(-some * self.tile.threads // _THREADS)
            tiles = (self.order, self.order, np.int32(1), np.int32(1), np.int64(some))
            self.instruction.launch("execute", blocks, _THREADS, *operands, self.D, *tiles, wait=False)
            self._compare(first, some, totals, examples)
            seconds += time.perf_counter() - begun
            if first == 0:
                sample = self._check(kind, min(max(SAMPLE, _CHECKED // (self.m * self.n)), some))
            if progress is not None:
                progress(kind, some * self.m * self.n)
        counts, expected = totals.read(), tests * self.m * self.n
        if counts["outputs"] != expected:
            raise GpuError(f"{self.spec}, {kind}: {counts['outputs']} of {expected} outputs were compared")
        if counts["mismatches"] == 0 and not self.detected:
            self._change_one(first, some)
        copied = examples.array((_EXAMPLES, 2), np.uint64)[: min(counts["mismatches"], _EXAMPLES)]
        pairs = tuple(sorted((int(i), int(d)) for i, d in copied))
        counts["first"] = None if counts["first"] == _NONE else counts["first"]
        total = f"{counts.pop('digest'):016x}"
        return ClassCounts(kind, digest=total, **counts, examples=pairs, sample=sample), seconds

    def _compare(self, first: int, tests: int, counts: _Counts, examples: Buffer | None = None) -> None:
        """Emulate and count the tests in the buffers; waits for them."""
        tests_at = (np.uint64(first), np.int64(tests))
        room = (counts.totals, counts.mismatches, np.int64(0))
        if examples is not None:
            room = (examples, counts.mismatches, np.int64(_EXAMPLES))
        operands = (self.A, self.B, self.C, self.D)
        self.kernels.launch("compare", min(tests, _BLOCKS), _THREADS, *operands, *tests_at, counts.totals, *room)

    def _check(self, kind: str, tests: int) -> str:
        """Draw and compute the first tests again on the CPU and compare the counts; return the sample's digest."""
        counts = _Counts()
        self._compare(0, tests, counts)
        buffers = zip((self.A, self.B, self.C, self.D), self.shapes, self.dtypes, strict=True)
        A, B, C, D = (buffer.array((tests, *shape), dtype) for buffer, shape, dtype in buffers)
        drawn = streams.operands(self.spec, kind, self.seed, 0, tests, self.m, self.n)
        for name, x, y in zip("ABC", (A, B, C), drawn, strict=True):
            if not np.array_equal(x, y):
                raise GpuError(f"{self.spec}, {kind}: the GPU drew other codes for {name} than NumPy")
        mismatches = int((execute_codes(A, B, C, self.model) != D).sum())
        expected = {"outputs": D.size, "mismatches": mismatches, "digest": digest(D)}
        counted = counts.read()
        if any(counted[name] != value for name, value in expected.items()):
            raise GpuError(f"{self.spec}, {kind}: the CPU counts {expected}, the GPU {counted}")
        self.checked += D.size
        return digests.text(D[:SAMPLE])

    def _change_one(self, first: int, tests: int) -> None:
        """Change one of the outputs in the buffers, which all agree: exactly this one must be detected."""
        index = (tests * self.m * self.n) * 2 // 3
        self.kernels.launch("spoil", 1, 1, self.D, np.int64(index))
        counts = _Counts()
        self._compare(first, tests, counts)
        counted = counts.read()
        if (counted["mismatches"], counted["first"]) != (1, first * self.m * self.n + index):
            raise GpuError(f"{self.spec}: a deliberately changed output was not detected: {counted}")
        self.detected = True


class _Counts:
    """``Counts`` of verify.cu in GPU memory, and the number of mismatches."""

    def __init__(self) -> None:
        start = np.zeros(len(COUNTS), np.uint64)
        start[COUNTS.index("first")] = _NONE
        self.totals, self.mismatches = Buffer.of(start), Buffer.of(np.zeros(1, np.uint64))

    def read(self) -> dict[str, Any]:
        return dict(zip(COUNTS, map(int, self.totals.array(len(COUNTS), np.uint64)), strict=True))


def execute_codes(A: NDArray[Any], B: NDArray[Any], C: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
    """Return `fpemu.mma.execute` by its NumPy implementation, from codes to codes, B stored by its columns."""
    a, b, c = (mma_codes.values(x, f) for x, f in zip((A, B, C), streams.formats(spec), strict=True))
    return mma_codes.codes(mma.execute(a, b.swapaxes(-1, -2), c, spec, backend="numpy"), spec.d_format)
