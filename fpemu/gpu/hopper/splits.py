"""An operand split into one or two fp16 words by ``kernels/hopper_split.cu``: one pass over it, 8 bytes an entry.

The readable twin, for any words, is `fpemu.gpu.splitting.prepare`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FP16
from fpemu.gpu import device, matrices
from fpemu.gpu.compiler import kernel_source
from fpemu.gpu.kernel import Prepared, Room
from fpemu.gpu.matrices import Matrix
from fpemu.schemes.words import Word

OPERAND = np.dtype(
    [*((name, "<u8") for name in ("X", "offsets", "high", "low", "exponents", "special", "faults", "largest")),
     ("row_stride", "<i8"), ("k_stride", "<i8"), ("shift", "<f4"), ("rows", "<i4"), ("K", "<i4"), ("pitch", "<i4"),
     ("wide", "<i4")], align=True,
)  # fmt: skip
"""The struct Operand of ``kernels/hopper_words.cuh``"""
BACKGROUND = np.dtype(
    [("operands", OPERAND, 2), ("first", "<i4", 2), ("piece", "<i4"), ("lag", "<i4"), ("queue", "<u8"),
     ("done", "<u8", 2), ("surveyed", "<u8", 2), ("largest", "<u8", 2)], align=True,
)  # fmt: skip
"""The struct Background of ``kernels/hopper_background.cuh``"""
PITCH = 8  # words of a row are padded to whole 16 bytes
PANEL = 32  # PANEL of ``kernels/hopper_background.cuh``
_WIDTH, _PART, _COLUMN_THREADS = 16, 1024, 256  # WIDTH, PART and COLUMN_THREADS of hopper_split.cu
_HELD = 4  # HELD groups of four entries a thread


def takes(rules: Sequence[Word]) -> bool:
    """Whether the kernel makes these words: one or two of fp16, to nearest even, the first unscaled."""
    nearest = all(rule.format is FP16 and rule.rounding == "RNE" for rule in rules)
    return nearest and 1 <= len(rules) <= 2 and rules[0].exponent == 0 and abs(rules[-1].exponent) <= 40


@dataclass(eq=False)
class Begun(Prepared):
    """An operand of which some rows may not be split yet.

    Parameters
    ----------
    plan : Split
        What made it.
    split : int
        The rows before this one are split: a multiple of `PANEL`, or all.
    """

    plan: Split | None = None
    split: int = 0

    def finish(self) -> None:
        """Queue what is left."""
        if self.plan is not None and self.split < self.rows:
            self.plan.finish()
        self.split = self.rows


class Split:
    """The launches that split an operand of one place and shape: as `fpemu.gpu.splitting.prepare`, the same bits.

    Parameters
    ----------
    X : Matrix
        fp32: A (..., M, K) or B (..., K, N), of any strides.
    who : {"A", "B"}
    rules : sequence of Word
        Words that the kernel `takes`.
    scaling : str
        "scale", "scale-rows", anything else none.
    room : Room
        Where the words are put.
    first : int, optional
        How many rows `start` splits at least; by default all. It does all in any case if there are several matrices,
        or one scale for all rows.
    """

    def __init__(self, X: Matrix, who: str, rules: Sequence[Word], scaling: str, room: Room, first: int | None) -> None:
        found = self.found = Prepared(Matrix(X.pointer, X.dtype, X.shape, X.strides), who)
        self.K = X.shape[-1 if who == "A" else -2]
        lines, found.pitch = X.count * found.rows, -(-self.K // PITCH) * PITCH
        found.words = tuple(room.buffer(f"{who} word {i}", 2 * lines * found.pitch) for i in range(len(rules)))
        found.special = room.buffer(f"{who} special", lines)
        found.faults = room.buffer(f"{who} faults", 16)
        if scaling in ("scale", "scale-rows"):
            found.exponents = room.buffer(f"{who} exponents", 4 * lines)
        self._zeros, self._launches = [found.faults], []
        self._offsets = matrices.table(X) if X.count > 1 else None
        self.operand = _operand(found, rules, self.K, self._offsets)
        if scaling == "scale":
            largest = room.buffer(f"{who} largest", 4 * X.count)
            self.operand["largest"] = largest.pointer
            blocks = max(1, min(1024, -(-found.rows * self.K // 4096)))
            self._zeros.append(largest)
            self._launches.append(_module().prepare("largest_entry", (blocks, X.count), 256, self.operand, largest))
        self.split = found.rows
        if first is not None and X.count == 1 and scaling != "scale":
            self.split = min(found.rows, -(-first // PANEL) * PANEL)
        self._launches += self._rows(0, self.split)

    def start(self, X: Matrix) -> Begun:
        """Queue what splits the first rows; X is the operand that this was made for."""
        for buffer in self._zeros:
            buffer.fill(0)
        for launch in self._launches:
            launch.queue()
        f = self.found
        return Begun(X, f.who, f.words, f.pitch, f.exponents, f.special, f.faults, plan=self, split=self.split)

    def outgrown(self, new: Split) -> bool:
        """Whether the buffers were replaced when a larger operand came."""
        return self.found.who == new.found.who and self.found.words[0] is not new.found.words[0]

    def finish(self) -> None:
        """Queue what splits the other rows."""
        for launch in self._rows(self.split, self.found.rows):
            launch.queue()

    def _rows(self, begin: int, end: int) -> list[device.Launch]:
        """What splits rows begin <= row < end of every matrix; all of them if there are several matrices."""
        found, count, rows = self.found, self.found.source.count, end - begin
        if not (rows and count and self.K):
            return []
        operand = self.operand.copy()
        steps = {"X": 4 * found.steps[0], "high": 2 * found.pitch, "low": 2 * found.pitch, "exponents": 4, "special": 1}
        for name, step in steps.items():
            operand[name] += np.uint64(step * begin if operand[name][0] else 0)
        operand["rows"] = rows
        if found.steps[1] == 1:
            threads = min(512, -(-found.pitch // (4 * _HELD * 32)) * 32)
            return [_module().prepare("rows_split", (rows, count), threads, operand)]
        parts = next(p for p in (1, 2, 4, 8) if p == 8 or found.pitch <= p * _PART)
        shared, grid = _WIDTH * (_PART + 2) * 4, (-(-rows // _WIDTH) * parts, count)
        return [_module().prepare("columns_split", grid, _COLUMN_THREADS, operand, np.int32(parts), shared=shared,
                                  cluster=parts)]  # fmt: skip


def _operand(found: Prepared, rules: Sequence[Word], K: int, offsets: device.Buffer | None) -> NDArray[Any]:
    """The struct Operand."""
    X, (row_step, k_step) = found.source, found.steps
    along, across = (row_step, k_step) if k_step == 1 else (k_step, row_step)
    wide = across == 1 and X.pointer % 16 == 0 and all(s % 4 == 0 for s in (along, *X.strides[:-2]))
    operand = np.zeros(1, OPERAND)
    for name, value in {
        "X": X.pointer, "offsets": _pointer(offsets), "high": found.words[0].pointer,
        "low": found.words[1].pointer if len(rules) > 1 else 0, "special": _pointer(found.special),
        "exponents": _pointer(found.exponents), "faults": _pointer(found.faults), "row_stride": row_step,
        "k_stride": k_step, "shift": 2.0 ** rules[-1].exponent, "rows": found.rows, "K": K, "pitch": found.pitch,
        "wide": wide,
    }.items():  # fmt: skip
        operand[name] = value
    return operand


def _pointer(buffer: device.Buffer | None) -> int:
    return 0 if buffer is None else buffer.pointer


@cache
def _module() -> device.Module:
    return device.Module(kernel_source("hopper_split.cu"), name="hopper_split.cu")
