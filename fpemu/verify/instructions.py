"""``fpemu verify instructions``: matrix instructions against their emulation, output by output.

Operands are drawn, the instruction is issued, and its outputs are emulated (``kernels/arithmetic.cuh``), compared and
counted on the GPU: neither operands nor results leave it. A mismatch is computed again on the CPU from its index alone
(`fpemu.mma.operand_streams`) and reduced to a minimal reproducer (`fpemu.verify.reproducers`).

Every run checks itself: the first tests of each class are copied back, drawn again with NumPy, computed again with
`fpemu.mma.execute` and counted again; and a deliberately changed output must be detected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fpemu import digests
from fpemu.arguments import integer
from fpemu.digests import SAMPLE
from fpemu.errors import GpuError, InputError, unknown_name
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime import device
from fpemu.mma import MmaSpec
from fpemu.mma import codes as mma_codes
from fpemu.mma import operand_streams as streams
from fpemu.verify import _instructions, reproducers
from fpemu.verify._instructions import Bench, ClassCounts, execute_codes
from fpemu.verify.records import Outcome
from fpemu.verify.reproducers import Mismatch
from fpemu.verify.suite import Progress, Suite

__all__ = ["ClassCounts", "Verification", "first_failures", "source", "sources", "verify"]

WIDTH_CLASSES = ("any-bits", "mixed", "leftover")
"""Classes of the digests that `widths` returns"""
_SHOWN = 3  # classes of an instruction whose first mismatch is shown


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
    return _instructions.source(spec, n, spec)


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


# --- digests that any machine can compute again
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
        " n of a wgmma the digest of a test of each class of WIDTH_CLASSES in fpemu.verify.instructions"
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
        return Outcome(
            group,
            len(result.classes),
            result.outputs,
            result.mismatches,
            counts={"nan_codes": nan_codes} if nan_codes else {},
            digest=result.digest,
            digests={c.kind: c.digest for c in result.classes},
            first=[f"{c.kind}: {c.mismatches} of {c.outputs} differ, the first at {c.first}" for c in wrong[:_SHOWN]],
            facts={
                "ptx": result.ptx,
                "tile": list(result.tile),
                "seconds": round(result.seconds, 3),
                "samples": {c.kind: c.sample for c in result.classes},
            }
            | (
                {
                    "differ": {c.kind: [c.mismatches, c.nan_codes] for c in wrong},
                    "examples": {c.kind: min(c.examples) for c in wrong},
                }
                if wrong
                else {}
            ),
        )

    def explain(self, outcome: Outcome) -> Iterator[str]:
        from fpemu import gpu

        for kind, (index, hardware) in islice(outcome.facts["examples"].items(), _SHOWN):
            mismatch = reproducers.locate(_row(outcome.group), kind, self.seed, index, hardware)
            yield "\n" + reproducers.describe(reproducers.shrink(mismatch, gpu.execute))


def _row(name: str) -> MmaSpec:
    return next(row for row in instructions.rows() if row.name == name)
