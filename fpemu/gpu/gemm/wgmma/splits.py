"""Operands split into words of 8 or 16 bits by ``kernels/hopper_split.cuh``, chunk after chunk of 64 k."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from fpemu.formats import FP16
from fpemu.gpu.gemm.base import Prepared, counters
from fpemu.gpu.runtime import device, matrices, modules
from fpemu.gpu.runtime.compiler import kernel_source, struct
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.steps import Memory, Step, Struct, TensorMap, fields
from fpemu.schemes.words import BALANCED, OverflowPolicy, Word

OPERAND = fields(
    "u8 X offsets high low exponents special faults next_faults panels largest, i8 row_stride k_stride, "
    "f4 shift limit, i4 rows K chunks matrices all_rows all_k wide second exact per"
)
"""The struct Operand of ``kernels/hopper_split.cuh``"""
OPERANDS = np.dtype([("of", OPERAND, 2), ("phases", "i4"), ("evict_first", "i4")], align=True)
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


Scaling = Callable[[str], str] | None
"""The scaling of an overflow policy; None: that of rows for every policy"""


class ChunkSplitter:
    """Splits by a kernel of `KINDS` into words chunk after chunk; `settings` are further fields of `OPERAND`."""

    def __init__(
        self, kind: str, settings: dict[str, Any], words: int = 2, scaling: Scaling = None, *, balanced: bool = False
    ) -> None:
        self._kind, self._words, self._settings = replace(KINDS[kind], balanced=balanced), words, settings
        self._scaling = scaling

    def split(self, operands: Sequence[Prepared], policy: str, memory: Memory) -> list[Step]:
        """Complete the operands and return the steps: `Kernel.split`."""
        kind, scaling = self._kind, OverflowPolicy.SCALE_ROWS if self._scaling is None else self._scaling(policy)
        records = [self._record(x, scaling, memory) for x in operands]
        K = kind.halved(operands[0].K)
        chunks, whole = -(-K // CHUNK), scaling == OverflowPolicy.SCALE
        spans = chunks * (CHUNK // kind.span)
        tile_count = spans * sum(map(self._panels, operands))
        if not tile_count:
            return []
        grid = min(tile_count, BLOCKS * device.multiprocessors())
        apart = whole or spans > (LAG - 1) * grid  # rows have to be seen as a whole before
        overlap, shared, threads = tile_count <= 4 * grid and not whole, kind.shared_bytes, THREADS
        loads = 0 if whole else self._loads(chunks, sum(x.source.count * x.rows for x in operands), apart=apart)
        if loads:
            kind, overlap, shared, threads, length = kind.of_rows(loads), True, 0, 32 * ROWS, 128 * loads
            apart = CHUNK * chunks > length
            grid = sum(x.source.count * -(-x.rows // ROWS) for x in operands) * -(-K // length)
        steps: list[Step] = []
        for phases in (LOOK, MAKE) if apart else (LOOK | MAKE,):
            first = phases & MAKE and evict_first(x.source for x in operands)
            both = Struct(OPERANDS, {"of": records, "phases": phases, "evict_first": first})
            module = modules.module(kind.source(), kind.file)
            steps.append(module.step(kind.kernel, grid, threads, both, shared=shared, overlap=overlap))
        return steps

    def _panels(self, x: Prepared) -> int:
        return x.source.count * -(-self._kind.halved(x.rows) // self._kind.side)

    def _loads(self, chunks: int, rows: int, *, apart: bool) -> int:
        """Return the loads of the kernel that keeps segments of rows in registers; 0 where tiles are faster.

        apart : whether tiles need two launches
        """
        loads = next((n for n in _RESIDENT if CHUNK * chunks <= 128 * n), max(_RESIDENT))
        fastest = (chunks > _NARROW or rows <= _FEW) if CHUNK * chunks <= 128 * loads else apart
        return loads if fastest and self._kind.file == KINDS["halves"].file else 0

    def _record(self, x: Prepared, scaling: str, memory: Memory) -> Struct:
        """Complete an operand and return the struct Operand."""
        X, kind = x.source, self._kind
        x.chunked, x.faults = True, counters(x.name, memory)
        rows, K = kind.halved(x.rows), kind.halved(x.K)
        chunks, sums = -(-K // CHUNK), X.count * kind.sums
        x.pitch = chunks * CHUNK
        x.words = tuple(memory.block(sums * word_bytes(rows, K)) for _ in range(self._words))
        x.special = memory.block(X.count * x.rows)
        if scaling in (OverflowPolicy.SCALE, OverflowPolicy.SCALE_ROWS):
            x.exponents = memory.block(4 * sums * rows)
        row, k = x.steps
        along, across, start = (row, k, K) if k == 1 else (k, row, rows)
        aligned = (along, *X.strides[:-2], *((start,) if kind.parts > 1 else ()))
        wide = across == 1 and X.pointer % 16 == 0 and all(n % 4 == 0 for n in aligned)
        largest = memory.cleared(4 * X.count) if scaling == OverflowPolicy.SCALE else None
        values = {"X": X.pointer, "offsets": matrices.table(X) if X.count > 1 else None, "second": x.name == "B"}
        values |= {"row_stride": row, "k_stride": k, "rows": rows, "K": K, "chunks": chunks, "matrices": X.count}
        values |= {"all_rows": x.rows, "all_k": x.K, "wide": wide, "largest": largest, "faults": x.faults}
        values |= dict(zip(("high", "low"), x.words, strict=False))
        values |= {"panels": memory.zeros(kind.panel_bytes * self._panels(x))}
        return Struct(OPERAND, values | {"exponents": x.exponents, "special": x.special} | self._settings)


def evict_first(operands: Iterable[Matrix]) -> bool:
    """Whether the entries and words of operands leave the L2 first once they were read, so that the others stay."""
    return sum(4 * prod(X.shape) for X in operands) <= _L2


def word_bytes(rows: int, K: int) -> int:
    """Bytes of a word of one matrix, whole chunks."""
    return rows * -(-K // CHUNK) * 128


def tiles(x: Prepared, word: int, itemsize: int, rows: int) -> TensorMap:
    """A word of an operand as TMA fetches it (hopper.cuh: tma_fetch): `rows` rows of a chunk, 128 bytes each.

    Rows and chunks outside of the operand are read as zeros.
    """
    row, chunks, line = 128, x.pitch // CHUNK, 128 // itemsize
    if x.chunked:
        chunk, matrix = row * x.rows, row * x.rows * chunks
    else:
        row, chunk, matrix = itemsize * x.pitch, itemsize * CHUNK, itemsize * x.pitch * x.rows
    shape = (x.source.count, chunks, x.rows, line)
    return TensorMap(x.words[word].pointer, itemsize, shape, (matrix, chunk, row), (rows, line))
