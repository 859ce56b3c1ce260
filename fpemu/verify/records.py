"""What a verification found, as a file: counts and digests, which any machine can compute again from the seed.

`record` makes it; `replay` and `widths` draw some tests again, to be computed with the emulation.
"""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fpemu
from fpemu import digests
from fpemu.digests import SAMPLE
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime import device
from fpemu.mma import MmaSpec
from fpemu.mma import codes as mma_codes
from fpemu.mma import operand_streams as streams
from fpemu.verify.instructions import Verification, execute_codes

ABOUT = (
    "Outputs of matrix instructions compared on a GPU with their emulation. Operands are a function of seed, class and "
    "test (fpemu.mma.operand_streams). digests: of all outputs of the hardware, by class; samples: of its first tests "
    f"({SAMPLE} of a class). mismatches: outputs that differ; nan_codes: those of them that are NaN on both sides with "
    "different codes; differ: both, by class, where there are any. trial: digests by class of a shorter run with the "
    "same seed, of trial_outputs outputs. widths: for each n of a wgmma, the digest of a test of each class of "
    "WIDTH_CLASSES in fpemu.verify.records"
)
WIDTH_CLASSES = ("any-bits", "mixed", "leftover")


def record(
    runs: Sequence[Verification],
    seed: int,
    *,
    trials: Sequence[Verification] = (),
    widths: Sequence[dict[str, str]] = (),
) -> dict[str, Any]:
    """The record of some verifications on the GPU at hand.

    Parameters
    ----------
    runs : sequence of Verification
    seed : int
    trials : sequence of Verification, optional
        A shorter run of each, few enough outputs to be computed again on a CPU.
    widths : sequence of dict, optional
        What `widths` found for each; empty where the instruction is no wgmma.
    """
    rows = [entry(run) for run in runs]
    for row, trial in zip(rows, trials, strict=False):
        row |= {"trial_outputs": trial.outputs, "trial": {c.kind: c.digest for c in trial.classes}}
    for row, found in zip(rows, widths, strict=False):
        row |= {"widths": found} if found else {}
    return {
        "about": ABOUT,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "fpemu": fpemu.__version__,
        "device": {**device.describe(), "driver": driver()},
        "seed": seed,
        "sample_tests": SAMPLE,
        "classes": list(streams.CLASSES),
        "instructions": rows,
    }


def entry(run: Verification) -> dict[str, Any]:
    """One instruction of a record."""
    differ = {c.kind: [c.mismatches, c.nan_codes] for c in run.classes if c.mismatches}
    return {
        "instruction": run.instruction,
        "ptx": run.ptx,
        "tile": list(run.tile),
        "outputs": run.outputs,
        "mismatches": run.mismatches,
        "nan_codes": sum(c.nan_codes for c in run.classes),
        "differ": differ,
        "seconds": round(run.seconds, 3),
        "digest": run.digest,
        "digests": {c.kind: c.digest for c in run.classes},
        "samples": {c.kind: c.sample for c in run.classes},
    }


def text(made: dict[str, Any]) -> str:
    """A record as JSON, a line for each instruction's field."""
    head = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in made.items() if name != "instructions"]
    rows = [
        "  {" + ",\n   ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in row.items()) + "}"
        for row in made["instructions"]
    ]
    return "{\n" + ",\n".join(head) + ',\n "instructions": [\n' + ",\n".join(rows) + "\n ]\n}\n"


def replay(spec: MmaSpec, kind: str, seed: int, tile: Sequence[int]) -> str:
    """The sample of a class by the emulation: equal to the hardware's, if that computes what the catalog says."""
    m, n = tile
    A, B, C = streams.operands(spec, kind, seed, 0, SAMPLE, m, n)
    return digests.text(execute_codes(A, B, C, spec))


def widths(
    spec: MmaSpec, seed: int, execute: Callable[..., NDArray[Any]], only: Sequence[int] | None = None
) -> dict[str, str]:
    """Digests of a few tests at each n of a wgmma, or at `only` some; nothing for other instructions.

    Parameters
    ----------
    execute : callable
        Of codes A, B (stored by its columns), C, the spec and n: `hardware_codes`, or what stands for it.
    """
    if spec.instruction != "wgmma":
        return {}
    found = {}
    for n in instructions.widths(spec) if only is None else only:
        drawn = [streams.operands(spec, kind, seed, 0, 1, 64, n) for kind in WIDTH_CLASSES]
        A, B, C = (np.concatenate(x) for x in zip(*drawn, strict=True))
        found[str(n)] = digests.text(execute(A, B, C, spec, n))
    return found


def hardware_codes(A: NDArray[Any], B: NDArray[Any], C: NDArray[Any], spec: MmaSpec, n: int) -> NDArray[Any]:
    """`fpemu.gpu.execute` from codes to codes, B stored by its columns."""
    a, b, c = (mma_codes.values(x, f) for x, f in zip((A, B, C), streams.formats(spec), strict=True))
    return mma_codes.codes(instructions.execute(a, b.swapaxes(-1, -2), c, spec, n=n), spec.d_format)


def driver() -> str:
    """The version of NVIDIA's driver, as nvidia-smi says it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return told.split()[0] if told.split() else "unknown"
