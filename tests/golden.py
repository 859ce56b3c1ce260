"""Recordings of real GPUs: the part committed in tests/data, or the complete files where they are at hand.

The complete files lie in the folder named by the environment variable FPEMU_GOLDEN, or in ../shared/golden beside the
checkout. Values are bit patterns; B is stored transposed, (tests, N, K).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).parent / "data"
COMMITTED = DATA / "h200.npz"
PARTS = {"instructions": "h200_instructions", "library": "h200_library_gemm", "kernels": "h200_split_kernels"}
FORMAT_NAMES = {"f16": "fp16", "f32": "fp32", "bf16": "bf16", "tf32": "tf32", "e4m3": "e4m3", "e5m2": "e5m2"}


def folder() -> Path | None:
    """Where the complete files are, or None."""
    named = os.environ.get("FPEMU_GOLDEN")
    if named:
        if not (Path(named) / "h200_instructions.npz").is_file():
            raise FileNotFoundError(f"FPEMU_GOLDEN={named} holds no h200_instructions.npz")
        return Path(named)
    beside = Path(__file__).resolve().parents[2] / "shared" / "golden"
    return beside if (beside / "h200_instructions.npz").is_file() else None


@cache
def load(part: str, complete: bool = True) -> dict[str, NDArray[Any]]:
    """The arrays of one part ("instructions", "library", "kernels", "external") by key."""
    where = folder() if complete else None
    if part == "external":
        if where is None or not (where / "external_v100_a100.npz").is_file():
            return {}
        with np.load(where / "external_v100_a100.npz") as z:
            return {k: z[k] for k in z.files}
    if where is None:
        with np.load(COMMITTED) as z:
            return {k.partition("/")[2]: z[k] for k in z.files if k.startswith(part + "/")}
    with np.load(where / f"{PARTS[part]}.npz") as z:
        return {k: z[k] for k in z.files}


def groups(part: str) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    """(name, arrays by their last key) of a part."""
    arrays = load(part)
    for name in sorted({k.rpartition("/")[0] for k in arrays}):
        yield name, {k.rpartition("/")[2]: v for k, v in arrays.items() if k.rpartition("/")[0] == name}


class InstructionName(NamedTuple):
    """``mma.m16n8k16.f32.f16`` taken apart."""

    instruction: str
    k: int
    d: str
    ab: str


def parse(name: str) -> InstructionName:
    instruction, shape, d, ab = name.split(".")
    return InstructionName(instruction, int(shape.rpartition("k")[2]), FORMAT_NAMES[d], FORMAT_NAMES[ab])


INSTRUCTIONS = sorted({k.split("/")[0] for k in load("instructions", complete=False)}) if COMMITTED.is_file() else []
