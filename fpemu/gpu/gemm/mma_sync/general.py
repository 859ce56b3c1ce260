"""Any order over K for every scheme that multiplies words: chains of one instruction on words gathered in memory.

`GeneralKernel` lays out the runs of a lowering, padded to whole instructions, as one chain per accumulator and slice;
``kernels/split_gemm_any_order.cu`` adds slices and accumulators in the emulator's order. `describe` and `batches` state
operands, scalars and batches to all kernels of mma.sync.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.gemm.base import Kernel, Operand, Prepared, record
from fpemu.gpu.gemm.mma_sync import source as text
from fpemu.gpu.gemm.splitting import Splitter
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime import device, modules
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.order import Run
from fpemu.schemes.split_scheme import SplitScheme
from fpemu.schemes.words import Product

PROBLEM = np.dtype(
    [
        *((name, "<u8") for name in ("A", "B", "C", "D")),
        *((name, "<i8") for name in ("a_row", "a_k", "b_column", "b_k", "c_row", "c_column", "d_row")),
        *((name, "<u8") for name in ("a_exponents", "b_exponents", "a_special", "b_special", "batches")),
        *((name, "<i4") for name in ("M", "N", "K")),
        ("alpha", "<f4"),
        ("beta", "<f4"),
        ("nan", "<u4"),
    ]
)
"""The struct Problem of ``kernels/split_epilogue.cuh``"""
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


def describe(
    kernel: Kernel, a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None
) -> NDArray[Any]:
    """The struct Problem, without its batches."""
    A, B = a.source, b.source
    values: dict[str, Any] = {
        "A": A,
        "B": B,
        "D": D,
        "C": C,
        "a_row": A.strides[-2],
        "a_k": A.strides[-1],
        "b_column": B.strides[-1],
        "b_k": B.strides[-2],
        "c_row": 0 if C is None else C.strides[-2],
        "c_column": 0 if C is None else C.strides[-1],
        "d_row": D.strides[-2],
        "M": A.shape[-2],
        "N": B.shape[-1],
        "K": A.shape[-1],
        "alpha": alpha,
        "beta": beta,
        "nan": kernel.scheme.nan_code(kernel.spec),
    }
    for name, x in (("a", a), ("b", b)):
        values |= {f"{name}_exponents": x.exponents, f"{name}_special": x.special}
    return record(PROBLEM, values)


def batches(A: Matrix, B: Matrix, C: Matrix | None, D: Matrix) -> NDArray[np.int64] | None:
    """For each product of a batch the offsets of A, B, C and D, and its first row and column; None for one product."""
    lead = D.shape[:-2]
    if prod(lead) == 1:
        return None
    columns = [np.zeros(prod(lead), np.int64) if X is None else X.offsets(lead) for X in (A, B, C, D)]
    columns += [A.index(lead) * A.shape[-2], B.index(lead) * B.shape[-1]]
    return np.stack(columns, axis=1)


def moved(problem: NDArray[Any], at: NDArray[np.int64]) -> NDArray[Any]:
    """The struct Problem of one product of a batch, by its row of `batches`."""
    result = problem.copy()
    for name, size, where in (
        ("A", 4, 0),
        ("B", 4, 1),
        ("C", 4, 2),
        ("D", 4, 3),
        ("a_exponents", 4, 4),
        ("b_exponents", 4, 5),
        ("a_special", 1, 4),
        ("b_special", 1, 5),
    ):
        if result[name][0]:
            result[name] = int(result[name][0]) + size * int(at[where])
    return result


@dataclass(frozen=True)
class Chain:
    """A chain of instructions over gathered words: for every position of k, then for every instruction."""

    source: NDArray[np.int32]  # the k at a position; -1: a zero
    word_a: NDArray[np.uint8]  # index of A's word
    word_b: NDArray[np.uint8]
    cuts: NDArray[np.uint8] | None  # 1: the accumulator is added to a total and restarts; None: nowhere
    shifts: NDArray[np.int32]  # binary exponents of the powers of two with which it is added


def lay_out(
    chains: list[list[Run]], products: Sequence[Product], k: int, promoted: bool, exponents: Sequence[int]
) -> Chain:
    """The runs of some chains one after another, each padded with zeros to whole instructions.

    A run's term is an index of `products` and of `exponents`, the powers of two with which chains are added.
    """
    source: list[NDArray[np.int32]] = []
    words: list[tuple[int, int, int]] = []
    cuts: list[int] = []
    scales: list[int] = []
    for chain in chains:
        for run in chain:
            count = -(-(run.stop - run.start) // k)
            ks = np.full(count * k, -1, np.int32)
            ks[: run.stop - run.start] = np.arange(run.start, run.stop)
            source.append(ks)
            words.append((*products[run.term], count * k))
            cuts += [0] * count
            scales += [exponents[run.term]] * count
        cuts[-1] = 1
    word_a, word_b = (np.concatenate([np.full(n, w[side], np.uint8) for *w, n in words]) for side in (0, 1))
    marks = np.array(cuts, np.uint8) if promoted else None
    return Chain(np.concatenate(source), word_a, word_b, marks, np.array(scales, np.int32))


class GeneralKernel(Kernel):
    """Chains of one instruction on words in memory."""

    def __init__(self, scheme: SplitScheme, spec: MmaSpec, row: MmaSpec, order: KOrder | None) -> None:
        self.scheme, self.spec, self.order = scheme, spec, order
        self.name = f"{row.instruction} of any order"
        self.row, self.lowering = row, scheme.lowering(row, order)
        self._splitter = Splitter(scheme.rules(), scheme.scaling, words=False)

    def prepare_operands(self, operands: Sequence[Operand], on_range: str) -> list[Prepared]:
        return self._splitter.prepare(operands, on_range)

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

    def multiply(self, a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None) -> None:
        if 0 in D.shape:
            return
        problem = describe(self, a, b, D, alpha, beta, C)
        table = batches(a.source, b.source, C, D)
        work = _Work(_module(self.source()), self.row, self.groups(a.source.shape[-1]), self.order or KOrder())
        for at in range(prod(D.shape[:-2])):
            one = problem if table is None else moved(problem, table[at])
            for row in range(0, D.shape[-2], work.side):
                for column in range(0, D.shape[-1], work.side):
                    work.stripe(one, row, column)


@dataclass
class _Sum:
    """Numbers in memory that `KOrder.join_slices` adds."""

    buffer: device.Buffer
    work: _Work

    def __add__(self, other: _Sum) -> _Sum:
        count = self.buffer.nbytes // 4
        self.work.walk("add", count, self.buffer, other.buffer, np.int64(count))
        self.work.spare.append(other.buffer)
        return self


class _Work:
    """The buffers and launches of one multiplication."""

    def __init__(self, module: modules.Module, row: MmaSpec, groups: list[list[Chain]], order: KOrder) -> None:
        self._module, self._row, self._order = module, row, order
        self._tile, self._size = instructions.instruction(row), text.BYTES[str(row.a_format)]
        self._groups = [[(chain, _tables(chain)) for chain in slices] for slices in groups]
        self.spare: list[device.Buffer] = []  # of sums, all of one size
        longest = max(len(chain.source) for slices in groups for chain in slices)
        self.side = max(64, min(_STRIPE, _BYTES // (longest * self._size) // 64 * 64))  # rows and columns at a time

    def walk(self, name: str, count: int, *args: Any) -> None:
        """Queue a kernel that walks over so many entries."""
        self._module.launch(name, min(-(-count // _THREADS), _MOST_BLOCKS), _THREADS, *args, wait=False)

    def stripe(self, p: NDArray[Any], row: int, column: int) -> None:
        """Some rows and columns of D."""
        height = -(-min(self.side, int(p["M"][0]) - row) // self._tile.m) * self._tile.m
        width = -(-min(self.side, int(p["N"][0]) - column) // self._tile.n) * self._tile.n
        self.spare = [b for b in self.spare if b.nbytes == 4 * height * width]
        sums: list[_Sum] = []
        for slices in self._groups:
            partial: Any = (self._sum(p, *slice_, row, column, height, width) for slice_ in slices)
            sums.append(self._order.join_slices(partial))  # type: ignore[arg-type]
        pointers = device.Buffer.of(np.array([s.buffer.pointer for s in sums], np.uint64))
        sizes = [np.int32(x) for x in (row, column, height, width)]
        self.walk("finish_all", height * width, p, pointers, *sizes)
        device.synchronize(0)
        self.spare += [s.buffer for s in sums]

    def _sum(
        self, p: NDArray[Any], chain: Chain, tables: _Tables, row: int, column: int, height: int, width: int
    ) -> _Sum:
        """A chain's result."""
        a = self._gather(p, "a", "row", tables.source, tables.word_a, row, height, len(chain.source))
        b = self._gather(p, "b", "column", tables.source, tables.word_b, column, width, len(chain.source))
        total = self.spare.pop() if self.spare else device.Buffer(4 * height * width)
        sizes = [np.int32(x) for x in (height, width, len(chain.shifts))]
        cuts = np.uint64(0) if tables.cuts is None else tables.cuts
        blocks = height // self._tile.m * (width // self._tile.n)
        self._module.launch("chain", blocks, self._tile.threads, a, b, total, *sizes, cuts, tables.shifts, wait=False)
        device.synchronize(0)  # a and b go
        return _Sum(total, self)

    def _gather(
        self,
        p: NDArray[Any],
        letter: str,
        side: str,
        source: device.Buffer,
        word: device.Buffer,
        first: int,
        height: int,
        length: int,
    ) -> device.Buffer:
        """The words of an operand as a chain takes them."""
        out = device.Buffer(height * length * self._size)
        pointers = [p[name][0] for name in (letter.upper(), f"{letter}_{side}", f"{letter}_k", f"{letter}_exponents")]
        sizes = [np.int32(first), p["M" if letter == "a" else "N"][0], np.int32(height), np.int64(height * length)]
        self.walk(f"gather_{letter}", height * length, *pointers, *sizes, source, word, out)
        return out


@dataclass(frozen=True)
class _Tables:
    """A chain on the GPU."""

    source: device.Buffer
    word_a: device.Buffer
    word_b: device.Buffer
    cuts: device.Buffer | None
    shifts: device.Buffer


def _tables(chain: Chain) -> _Tables:
    of = device.Buffer.of
    cuts = None if chain.cuts is None else of(chain.cuts)
    return _Tables(of(chain.source), of(chain.word_a), of(chain.word_b), cuts, of(chain.shifts))


@lru_cache(maxsize=64)
def _module(source: str) -> modules.Module:
    return modules.Module(source, name="split_gemm_any_order.cu")
