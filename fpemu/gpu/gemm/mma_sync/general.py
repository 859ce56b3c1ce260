"""Any order over K for every scheme that multiplies words: chains of one instruction on words gathered in memory.

`GeneralKernel` lays out the runs of a lowering, padded to whole instructions, as one chain per accumulator and slice;
``kernels/split_gemm_any_order.cu`` adds slices and accumulators in the emulator's order. `problem` and `batches` state
operands, scalars and batches to all kernels of mma.sync.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.gemm.base import Kernel, Output, Prepared
from fpemu.gpu.gemm.mma_sync import source as text
from fpemu.gpu.gemm.splitting import Splitter
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime.device import Buffer
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.modules import module
from fpemu.gpu.runtime.steps import Block, Memory, Step, Struct, fields
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.order import Run
from fpemu.schemes.split_scheme import SplitScheme
from fpemu.schemes.words import Product

PROBLEM = fields(
    "u8 A B C D, i8 a_row a_k b_column b_k c_row c_column d_row, "
    "u8 a_exponents b_exponents a_special b_special batches, i4 M N K, f4 alpha beta, u4 nan"
)
"""The struct Problem of ``kernels/split_epilogue.cuh``"""
_OFFSETS = {"A": (4, 0), "B": (4, 1), "C": (4, 2), "D": (4, 3)}
_OFFSETS |= {"a_exponents": (4, 4), "b_exponents": (4, 5), "a_special": (1, 4), "b_special": (1, 5)}
"""Bytes of an element behind a pointer of `PROBLEM`, and the column of `batches` that counts them"""
_STRIPE = 4096  # rows and columns of D at a time, at most
_BYTES = 2**30  # of gathered words, at most
_THREADS = 256
_MOST_BLOCKS = 4096  # of kernels that walk over an array


def layout(X: Matrix, name: str) -> str:
    """The layout of an operand in memory, one of `source.LAYOUTS`."""
    along, rows = (X.strides[-1], X.strides[-2]) if name == "A" else (X.strides[-2], X.strides[-1])
    if along != 1:
        return "ALONG_ROWS"
    K = X.shape[-1 if name == "A" else -2]
    aligned = X.pointer % 16 == 0 and K % 8 == 0 and all(s % 4 == 0 for s in (rows, *X.strides[:-2]))
    return "ALONG_K_BY_FOUR" if aligned else "ALONG_K"


def problem(kernel: Kernel, a: Prepared, b: Prepared, end: Output, where: Buffer | None = None) -> Struct:
    """The struct Problem; `where`: the rows of `batches`."""
    A, B, C, D = a.source, b.source, end.C, end.D
    values: dict[str, Any] = {"A": A, "B": B, "C": C, "D": D, "batches": where, "M": a.rows, "N": b.rows, "K": a.K}
    values |= dict(zip(("a_row", "a_k", "b_k", "b_column"), (*A.strides[-2:], *B.strides[-2:]), strict=True))
    values |= dict(zip(("c_row", "c_column"), (0, 0) if C is None else C.strides[-2:], strict=True))
    values |= {"d_row": D.strides[-2], "alpha": end.alpha, "beta": end.beta}
    for name, x in (("a", a), ("b", b)):
        values |= {f"{name}_exponents": x.exponents, f"{name}_special": x.special}
    return Struct(PROBLEM, values | {"nan": kernel.scheme.nan_code(kernel.spec)})


def batches(A: Matrix, B: Matrix, end: Output) -> NDArray[np.int64] | None:
    """For each product of a batch the offsets of A, B, C and D, and its first row and column; None for one product."""
    if end.count == 1:
        return None
    D, C = end.offsets()
    columns = A.offsets(end.lead), B.offsets(end.lead), C, D
    return np.stack([*columns, A.index(end.lead) * A.shape[-2], B.index(end.lead) * B.shape[-1]], axis=1)


@dataclass(frozen=True)
class Chain:
    """A chain of instructions over gathered words, as arrays on the GPU."""

    length: int  # positions of k
    count: int  # instructions
    source: Buffer  # the k at a position; -1: a zero
    words: tuple[Buffer, Buffer]  # indices of A's word and of B's at a position
    cuts: Buffer | None  # of each instruction, 1: the accumulator is added to a total and restarts; None: nowhere
    shifts: Buffer  # of each instruction: exponent of the power of two with which the accumulator is added


def lay_out(
    chains: list[list[Run]], products: Sequence[Product], k: int, promoted: bool, exponents: Sequence[int]
) -> Chain:
    """The runs of some chains one after another, each padded with zeros to whole instructions.

    A run's term is an index of `products` and of `exponents`, the powers of two with which chains are added.
    """
    runs = [run for chain in chains for run in chain]
    counts = [-(-(run.stop - run.start) // k) for run in runs]
    source = np.full(k * sum(counts), -1, np.int32)
    for run, first in zip(runs, np.cumsum([0, *counts]) * k, strict=False):
        source[first : first + run.stop - run.start] = np.arange(run.start, run.stop)
    words = np.repeat(np.array([products[run.term] for run in runs], np.uint8), np.array(counts) * k, axis=0)
    shifts = np.repeat(np.array([exponents[run.term] for run in runs], np.int32), counts)
    cuts = np.zeros(len(shifts), np.uint8)
    cuts[np.cumsum([sum(-(-(run.stop - run.start) // k) for run in chain) for chain in chains]) - 1] = 1
    a, b = (Buffer.of(words[:, side]) for side in (0, 1))
    marks = Buffer.of(cuts) if promoted else None
    return Chain(len(source), len(shifts), Buffer.of(source), (a, b), marks, Buffer.of(shifts))


class GeneralKernel(Kernel):
    """Chains of one instruction on words in memory."""

    def __init__(self, scheme: SplitScheme, spec: MmaSpec, row: MmaSpec, order: KOrder | None) -> None:
        self.scheme, self.spec, self.order = scheme, spec, order
        self.name = f"{row.instruction} of any order"
        self.row, self.lowering = row, scheme.lowering(row, order)
        self.splitter = Splitter(scheme.rules(), scheme.scaling, words=False)

    def source(self) -> str:
        """The kernels' text."""
        return text.general_source(self.lowering, self.row)

    def groups(self, K: int) -> list[list[Chain]]:
        """For each accumulator its slices, in the order in which they are added."""
        lowering, order = self.lowering, self.order or KOrder()
        if lowering.block is not None:  # every run is a separate chain, added with its power of two
            owners = [lowering.products]
            scales = [[-lowering.exponent * (i + j) for i, j in lowering.products]]
        else:
            owners = [acc.products for acc in lowering.accumulators]
            scales = [[0] * len(products) for products in owners]
        promoted = [lowering.block is not None or acc.interval is not None for acc in lowering.accumulators]
        return [
            [lay_out(chains, products, self.row.k, cut, scale) for chains in order.sequence(slices)]
            for slices, products, cut, scale in zip(lowering.runs(K), owners, promoted, scales, strict=False)
        ]

    def multiply(self, a: Prepared, b: Prepared, end: Output, memory: Memory) -> list[Step]:
        if 0 in end.D.shape:
            return []
        work, whole, table = _Work(self, a, b, memory), problem(self, a, b, end), batches(a.source, b.source, end)
        for at in [[0] * 6] if table is None else table.tolist():
            offsets = {name: size * at[column] for name, (size, column) in _OFFSETS.items() if whole[name]}
            one = whole.changed(**{name: whole[name] + offset for name, offset in offsets.items()})
            for row in range(0, a.rows, work.side):
                for column in range(0, b.rows, work.side):
                    work.stripe(one, row, column)
        return work.steps


@dataclass
class _Sum:
    """Partial sums in memory, which `KOrder.join_slices` adds."""

    block: Block
    work: _Work

    def __add__(self, other: _Sum) -> _Sum:
        count = self.block.nbytes // 4
        self.work.walk("add", count, self.block, other.block, count)
        self.work.spare.append(other.block)
        return self


class _Work:
    """The launches of one multiplication, and the blocks of memory that all of its stripes use."""

    def __init__(self, kernel: GeneralKernel, a: Prepared, b: Prepared, memory: Memory) -> None:
        self.steps: list[Step] = []
        self._module = module(kernel.source(), "split_gemm_any_order.cu")
        self._order, self._memory = kernel.order or KOrder(), memory
        self._tile, self._groups = instructions.instruction(kernel.row), kernel.groups(a.K)
        self._sums = np.dtype([("of", "<u8", (len(kernel.lowering.accumulators),))])  # the struct Sums
        size, longest = text.BYTES[str(kernel.row.a_format)], max(x.length for s in self._groups for x in s)
        self.side = max(64, min(_STRIPE, _BYTES // (longest * size) // 64 * 64))  # rows and columns at a time
        sides = self._extent(a.rows, 0, self._tile.m), self._extent(b.rows, 0, self._tile.n)
        self._words = [memory.block(side * longest * size) for side in sides]
        self._nbytes = 4 * sides[0] * sides[1]
        self.spare: list[Block] = []  # of sums

    def _extent(self, size: int, first: int, step: int) -> int:
        """The rows or columns of the stripe from `first` on, in whole instructions."""
        return -(-min(self.side, size - first) // step) * step

    def walk(self, name: str, count: int, *args: Any) -> None:
        """Add the launch of a kernel that walks over so many entries."""
        self.steps.append(self._module.step(name, min(-(-count // _THREADS), _MOST_BLOCKS), _THREADS, *args))

    def stripe(self, p: Struct, row: int, column: int) -> None:
        """Add the launches of some rows and columns of D."""
        size = self._extent(int(p["M"]), row, self._tile.m), self._extent(int(p["N"]), column, self._tile.n)
        sums: list[_Sum] = []
        for slices in self._groups:
            partial: Any = (self._sum(p, chain, (row, column), size) for chain in slices)
            sums.append(self._order.join_slices(partial))  # type: ignore[arg-type]
        blocks = [each.block for each in sums]
        sizes = [np.int32(x) for x in (row, column, *size)]
        self.walk("finish_all", size[0] * size[1], p, Struct(self._sums, {"of": blocks}), *sizes)
        self.spare += blocks

    def _sum(self, p: Struct, chain: Chain, first: tuple[int, int], size: tuple[int, int]) -> _Sum:
        """Add the launches of a chain, and return its result."""
        for side, (letter, along, rows) in enumerate((("a", "row", "M"), ("b", "column", "N"))):
            pointers = [p[name] for name in (letter.upper(), f"{letter}_{along}", f"{letter}_k", f"{letter}_exponents")]
            count = size[side] * chain.length
            extent = np.int32(first[side]), p[rows], np.int32(size[side]), count
            tables = chain.source, chain.words[side], self._words[side]
            self.walk(f"gather_{letter}", count, *pointers, *extent, *tables)
        total = self.spare.pop() if self.spare else self._memory.block(self._nbytes)
        total = Block(total.pointer, 4 * size[0] * size[1])
        blocks = size[0] // self._tile.m * (size[1] // self._tile.n)
        sizes = [np.int32(x) for x in (*size, chain.count)]
        operands = *self._words, total, *sizes, 0 if chain.cuts is None else chain.cuts, chain.shifts
        self.steps.append(self._module.step("chain", blocks, self._tile.threads, *operands))
        return _Sum(total, self)
