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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from fpemu import gpu
from fpemu._system import digest, digest_text
from fpemu.arguments import integer
from fpemu.errors import GpuError, InputError, unknown_name
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime import compiler, device, plan
from fpemu.gpu.runtime.device import Buffer
from fpemu.gpu.runtime.modules import Module
from fpemu.mma import MmaSpec
from fpemu.mma import codes as mma_codes
from fpemu.mma import operand_streams as streams
from fpemu.verification import reproducers
from fpemu.verification.paths import POISON
from fpemu.verification.records import Outcome
from fpemu.verification.reproducers import Mismatch, execute_codes
from fpemu.verification.suite import Group, Suite

SAMPLE = 4  # tests of each operand class with separate digests, few enough to be repeated on any machine
__all__ = ["verify"]

COUNTS = ("outputs", "mismatches", "nan_codes", "first", "digest", "nan", "infinite", "zero", "subnormal")
"""Words of ``Counts`` of verify.cu"""
_SHOWN = 3  # classes of an instruction whose first mismatch is shown
_CHUNK = 2**25  # outputs on the GPU at a time
_CHECKED = 2**11  # outputs of each class that are computed again on the CPU
_EXAMPLES = 256  # mismatches of each class that are copied back
_BLOCKS, _THREADS = 132 * 64, 128  # blocks: 64 for each multiprocessor of an H200
_NONE = 2**64 - 1


def verify(spec: MmaSpec, *, outputs: int = 10**9, seed: int = 0) -> Outcome:
    """Compare an instruction of the current GPU with its emulation.

    Parameters
    ----------
    spec : MmaSpec
        A row of the catalogue that the GPU has; its arithmetic may be changed, to compare the GPU with another one.
    outputs : int
        Smallest number of outputs, in equal parts over the classes, in whole tiles.
    seed : int
        From 0 to 2^64 - 1.

    Returns
    -------
    Outcome
        Counts, and digests of all outputs by class of operands.

    Raises
    ------
    InputError
        An instruction that this GPU does not have, or counts that are not positive.
    GpuError
        No GPU, a run that failed, or a run whose checks failed.
    """
    kinds = list(streams.CLASSES)
    outputs, seed = integer("outputs", outputs, 1, 2**62), integer("seed", seed, 0, 2**64 - 1)
    if gpu.available() is not None:
        raise GpuError(str(gpu.available()))
    tile = instructions.instruction(spec)
    if not tile.exists_on(device.arch()):
        raise InputError(f"{spec}: the GPU here is {device.arch()}, which has no {tile.ptx}")
    bench, began = Bench(spec, seed), time.perf_counter()
    facts: dict[str, Any] = {"ptx": tile.ptx, "tile": [tile.m, tile.n], "samples": {}}
    outcome = Outcome(spec.name, len(kinds), facts=facts)
    for kind in kinds:
        counts, examples, facts["samples"][kind] = bench.run(kind, -(-outputs // (len(kinds) * tile.m * tile.n)))
        outcome.outputs += counts["outputs"]
        outcome.digests[kind] = f"{counts['digest']:016x}"
        if wrong := counts["mismatches"]:
            outcome.mismatches += wrong
            facts.setdefault("differ", {})[kind] = [wrong, counts["nan_codes"]]
            facts.setdefault("examples", {})[kind] = min(examples)
            outcome.first.append(f"{kind}: {wrong} of {counts['outputs']} differ, the first at {counts['first']}")
    outcome.first = outcome.first[:_SHOWN]
    outcome.digest = hashlib.sha256(" ".join(outcome.digests.values()).encode()).hexdigest()[:16]
    facts["seconds"] = round(time.perf_counter() - began, 3)
    return outcome


def failures(outcome: Outcome, spec: MmaSpec, seed: int) -> Iterator[Mismatch]:
    """Yield the first mismatching output of each class, with its operands drawn again."""
    for kind, (index, hardware) in outcome.facts.get("examples", {}).items():
        yield reproducers.locate(spec, kind, seed, outcome.facts["tile"], index, hardware)


# --- kernels and buffers on the GPU
def source(spec: MmaSpec) -> str:
    """Return the source of the kernels that compare an instruction with its arithmetic."""
    tile = instructions.instruction(spec)
    sizes = f"constexpr int TILE_ROWS = {tile.m}, TILE_COLUMNS = {tile.n};\n"
    return f'#include "arithmetic.cuh"\n{emulation.definition(spec)}{sizes}{compiler.kernel_source("verify.cu")}'


class Bench:
    """Kernels and buffers for one instruction."""

    def __init__(self, spec: MmaSpec, seed: int) -> None:
        self.spec, self.seed = spec, seed
        self.tile = instructions.instruction(spec)
        self.m, self.n = self.tile.m, self.tile.n
        self.instruction = Module(instructions.source(spec), name=spec.name)
        self.kernels = Module(source(spec), name=f"verification of {spec.name}")
        self.chunk = max(1, _CHUNK // (self.m * self.n))  # tests
        self.dtypes = [mma_codes.code_dtype(f) for f in (*streams.formats(spec), spec.d_format)]
        self.shapes = [(self.m, spec.k), (self.n, spec.k), (self.m, self.n), (self.m, self.n)]
        sizes = [self.chunk * int(np.prod(s)) * t.itemsize for s, t in zip(self.shapes, self.dtypes, strict=True)]
        self.buffers = [Buffer(size) for size in sizes]  # A, B, C and D
        self.order = Buffer.of(np.arange(self.chunk, dtype=np.int32))
        self.detected = False  # whether a deliberately changed output was detected

    def run(self, kind: str, tests: int) -> tuple[dict[str, int], list[tuple[int, int]], str]:
        """Run all tests of a class; return the counts, mismatches by index and code, and the sample's digest."""
        numbers = np.stack([r.numbers() for r in streams.recipes(self.spec, kind)])
        drawn_from = (numbers, np.uint64(self.seed), np.int64(list(streams.CLASSES).index(kind)))
        totals, examples, sample = _Counts(), Buffer(16 * _EXAMPLES), ""
        for first in range(0, tests, self.chunk):
            some = min(self.chunk, tests - first)
            tests_at = (np.uint64(first), np.int64(some))
            self._launch("generate", min(some, _BLOCKS), *self.buffers[:3], *drawn_from, *tests_at)
            self.buffers[3].fill(POISON)
            blocks = -(-some * self.tile.threads // _THREADS)
            tiles = (self.order, self.order, np.int32(1), np.int32(1), np.int64(some))
            plan.queue(self.instruction.step("execute", blocks, _THREADS, *self.buffers, *tiles))
            self._compare(first, some, totals, examples)
            if first == 0:
                sample = self._check(kind, min(max(SAMPLE, _CHECKED // (self.m * self.n)), some))
        counts, expected = totals.read(), tests * self.m * self.n
        if counts["outputs"] != expected:
            raise GpuError(f"{self.spec}, {kind}: {counts['outputs']} of {expected} outputs were compared")
        if counts["mismatches"] == 0 and not self.detected:
            self._change_one(first, some)
        copied = examples.array((_EXAMPLES, 2), np.uint64)[: min(counts["mismatches"], _EXAMPLES)]
        return counts, [(int(i), int(code)) for i, code in copied], sample

    def _compare(self, first: int, tests: int, counts: _Counts, examples: Buffer | None = None) -> None:
        """Emulate and count the tests in the buffers; waits for them."""
        copied, most = (counts.totals, 0) if examples is None else (examples, _EXAMPLES)
        results = (counts.totals, copied, counts.mismatches, np.int64(most))
        self._launch("compare", min(tests, _BLOCKS), *self.buffers, np.uint64(first), np.int64(tests), *results)

    def _launch(self, name: str, blocks: int, *arguments: Any) -> None:
        plan.queue(self.kernels.step(name, blocks, _THREADS, *arguments))

    def _check(self, kind: str, tests: int) -> str:
        """Draw and compute the first tests again on the CPU and compare the counts; return the sample's digest."""
        counts = _Counts()
        self._compare(0, tests, counts)
        parts = zip(self.buffers, self.shapes, self.dtypes, strict=True)
        A, B, C, D = (buffer.array((tests, *shape), dtype) for buffer, shape, dtype in parts)
        drawn = streams.operands(self.spec, kind, self.seed, 0, tests, self.m, self.n)
        for name, x, y in zip("ABC", (A, B, C), drawn, strict=True):
            if not np.array_equal(x, y):
                raise GpuError(f"{self.spec}, {kind}: the GPU drew other codes for {name} than NumPy")
        mismatches = int((execute_codes(A, B, C, self.spec) != D).sum())
        expected, counted = {"outputs": D.size, "mismatches": mismatches, "digest": digest(D)}, counts.read()
        if any(counted[name] != value for name, value in expected.items()):
            raise GpuError(f"{self.spec}, {kind}: the CPU counts {expected}, the GPU {counted}")
        return digest_text(D[:SAMPLE])

    def _change_one(self, first: int, tests: int) -> None:
        """Change one of the outputs in the buffers, which all agree: exactly this one must be detected."""
        index, counts = (tests * self.m * self.n) * 2 // 3, _Counts()
        plan.queue(self.kernels.step("spoil", 1, 1, self.buffers[3], np.int64(index)))
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

    def read(self) -> dict[str, int]:
        return dict(zip(COUNTS, map(int, self.totals.array(len(COUNTS), np.uint64)), strict=True))


def replay(spec: MmaSpec, kind: str, seed: int, tile: Sequence[int]) -> str:
    """Return the digest of the first tests of a class by the emulation."""
    return digest_text(execute_codes(*streams.operands(spec, kind, seed, 0, SAMPLE, *tile), spec))


@dataclass
class Instructions(Suite):
    """Verification of the GPU's matrix instructions whose name contains `part`, with `outputs` outputs each or more."""

    name = "instructions"
    about = (
        "Matrix instructions compared with their emulation. digests: of all outputs of the hardware, by class. facts:"
        f" samples, digests of the first {SAMPLE} tests of each class; differ, mismatches by class, and of two NaN;"
        " examples, index of a mismatch and the hardware's code by class"
    )

    decisive = ("outputs",)
    outputs: int = 10**9
    part: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.groups:
            raise unknown_name("instruction of this GPU", self.part, [row.name for row in instructions.rows()])

    @cached_property
    def groups(self) -> dict[str, Group]:
        return {row.name: Group() for row in instructions.rows() if self.part.lower() in row.name.lower()}

    def facts(self) -> dict[str, Any]:
        return {"sample_tests": SAMPLE, "classes": list(streams.CLASSES)}

    def run(self, group: str) -> Outcome:
        return verify(_row(group), outputs=self.outputs, seed=self.seed)

    def explain(self, outcome: Outcome) -> Iterator[str]:
        yield from super().explain(outcome)
        for mismatch in islice(failures(outcome, _row(outcome.group), self.seed), _SHOWN):
            yield "\n" + reproducers.describe(reproducers.shrink(mismatch, gpu.execute))


def _row(name: str) -> MmaSpec:
    return next(row for row in instructions.rows() if row.name == name)
