"""Operands split into words of 8 or 16 bits by ``kernels/hopper_split.cuh``, chunk after chunk of 64 k."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FP16
from fpemu.gpu.gemm.base import Operand, Prepared, record
from fpemu.gpu.gemm.splitting import KeptSplitter, Steps
from fpemu.gpu.runtime import device, launches, matrices, modules, properties
from fpemu.gpu.runtime.compiler import kernel_source
from fpemu.gpu.runtime.constants import struct
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.schemes.words import BALANCED, Word

OPERAND = np.dtype(
    [
        *(
            (name, "<u8")
            for name in (
                "X",
                "offsets",
                "high",
                "low",
                "exponents",
                "special",
                "faults",
                "next_faults",
                "panels",
                "largest",
            )
        ),
        ("row_stride", "<i8"),
        ("k_stride", "<i8"),
        ("shift", "<f4"),
        ("limit", "<f4"),
        *(
            (name, "<i4")
            for name in ("rows", "K", "chunks", "matrices", "all_rows", "all_k", "wide", "second", "exact", "per")
        ),
    ],
    align=True,
)
"""The struct Operand of ``kernels/hopper_split.cuh``"""
OPERANDS = np.dtype([("of", OPERAND, 2), ("phases", "<i4"), ("evict_first", "<i4")], align=True)
"""The struct Operands there"""
CHUNK = 64  # of k, whose words lie together
STAGES, LAG, BLOCKS, THREADS = 4, 2, 3, 256  # constants of the same names there
LOOK, MAKE = 1, 2  # phases
ROWS = 8  # of a thread block of kernels/hopper_split_rows.cu
_RESIDENT = {8: 3, 16: 2}  # thread blocks of it on a multiprocessor, by loads
_NARROW = 4  # chunks of k up to which many rows are split faster by tiles: a warp has a row
_FEW = 2**13  # rows that are not many
_L2 = 48 * 2**20  # bytes of operands that fit in the L2 of an H200 without their words


@dataclass(frozen=True)
class Kind:
    """A kernel that splits operands, and the constants in front of ``kernels/hopper_split.cuh``."""

    file: str
    kernel: str
    side: int = 64  # rows of a tile
    span: int = 64  # k of a tile
    parts: int = 1  # blocks of an operand that are read together: four, or one
    sums: int = 1  # sums of these blocks that are split
    balanced: bool = False  # how fp16 words are rounded (high_words.cuh)
    loads: int = 0  # of hopper_split_rows.cu: its segments are 128 times as long

    @property
    def panel_bytes(self) -> int:
        """Bytes of the struct Panel."""
        return 4 * (2 * self.side * self.sums + 2)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a thread block."""
        return 4 * self.parts * self.side * self.span * STAGES

    def halved(self, size: int) -> int:
        """The rows or k of a block of an operand with `size` of them."""
        return size if self.parts == 1 else -(-size // 2)

    def of_rows(self, loads: int) -> Kind:
        """The kernel that makes the same words from segments of rows in registers."""
        return replace(self, file="hopper_split_rows.cu", kernel="split_rows", loads=loads)

    def source(self) -> str:
        """The kernel's text."""
        config = {
            "STAGES": STAGES,
            "LAG": LAG,
            "BLOCKS": BLOCKS,
            "SIDE": self.side,
            "SPAN": self.span,
            "PARTS": self.parts,
            "SUMS": self.sums,
            "BALANCED": self.balanced,
        }
        if self.loads:
            config |= {"ROWS": ROWS, "LOADS": self.loads, "RESIDENT": _RESIDENT[self.loads]}
        return struct(config) + "\n" + kernel_source(self.file)


KINDS = {
    "halves": Kind("hopper_split.cu", "split"),
    "bytes": Kind("staged_int8_split.cu", "split_bytes"),
    "sums": Kind("strassen_split.cu", "split_sums", side=32, span=32, parts=4, sums=7),
}
"""Words of fp16, words of `staged-int8`, words of the sums of blocks of Strassen's algorithm"""


def sources() -> list[str]:
    """The texts of all kernels that split, with words to nearest."""
    kinds = [*KINDS.values(), *(KINDS["halves"].of_rows(loads) for loads in _RESIDENT)]
    return [kind.source() for kind in kinds]


def takes(rules: Sequence[Word]) -> bool:
    """Whether the kernel makes these words: one or two of fp16, to nearest even or balanced, the first unscaled."""
    first = rules[0].rounding in ("RNE", BALANCED)
    nearest = first and all(rule.format is FP16 and (rule is rules[0] or rule.rounding == "RNE") for rule in rules)
    return nearest and 1 <= len(rules) <= 2 and rules[0].exponent == 0 and abs(rules[-1].exponent) <= 40


@dataclass(eq=False)
class Chunked(Prepared):
    """An operand whose words lie chunk after chunk of 64 k: (matrix, chunk, row, 128 bytes)."""


class ChunkSplitter(KeptSplitter):
    """Splits by a kernel of `KINDS` into words chunk after chunk; `settings` are further fields of `OPERAND`."""

    def __init__(self, kind: str, settings: dict[str, Any], words: int = 2, *, balanced: bool = False) -> None:
        super().__init__()
        self._kind, self._words, self._settings = replace(KINDS[kind], balanced=balanced), words, settings

    def _panels(self, X: Matrix, name: str) -> int:
        """Panels of an operand."""
        return X.count * -(-self._kind.halved(X.shape[-2 if name == "A" else -1]) // self._kind.side)

    def _steps(self, operands: Sequence[Operand], turns: dict[str, int], on_range: str) -> Steps:
        both, kind, scaling = np.zeros(1, OPERANDS), self._kind, on_range
        steps = Steps()
        for i, (X, name) in enumerate(operands):
            x, operand, largest = self._operand(X, name, turns[name], scaling)
            both["of"][0, i] = operand[0]
            steps.prepared.append(x)
            steps.zeros += [largest] if largest is not None else []
        of = both["of"][0]
        spans = int(of["chunks"].max()) * (CHUNK // kind.span)
        tile_count = spans * sum(self._panels(X, name) for X, name in operands)
        if not tile_count:
            return Steps(steps.prepared, [fault for _, name in operands for fault in self._faults(name)])
        grid = min(tile_count, BLOCKS * properties.multiprocessors())
        apart = bool(steps.zeros) or spans > (LAG - 1) * grid  # rows have to be seen as a whole before
        overlap, shared, threads = tile_count <= 4 * grid and not steps.zeros, kind.shared_bytes, THREADS
        lines = int(np.sum(of["rows"] * of["matrices"]))
        if not steps.zeros and (segments := self._segments(spans, lines, apart)) is not None:
            kind, overlap, shared, threads, length = segments, True, 0, 32 * ROWS, 128 * segments.loads
            apart = CHUNK * spans > length
            groups = -(-of["rows"] // ROWS) * of["matrices"]
            grid = int(np.sum(groups * -(-of["K"] // length)))
        for phases in (LOOK, MAKE) if apart else (LOOK | MAKE,):
            both["phases"] = phases
            both["evict_first"] = phases & MAKE and evict_first(X for X, _ in operands)
            tables = [matrices.table(X) for X, _ in operands if X.count > 1]
            steps.launches.append(
                _module(kind).prepare(
                    kind.kernel, grid, threads, both.copy(), shared=shared, overlap=overlap, keep=tables
                )
            )
        return steps

    def _segments(self, chunks: int, rows: int, apart: bool) -> Kind | None:
        """The kernel that keeps segments of rows in registers, where it is faster than that of tiles.

        apart : bool
            Whether tiles need two launches.
        """
        loads = next((n for n in _RESIDENT if CHUNK * chunks <= 128 * n), max(_RESIDENT))
        fastest = (chunks > _NARROW or rows <= _FEW) if CHUNK * chunks <= 128 * loads else apart
        return self._kind.of_rows(loads) if fastest and self._kind.file == KINDS["halves"].file else None

    def _operand(
        self, X: Matrix, name: str, turn: int, scaling: str
    ) -> tuple[Prepared, NDArray[Any], device.Buffer | None]:
        """The prepared operand, the struct Operand, and the buffer for the largest entry of each matrix."""
        x, kind = Chunked(Matrix(X.pointer, X.dtype, X.shape, X.strides), name), self._kind
        rows, K = kind.halved(x.rows), kind.halved(x.K)
        chunks, lines = -(-K // CHUNK), X.count * kind.sums * rows
        x.pitch = chunks * CHUNK
        size = X.count * kind.sums * word_bytes(rows, K)
        x.words = tuple(self._buffer(f"{name} word {i}", size) for i in range(self._words))
        x.special = self._buffer(f"{name} special", X.count * x.rows)
        faults = self._faults(name)
        x.faults = faults[turn]
        panels = self._buffer(f"{name} panels", kind.panel_bytes * self._panels(X, name), zero=True)
        if scaling in ("scale", "scale-rows"):
            x.exponents = self._buffer(f"{name} exponents", 4 * lines)
        largest = self._buffer(f"{name} largest", 4 * X.count, cleared=True) if scaling == "scale" else None
        row, k = x.steps
        along, across, start = (row, k, K) if k == 1 else (k, row, rows)
        aligned = (along, *X.strides[:-2], *((start,) if kind.parts > 1 else ()))
        values = {
            "X": X.pointer,
            "offsets": matrices.table(X) if X.count > 1 else None,
            "high": x.words[0],
            "low": x.words[1] if self._words > 1 else None,
            "exponents": x.exponents,
            "special": x.special,
            "faults": faults[turn],
            "next_faults": faults[1 - turn],
            "largest": largest,
            "panels": panels,
            "row_stride": row,
            "k_stride": k,
            "rows": rows,
            "K": K,
            "chunks": chunks,
            "matrices": X.count,
            "all_rows": x.rows,
            "all_k": x.K,
            "second": name == "B",
            "wide": across == 1 and X.pointer % 16 == 0 and all(n % 4 == 0 for n in aligned),
        }
        return x, record(OPERAND, values | self._settings), largest


def evict_first(operands: Iterable[Matrix]) -> bool:
    """Whether the entries and words of operands leave the L2 first once they were read, so that the others stay."""
    return sum(4 * prod(X.shape) for X in operands) <= _L2


def word_bytes(rows: int, K: int) -> int:
    """Bytes of a word of one matrix, whole chunks."""
    return rows * -(-K // CHUNK) * 128


def tiles(x: Prepared, word: int, itemsize: int, rows: int) -> NDArray[np.uint64]:
    """A word of an operand as TMA fetches it (hopper.cuh: tma_fetch): `rows` rows of a chunk, 128 bytes each.

    Rows and chunks outside of the operand are read as zeros.
    """
    row, chunks, line = 128, x.pitch // CHUNK, 128 // itemsize
    if isinstance(x, Chunked):
        chunk, matrix = row * x.rows, row * x.rows * chunks
    else:
        row, chunk, matrix = itemsize * x.pitch, itemsize * CHUNK, itemsize * x.pitch * x.rows
    shape = (x.source.count, chunks, x.rows, line)
    return launches.tensor_map(x.words[word].pointer, itemsize, shape, (matrix, chunk, row), (rows, line))


@cache
def _module(kind: Kind) -> modules.Module:
    return modules.Module(kind.source(), name=kind.file)
