"""Verification: the GPU's instruction against its emulation, output by output, on operands drawn on the GPU.

`verify` runs a class of operands after another: generate, issue the instruction, emulate (``kernels/arithmetic.cuh``),
compare and count, without operands or results leaving the GPU. What differs is found again on the CPU from its index
alone (`fpemu.mma.operand_streams`), made small (`fpemu.verify.failures`) and shown.

Every run checks itself: the first tests of each class come back and are drawn again with NumPy, computed again with
`fpemu.mma.execute` and counted again; and an output changed on purpose has to be found.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import digests
from fpemu.arguments import checked, integer
from fpemu.digests import SAMPLE, digest
from fpemu.errors import InputError, unknown_name
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.device import Buffer, GpuError, Module
from fpemu.mma import MmaSpec
from fpemu.mma import codes as mma_codes
from fpemu.mma import operand_streams as streams
from fpemu.verify import failures
from fpemu.verify.failures import Failure

__all__ = ["ClassCounts", "Verification", "first_failures", "source", "sources", "verify"]

COUNTS = ("outputs", "mismatches", "nan_codes", "first", "digest", "nan", "infinite", "zero", "subnormal")
_CHUNK = 2**25  # outputs on the GPU at a time
_CHECKED = 2**11  # outputs of each class that are done again on the CPU
_EXAMPLES = 256  # of outputs that differ, for each class
_BLOCKS, _THREADS = 132 * 64, 128
_NONE = 2**64 - 1


@dataclass(frozen=True)
class ClassCounts:
    """Outcome of the comparison in one class of operands.

    Attributes
    ----------
    kind : str
        Class, a key of `fpemu.mma.operand_streams.CLASSES`.
    outputs, mismatches : int
        Outputs compared, and those that mismatch.
    nan_codes : int
        Mismatches where both are NaN, with different codes.
    first : int or None
        Index of the first mismatching output: (test · rows + row) · columns + column.
    digest : str
        Digest of all outputs of the hardware and their places.
    nan, infinite, zero, subnormal : int
        Numbers of outputs of the hardware of each kind.
    examples : tuple of (int, int)
        Some of the mismatching outputs: index, and the code that the hardware returned.
    sample : str
        `digests.text` of the hardware's first tests.
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


@dataclass(frozen=True)
class Verification:
    """Outcome of the verification of one instruction.

    Attributes
    ----------
    instruction : str
        Name of the catalogue's row.
    ptx : str
        PTX instruction.
    tile : (int, int)
        Rows and columns of its D.
    seed : int
        Seed of the operands.
    classes : tuple of ClassCounts
        Outcome by class of operands.
    seconds : float
        Duration, seconds.
    checked : int
        Outputs that were also computed on the CPU.
    device : mapping of str to str
        Names and versions of GPU, driver and compiler.
    """

    instruction: str
    ptx: str
    tile: tuple[int, int]
    seed: int
    classes: tuple[ClassCounts, ...]
    seconds: float
    checked: int
    device: dict[str, str] = field(default_factory=dict)

    @property
    def outputs(self) -> int:
        """All outputs compared."""
        return sum(c.outputs for c in self.classes)

    @property
    def mismatches(self) -> int:
        """Those that differ."""
        return sum(c.mismatches for c in self.classes)

    @property
    def digest(self) -> str:
        """Of the digests of the classes: the same bits, seed and counts give the same digest on any GPU."""
        return hashlib.sha256(" ".join(c.digest for c in self.classes).encode()).hexdigest()[:16]


@checked
def source(spec: MmaSpec, n: int | None = None) -> str:
    """Return the CUDA C++ source of the kernels that verify an instruction.

    Parameters
    ----------
    spec : MmaSpec
        The instruction.
    n : int, optional
        Columns of a wgmma.

    Returns
    -------
    str
        Source text.
    """
    tile = instructions.instruction(spec, n=n)
    sizes = f"constexpr int TILE_ROWS = {tile.m}, TILE_COLUMNS = {tile.n};\n"
    return f'#include "arithmetic.cuh"\n{emulation.definition(spec)}{sizes}{device.kernel_source("verify.cu")}'


@checked
def sources(spec: MmaSpec) -> list[str]:
    """Return all sources that `verify` compiles, so that they can be compiled in advance.

    Parameters
    ----------
    spec : MmaSpec
        The instruction.

    Returns
    -------
    list of str
        Source texts.
    """
    return [instructions.source(spec), source(spec)]


@checked
def verify(
    spec: MmaSpec,
    *,
    outputs: int = 10**9,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    n: int | None = None,
    emulate: MmaSpec | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> Verification:
    """Compare an instruction of the GPU at hand with its emulation.

    Parameters
    ----------
    spec : MmaSpec
        A row of the catalog that the GPU has.
    outputs : int
        How many, at least; in equal parts over the classes, in whole tiles.
    seed : int
        From 0 to 2^64 - 1.
    classes : sequence of str, optional
        Keys of `fpemu.mma.operand_streams.CLASSES`; default: all.
    n : int, optional
        Columns of a wgmma; default 8.
    emulate : MmaSpec, optional
        The arithmetic to compare with, if not the spec's own: the same formats and k.
    progress : callable, optional
        Called with a class and the number of its outputs that have just been compared.

    Returns
    -------
    Verification
        Counts and digests by class of operands.

    Raises
    ------
    InputError
        Unknown names, an instruction that this GPU does not have, or counts that are not positive.
    GpuError
        No GPU, a run that failed, or a run that did not pass its own checks.
    """
    kinds = list(streams.CLASSES) if classes is None else list(classes)
    for kind in kinds:
        if kind not in streams.CLASSES:
            raise unknown_name("operand class", kind, streams.CLASSES)
    integer("outputs", outputs, 1, 2**62)
    integer("seed", seed, 0, 2**64 - 1)
    if not kinds:
        raise InputError("classes = [] must name a class of operands")
    model = spec if emulate is None else emulate
    if streams.formats(model) != streams.formats(spec) or (model.k, model.d_format) != (spec.k, spec.d_format):
        raise InputError(f"{model} has other formats or another k than {spec}")
    if device.missing() is not None:
        raise GpuError(str(device.missing()))
    tile = instructions.instruction(spec, n=n)
    if not tile.exists_on(device.arch()):
        raise InputError(f"{spec}: the GPU here is {device.arch()}, which has no {tile.ptx}")
    bench = _Bench(spec, model, n, seed)
    tests = -(-outputs // (len(kinds) * tile.m * tile.n))
    found, seconds = [], 0.0
    for kind in kinds:
        counts, took = bench.run(kind, tests, progress)
        found.append(counts)
        seconds += took
    return Verification(
        spec.name, tile.ptx, (tile.m, tile.n), seed, tuple(found), seconds, bench.checked, device.describe()
    )


class _Bench:
    """Kernels and buffers for one instruction."""

    def __init__(self, spec: MmaSpec, model: MmaSpec, n: int | None, seed: int) -> None:
        self.spec, self.model, self.seed = spec, model, seed
        self.tile = instructions.instruction(spec, n=n)
        self.m, self.n = self.tile.m, self.tile.n
        self.instruction = Module(instructions.source(spec, n=n), name=spec.name)
        text = source(spec, n).replace(emulation.definition(spec), emulation.definition(model))
        self.kernels = Module(text, name=f"verification of {spec.name}")
        self.most = max(1, _CHUNK // (self.m * self.n))
        self.dtypes = [mma_codes.code_dtype(f) for f in (*streams.formats(spec), spec.d_format)]
        self.shapes = [(self.m, spec.k), (self.n, spec.k), (self.m, self.n), (self.m, self.n)]
        sizes = [self.most * int(np.prod(s)) * t.itemsize for s, t in zip(self.shapes, self.dtypes, strict=True)]
        self.A, self.B, self.C, self.D = (Buffer(size) for size in sizes)
        self.order = Buffer.of(np.arange(self.most, dtype=np.int32))
        self.checked = 0
        self.spoilt = False

    def run(self, kind: str, tests: int, progress: Callable[[str, int], None] | None) -> tuple[ClassCounts, float]:
        """All tests of a class."""
        numbers = np.stack([r.numbers() for r in streams.recipes(self.spec, kind)])
        counts, examples = _Counts(), Buffer.poisoned(16 * _EXAMPLES)
        seconds, sample = 0.0, ""
        for first in range(0, tests, self.most):
            some = min(self.most, tests - first)
            start = time.perf_counter()
            which = np.int64(list(streams.CLASSES).index(kind))
            self.kernels.launch(
                "generate",
                min(some, _BLOCKS),
                _THREADS,
                self.A,
                self.B,
                self.C,
                numbers,
                np.uint64(self.seed),
                which,
                np.uint64(first),
                np.int64(some),
                wait=False,
            )
            self.D.fill(device.POISON)
            blocks = -(-some * self.tile.threads // _THREADS)
            self.instruction.launch(
                "execute",
                blocks,
                _THREADS,
                self.A,
                self.B,
                self.C,
                self.D,
                self.order,
                self.order,
                np.int32(1),
                np.int32(1),
                np.int64(some),
                wait=False,
            )
            self.compare(first, some, counts, examples)
            seconds += time.perf_counter() - start
            if first == 0:
                sample = self.check(kind, min(max(SAMPLE, _CHECKED // (self.m * self.n)), some))
            if progress is not None:
                progress(kind, some * self.m * self.n)
        total = counts.read()
        if total["outputs"] != tests * self.m * self.n:
            raise GpuError(
                f"{self.spec}, {kind}: {total['outputs']} of {tests * self.m * self.n} outputs were compared"
            )
        if total["mismatches"] == 0 and not self.spoilt:
            self.spoil(first, some)
        kept = examples.array((_EXAMPLES, 2), np.uint64)[: min(total["mismatches"], _EXAMPLES)]
        pairs = tuple(sorted((int(i), int(d)) for i, d in kept))
        total["first"] = None if total["first"] == _NONE else total["first"]
        digest = f"{total.pop('digest'):016x}"
        return ClassCounts(kind, digest=digest, **total, examples=pairs, sample=sample), seconds

    def compare(self, first: int, tests: int, counts: _Counts, examples: Buffer | None = None) -> None:
        """Emulate and count the tests that lie in the buffers; waits for them."""
        room = 0 if examples is None else _EXAMPLES
        self.kernels.launch(
            "compare",
            min(tests, _BLOCKS),
            _THREADS,
            self.A,
            self.B,
            self.C,
            self.D,
            np.uint64(first),
            np.int64(tests),
            counts.totals,
            counts.totals if examples is None else examples,
            counts.found,
            np.int64(room),
        )

    def check(self, kind: str, tests: int) -> str:
        """The first tests once more on the CPU: the operands, and what `compare` says of the results; their sample."""
        counts = _Counts()
        self.compare(0, tests, counts)
        given = zip((self.A, self.B, self.C, self.D), self.shapes, self.dtypes, strict=True)
        A, B, C, D = (buffer.array((tests, *shape), dtype) for buffer, shape, dtype in given)
        drawn = streams.operands(self.spec, kind, self.seed, 0, tests, self.m, self.n)
        for name, x, y in zip("ABC", (A, B, C), drawn, strict=True):
            if not np.array_equal(x, y):
                raise GpuError(f"{self.spec}, {kind}: the GPU drew other codes for {name} than NumPy")
        expected = execute_codes(A, B, C, self.model)
        wanted = {"outputs": D.size, "mismatches": int((expected != D).sum()), "digest": digest(D)}
        told = counts.read()
        if any(told[name] != value for name, value in wanted.items()):
            raise GpuError(f"{self.spec}, {kind}: the CPU finds {wanted}, the GPU {told}")
        self.checked += D.size
        return digests.text(D[:SAMPLE])

    def spoil(self, first: int, tests: int) -> None:
        """Change one of the outputs in the buffers, which all agree: it has to be found, and nothing else."""
        index = (tests * self.m * self.n) * 2 // 3
        self.kernels.launch("spoil", 1, 1, self.D, np.int64(index))
        counts = _Counts()
        self.compare(first, tests, counts)
        told = counts.read()
        if (told["mismatches"], told["first"]) != (1, first * self.m * self.n + index):
            raise GpuError(f"{self.spec}: an output changed on purpose was not found: {told}")
        self.spoilt = True


class _Counts:
    """``Counts`` of verify.cu on the GPU, and how many outputs differ."""

    def __init__(self) -> None:
        start = np.zeros(len(COUNTS), np.uint64)
        start[COUNTS.index("first")] = _NONE
        self.totals, self.found = Buffer.of(start), Buffer.of(np.zeros(1, np.uint64))

    def read(self) -> dict[str, Any]:
        return dict(zip(COUNTS, map(int, self.totals.array(len(COUNTS), np.uint64)), strict=True))


def execute_codes(A: NDArray[Any], B: NDArray[Any], C: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
    """`fpemu.mma.execute`, the readable form, from codes to codes, B stored by its columns."""
    from fpemu import mma

    a, b, c = (mma_codes.values(x, f) for x, f in zip((A, B, C), streams.formats(spec), strict=True))
    return mma_codes.codes(mma.execute(a, b.swapaxes(-1, -2), c, spec, backend="numpy"), spec.d_format)


def first_failures(found: Verification, spec: MmaSpec, n: int | None = None) -> Iterator[Failure]:
    """Yield the first mismatching output of each class, with its operands drawn again.

    Parameters
    ----------
    found : Verification
        Result of `verify`.
    spec : MmaSpec
        The instruction.
    n : int, optional
        Columns of a wgmma.

    Yields
    ------
    Failure
        Operands, and both results.
    """
    for counts in found.classes:
        if counts.examples:
            index, hardware = min(counts.examples)
            yield failures.locate(spec, counts.kind, found.seed, index, hardware, n=n)
