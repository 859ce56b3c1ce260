"""What a verification found, as a file: counts and digests, which any machine can compute again from the seed.

`record` makes it, `replay` draws the first tests of a class again and computes them with the emulation.
"""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Sequence
from typing import Any

import fpemu
from fpemu.gpu import device, streams
from fpemu.gpu.digests import SAMPLE, sample_digest
from fpemu.gpu.verify import Verification, execute_codes
from fpemu.mma import MmaSpec

ABOUT = (
    "Outputs of matrix instructions compared on a GPU with their emulation. Operands are a function of seed, class and "
    "test (fpemu.gpu.streams). digests: of all outputs of the hardware, by class; samples: of its first tests "
    f"({SAMPLE} of a class), fp64's NaN with one code. mismatches: outputs that differ; nan_codes: those of them that "
    "are NaN on both sides with different codes; differ: both, by class, where there are any"
)


def record(runs: Sequence[Verification], seed: int) -> dict[str, Any]:
    """The record of some verifications on the GPU at hand."""
    return {
        "about": ABOUT, "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "fpemu": fpemu.__version__, "device": {**device.describe(), "driver": driver()}, "seed": seed,
        "sample_tests": SAMPLE, "classes": list(streams.CLASSES), "instructions": [entry(run) for run in runs],
    }  # fmt: skip


def entry(run: Verification) -> dict[str, Any]:
    """One instruction of a record."""
    differ = {c.kind: [c.mismatches, c.nan_codes] for c in run.classes if c.mismatches}
    return {
        "instruction": run.instruction, "ptx": run.ptx, "tile": list(run.tile), "outputs": run.outputs,
        "mismatches": run.mismatches, "nan_codes": sum(c.nan_codes for c in run.classes), "differ": differ,
        "seconds": round(run.seconds, 3), "digest": run.digest,
        "digests": {c.kind: c.digest for c in run.classes}, "samples": {c.kind: c.sample for c in run.classes},
    }  # fmt: skip


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
    return sample_digest(execute_codes(A, B, C, spec), spec)


def driver() -> str:
    """The version of NVIDIA's driver, as nvidia-smi says it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return told.split()[0] if told.split() else "unknown"
