"""Operands split into words of 8 or 16 bits by ``kernels/hopper_panels.cuh``: both of a product in one launch.

The readable twin, for any words, is `fpemu.gpu.splitting.prepare`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FP16
from fpemu.gpu import device, matrices, properties
from fpemu.gpu.compiler import kernel_source
from fpemu.gpu.hopper.records import keep, record
from fpemu.gpu.kernel import Prepared, Room
from fpemu.gpu.matrices import Matrix
from fpemu.schemes.words import Word

OPERAND = np.dtype(
    [*((name, "<u8") for name in ("X", "offsets", "high", "low", "exponents", "special", "faults", "next_faults",
                                  "panels", "largest")),
     ("row_stride", "<i8"), ("k_stride", "<i8"), ("shift", "<f4"),
     *((name, "<i4") for name in ("rows", "K", "chunks", "matrices", "wide", "second", "exact", "per"))], align=True,
)  # fmt: skip
"""The struct Operand of ``kernels/hopper_panels.cuh``"""
OPERANDS = np.dtype([("of", OPERAND, 2), ("phases", "<i4")], align=True)
"""The struct Operands there"""
CHUNK = 64  # of k, whose words lie together
PANEL_BYTES = 4 * (2 * 64 + 2)  # of the struct Panel
PIECES, LAG, BLOCKS, SIDE, THREADS = 4, 2, 3, 64, 256  # constants of the same names there
LOOK, MAKE = 1, 2  # phases
KERNELS = {"halves": ("hopper_split.cu", "split"), "bytes": ("frontier_split.cu", "split_bytes")}
"""What splits: the file and the kernel, by the kind of words."""


def takes(rules: Sequence[Word]) -> bool:
    """Whether the kernel makes these words: one or two of fp16, to nearest even, the first unscaled."""
    nearest = all(rule.format is FP16 and rule.rounding == "RNE" for rule in rules)
    return nearest and 1 <= len(rules) <= 2 and rules[0].exponent == 0 and abs(rules[-1].exponent) <= 40


@dataclass(eq=False)
class Chunked(Prepared):
    """An operand whose words lie chunk after chunk of 64 k: (matrix, chunk, row, 128 bytes)."""


class Splitter:
    """Splits the operands of one kernel: keeps the buffers for it, and the launches, for operands that come again.

    Parameters
    ----------
    kind : {"halves", "bytes"}
        fp16 words, or those of `staged-int8`.
    words : int
        How many arrays of words there are.
    settings : dict
        Further fields of `OPERAND`.
    """

    def __init__(self, kind: str, words: int, settings: dict[str, Any]) -> None:
        self._kind, self._words, self._settings, self._room = kind, words, settings, Room()
        self._held: dict[str, device.Buffer] = {}
        self._turns = {"A": 0, "B": 0}
        self._launches: dict[Any, tuple[list[Prepared], list[device.Buffer], list[device.Launch]]] = {}

    def prepare(self, operands: Sequence[tuple[Matrix, str]], scaling: str) -> list[Prepared]:
        """Queue what splits one operand or both.

        Parameters
        ----------
        operands : sequence of (Matrix, {"A", "B"})
            fp32: A (..., M, K) or B (..., K, N), of any strides.
        scaling : str
            "scale", "scale-rows", anything else none.
        """
        for _, who in operands:
            self._turns[who] ^= 1
        key = (scaling, *((X.pointer, X.shape, X.strides, who, self._turns[who]) for X, who in operands))
        if key not in self._launches:
            made = self._made(operands, scaling)  # may clear what is kept
            keep(self._launches, key, made)
        found, zeros, todo = self._launches[key]
        for buffer in zeros:
            buffer.fill(0)
        for launch in todo:
            launch.queue()
        return [
            Chunked(X, who, f.words, f.pitch, f.exponents, f.special, f.faults)
            for (X, who), f in zip(operands, found, strict=True)
        ]

    def _buffer(self, name: str, nbytes: int, zero: bool = False) -> device.Buffer:
        """A buffer of the room; launches into one that it replaces are forgotten."""
        found = self._room.buffer(name, nbytes)
        if self._held.get(name) is not found:
            self._launches.clear()
            self._held[name] = found
            if zero:
                found.fill(0)
        return found

    def _made(
        self, operands: Sequence[tuple[Matrix, str]], scaling: str
    ) -> tuple[list[Prepared], list[device.Buffer], list[device.Launch]]:
        both = np.zeros(1, OPERANDS)
        found, zeros = [], []
        for i, (X, who) in enumerate(operands):
            x, operand, largest = self._operand(X, who, scaling)
            both["of"][0, i] = operand[0]
            found.append(x)
            zeros += [largest] if largest is not None else []
        of = both["of"][0]
        pieces = int((-(-of["rows"] // SIDE) * of["chunks"] * of["matrices"]).sum())
        if not pieces:
            return found, [], []
        file, name = KERNELS[self._kind]
        module, shared = _module(file), 4 * SIDE * SIDE * PIECES
        grid = min(pieces, BLOCKS * properties.multiprocessors())
        apart = zeros or int(of["chunks"].max()) > (LAG - 1) * grid  # rows have to be seen as a whole before
        small, todo, tables = pieces <= 4 * grid, [], [matrices.table(X) for X, _ in operands if X.count > 1]
        for phases in (LOOK, MAKE) if apart else (LOOK | MAKE,):
            both["phases"] = phases
            todo.append(module.prepare(name, grid, THREADS, both.copy(), shared=shared, overlap=small and not zeros,
                                       keep=tables))  # fmt: skip
        return found, zeros, todo

    def _operand(self, X: Matrix, who: str, scaling: str) -> tuple[Prepared, NDArray[Any], device.Buffer | None]:
        """What becomes of an operand, the struct Operand, and the room for the largest entry of each matrix."""
        x = Prepared(Matrix(X.pointer, X.dtype, X.shape, X.strides), who)
        K = X.shape[-1 if who == "A" else -2]
        chunks, lines, turn = -(-K // CHUNK), X.count * x.rows, self._turns[who]
        x.pitch = chunks * CHUNK
        x.words = tuple(self._buffer(f"{who} word {i}", 128 * lines * chunks) for i in range(self._words))
        x.special = self._buffer(f"{who} special", lines)
        faults = [self._buffer(f"{who} faults {i}", 16, zero=True) for i in range(2)]
        x.faults, panels = faults[turn], PANEL_BYTES * X.count * -(-x.rows // SIDE)
        if scaling in ("scale", "scale-rows"):
            x.exponents = self._buffer(f"{who} exponents", 4 * lines)
        largest = self._buffer(f"{who} largest", 4 * X.count) if scaling == "scale" else None
        row, k = x.steps
        along, across = (row, k) if k == 1 else (k, row)
        values = {
            "X": X.pointer, "offsets": matrices.table(X) if X.count > 1 else None, "high": x.words[0],
            "low": x.words[1] if self._words > 1 else None, "exponents": x.exponents, "special": x.special,
            "faults": faults[turn], "next_faults": faults[1 - turn], "largest": largest,
            "panels": self._buffer(f"{who} panels", panels, zero=True), "row_stride": row, "k_stride": k,
            "rows": x.rows, "K": K, "chunks": chunks, "matrices": X.count,
            "wide": across == 1 and X.pointer % 16 == 0 and all(s % 4 == 0 for s in (along, *X.strides[:-2])),
            "second": who == "B",
        }  # fmt: skip
        return x, record(OPERAND, values | self._settings), largest


def tiles(x: Prepared, word: int, itemsize: int, rows: int) -> NDArray[np.uint64]:
    """The words of an operand as TMA fetches them (hopper.cuh: tma_fetch): `rows` rows of a chunk, 128 bytes each.

    Parameters
    ----------
    x : Prepared
        As `Splitter` makes it, or with rows of ``pitch`` words, zeros beyond K.
    word : int
        Which of its words.
    itemsize : int
        Bytes of an element.
    rows : int
        Rows of the tile; those outside of the operand become zero, as do chunks.
    """
    cuda, row, chunks = device._enter(), 128, x.pitch // CHUNK
    if isinstance(x, Chunked):
        chunk, matrix = row * x.rows, row * x.rows * chunks
    else:
        row, chunk, matrix = itemsize * x.pitch, itemsize * CHUNK, itemsize * x.pitch * x.rows
    kinds, integer, long = cuda.CUtensorMapDataType, cuda.cuuint32_t, cuda.cuuint64_t
    kind = {1: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT8, 2: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16}[itemsize]
    made = device.check(cuda.cuTensorMapEncodeTiled(
        kind, 4, x.words[word].pointer, [long(n) for n in (128 // itemsize, x.rows, chunks, x.source.count)],
        [long(n) for n in (row, chunk, matrix)], [integer(n) for n in (128 // itemsize, rows, 1, 1)], [integer(1)] * 4,
        cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    ))  # fmt: skip
    return np.frombuffer(ctypes.string_at(made.getPtr(), 128), np.uint64)


@cache
def _module(file: str) -> device.Module:
    return device.Module(source(file), name=file)


def source(file: str) -> str:
    """The text of a kernel that splits."""
    return f"#define PIECES {PIECES}\n#define LAG {LAG}\n#define BLOCKS {BLOCKS}\n{kernel_source(file)}"
