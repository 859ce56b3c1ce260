"""``fpemu verify instructions``: matrix instructions against their emulation, output by output.

Operands are drawn, the instruction is issued, and its outputs are emulated (``kernels/arithmetic.cuh``), compared and
counted on the GPU: neither operands nor results leave it. A mismatch is computed again on the CPU from its index alone
(`fpemu.mma.operand_streams`) and reduced to a minimal reproducer (`fpemu.verification.reproducers`).

Every run checks itself: the first tests of each class are copied back, drawn again with NumPy, computed again with
`fpemu.mma.execute` and counted again; and a deliberately changed output must be detected.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fpemu import digests, mma
from fpemu.arguments import integer
from fpemu.digests import SAMPLE, digest
from fpemu.errors import GpuError, InputError, unknown_name
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime import compiler, device
from fpemu.gpu.runtime.device import Buffer
from fpemu.gpu.runtime.modules import Module
from fpemu.mma import MmaSpec
from fpemu.mma import codes as mma_codes
from fpemu.mma import operand_streams as streams
from fpemu.verification import reproducers
from fpemu.verification.records import Outcome
from fpemu.verification.reproducers import Mismatch
from fpemu.verification.suite import Progress, Suite

__all__ = ["ClassCounts", "Verification", "first_failures", "source", "sources", "verify"]

WIDTH_CLASSES = ("any-bits", "mixed", "leftover")
"""Classes of the digests that `widths` returns"""
_SHOWN = 3  # classes of an instruction whose first mismatch is shown
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


@dataclass(frozen=True)
class Verification:
    """Result of the verification of one instruction.

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
        Result by class of operands.
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
        """Number of outputs compared."""
        return sum(c.outputs for c in self.classes)

    @property
    def mismatches(self) -> int:
        """Number of mismatching outputs."""
        return sum(c.mismatches for c in self.classes)

    @property
    def digest(self) -> str:
        """Digest of the classes' digests: the same bits, seed and counts give the same digest on any GPU."""
        return hashlib.sha256(" ".join(c.digest for c in self.classes).encode()).hexdigest()[:16]


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
    return _source(spec, n, spec)


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
    """Compare an instruction of the current GPU with its emulation.

    Parameters
    ----------
    spec : MmaSpec
        A row of the catalogue that the GPU has.
    outputs : int
        Smallest number of outputs, in equal parts over the classes, in whole tiles.
    seed : int
        From 0 to 2^64 - 1.
    classes : sequence of str, optional
        Keys of `fpemu.mma.operand_streams.CLASSES`; default: all.
    n : int, optional
        Columns of a wgmma; default 8.
    emulate : MmaSpec, optional
        Arithmetic to compare with, of the same formats and k; default: the arithmetic of `spec`.
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
        No GPU, a run that failed, or a run whose checks failed.
    """
    kinds = list(streams.CLASSES) if classes is None else list(classes)
    for kind in kinds:
        if kind not in streams.CLASSES:
            raise unknown_name("operand class", kind, streams.CLASSES)
    outputs, seed = integer("outputs", outputs, 1, 2**62), integer("seed", seed, 0, 2**64 - 1)
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
    bench = Bench(spec, model, n, seed)
    tests = -(-outputs // (len(kinds) * tile.m * tile.n))
    counts, seconds = zip(*(bench.run(kind, tests, progress) for kind in kinds), strict=True)
    shape = tile.m, tile.n
    return Verification(spec.name, tile.ptx, shape, seed, counts, sum(seconds), bench.checked, device.describe())


def first_failures(result: Verification, spec: MmaSpec, n: int | None = None) -> Iterator[Mismatch]:
    """Yield the first mismatching output of each class, with its operands drawn again.

    Parameters
    ----------
    result : Verification
        Result of `verify`.
    spec : MmaSpec
        The instruction.
    n : int, optional
        Columns of a wgmma.

    Yields
    ------
    Mismatch
        Operands, and both results.
    """
    for counts in result.classes:
        if counts.examples:
            index, hardware = min(counts.examples)
            yield reproducers.locate(spec, counts.kind, result.seed, index, hardware, n=n)


# --- kernels and buffers on the GPU
def _source(spec: MmaSpec, n: int | None, model: MmaSpec) -> str:
    """Source of the kernels that compare an instruction with the arithmetic of `model`."""
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
        self.kernels = Module(_source(spec, n, model), name=f"verification of {spec.name}")
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


# --- digests that any machine can compute again
def execute_codes(A: NDArray[Any], B: NDArray[Any], C: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
    """Return `fpemu.mma.execute` by its NumPy implementation, from codes to codes, B stored by its columns."""
    a, b, c = (mma_codes.values(x, f) for x, f in zip((A, B, C), streams.formats(spec), strict=True))
    return mma_codes.codes(mma.execute(a, b.swapaxes(-1, -2), c, spec, backend="numpy"), spec.d_format)


def replay(spec: MmaSpec, kind: str, seed: int, tile: Sequence[int]) -> str:
    """Return the digest of the first tests of a class by the emulation."""
    m, n = tile
    A, B, C = streams.operands(spec, kind, seed, 0, SAMPLE, m, n)
    return digests.text(execute_codes(A, B, C, spec))


def widths(
    spec: MmaSpec, seed: int, execute: Callable[..., NDArray[Any]], only: Sequence[int] | None = None
) -> dict[str, str]:
    """Return digests of a few tests at each n of a wgmma, or at `only` some; empty for other instructions.

    `execute` is `hardware_codes` or an emulation with the same arguments.
    """
    if spec.instruction != "wgmma":
        return {}
    by_width = {}
    for n in instructions.widths(spec) if only is None else only:
        drawn = [streams.operands(spec, kind, seed, 0, 1, 64, n) for kind in WIDTH_CLASSES]
        A, B, C = (np.concatenate(x) for x in zip(*drawn, strict=True))
        by_width[str(n)] = digests.text(execute(A, B, C, spec, n))
    return by_width


def hardware_codes(A: NDArray[Any], B: NDArray[Any], C: NDArray[Any], spec: MmaSpec, n: int) -> NDArray[Any]:
    """Return `fpemu.gpu.execute` from codes to codes, B stored by its columns."""
    a, b, c = (mma_codes.values(x, f) for x, f in zip((A, B, C), streams.formats(spec), strict=True))
    return mma_codes.codes(instructions.execute(a, b.swapaxes(-1, -2), c, spec, n=n), spec.d_format)


class Instructions(Suite):
    """Verification of the GPU's matrix instructions whose name contains `part`, with `outputs` outputs each or more."""

    name = "instructions"
    about = (
        "Matrix instructions compared on a GPU with their emulation. Operands are a function of seed, class and test"
        " (fpemu.mma.operand_streams). digests: of all outputs of the hardware, by class. nan_codes: mismatches of two"
        f" NaN. facts: samples, digests of the first {SAMPLE} tests of each class; differ, mismatches and nan_codes by"
        " class; trial, digests by class of a shorter run of trial_outputs outputs with the same seed; widths, for each"
        " n of a wgmma the digest of a test of each class of WIDTH_CLASSES in fpemu.verification.instructions"
    )
    columns: ClassVar = {name: name for name in ("outputs", "mismatches", "seconds")}

    def __init__(self, seed: int = 0, outputs: int = 10**9, part: str = "") -> None:
        super().__init__(seed, outputs=outputs)
        self.outputs, self.part = outputs, part
        if not self.groups():
            raise unknown_name("instruction of this GPU", part, self.order())

    def groups(self) -> list[str]:
        return [name for name in self.order() if self.part.lower() in name.lower()]

    def order(self) -> list[str]:
        return [row.name for row in instructions.rows()]

    def sources(self, groups: Sequence[str]) -> list[str]:
        return [text for group in groups for text in sources(_row(group))]

    def runs_alone(self, group: str) -> bool:
        return True

    def facts(self) -> dict[str, Any]:
        return {"sample_tests": SAMPLE, "classes": list(streams.CLASSES)}

    def run(self, group: str, progress: Progress) -> Outcome:
        result = verify(
            _row(group),
            outputs=self.outputs,
            seed=self.seed,
            progress=lambda _, count: progress(group, count / self.outputs),
        )
        wrong = [c for c in result.classes if c.mismatches]
        nan_codes = sum(c.nan_codes for c in wrong)
        facts: dict[str, Any] = {"ptx": result.ptx, "tile": list(result.tile), "seconds": round(result.seconds, 3)}
        facts["samples"] = {c.kind: c.sample for c in result.classes}
        if wrong:
            facts["differ"] = {c.kind: [c.mismatches, c.nan_codes] for c in wrong}
            facts["examples"] = {c.kind: min(c.examples) for c in wrong}
        return Outcome(
            group,
            len(result.classes),
            result.outputs,
            result.mismatches,
            counts={"nan_codes": nan_codes} if nan_codes else {},
            digest=result.digest,
            digests={c.kind: c.digest for c in result.classes},
            first=[f"{c.kind}: {c.mismatches} of {c.outputs} differ, the first at {c.first}" for c in wrong[:_SHOWN]],
            facts=facts,
        )

    def explain(self, outcome: Outcome) -> Iterator[str]:
        from fpemu import gpu

        for kind, (index, hardware) in islice(outcome.facts["examples"].items(), _SHOWN):
            mismatch = reproducers.locate(_row(outcome.group), kind, self.seed, index, hardware)
            yield "\n" + reproducers.describe(reproducers.shrink(mismatch, gpu.execute))


def _row(name: str) -> MmaSpec:
    return next(row for row in instructions.rows() if row.name == name)
