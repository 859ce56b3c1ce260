"""Operands of the error-free schemes on the GPU: persistent buffers, rows with K contiguous, slices, panels of D."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import frexp, isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.runtime import callers, compiler, device, modules
from fpemu.gpu.runtime.cublas import Stack
from fpemu.gpu.runtime.device import Buffer, multiprocessors, per_device
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.plan import queue
from fpemu.gpu.runtime.steps import Fill, Step, fields
from fpemu.schemes.errorfree.plan import SlicePlan

source = compiler.kernel_source
_TYPES = {"int": np.int32, "s64": np.int64, "double": np.float64}


class Workspace:
    """Named buffers that persist between calls, and the steps that fill them.

    queue: issues a launch, a fill or a product of cuBLAS; benchmarks time them, and tests run them without a GPU.
    """

    def __init__(self, queue: Callable[[Step], object] = queue) -> None:
        self.queue = queue
        self._buffers: dict[str, Buffer] = {}
        self._tables: dict[bytes, Buffer] = {}

    def get(self, name: str, nbytes: int) -> Buffer:
        """Return a buffer of at least some bytes, whose content is undefined; a larger one replaces a smaller one."""
        if self.nbytes(name) < max(nbytes, 16):
            if name in self._buffers:
                self._buffers.pop(name).free()  # before the new one is allocated
            self._buffers[name] = Buffer(max(nbytes, 16))
        return self._buffers[name]

    def nbytes(self, name: str) -> int:
        """Return the bytes of the buffer of this name, 0 if there is none."""
        return self._buffers[name].nbytes if name in self._buffers else 0

    def zeros(self, name: str, nbytes: int) -> Buffer:
        """Return a buffer filled with zeros."""
        buffer = self.get(name, nbytes)
        self.queue(Fill(buffer.pointer, 0, nbytes))
        return buffer

    def table(self, array: NDArray[Any]) -> Buffer:
        """Return a small constant array on the GPU, uploaded once."""
        key = array.dtype.str.encode() + array.tobytes()
        if key not in self._tables:
            if len(self._tables) > 256:
                self._tables.clear()
            self._tables[key] = Buffer.of(array)
        return self._tables[key]

    def launch(self, text: str, kernel: str, grid: Any, block: Any, *arguments: Any, shared: int = 0) -> None:
        """Queue a kernel of a CUDA source; the numbers get the types of its parameters."""
        types = _parameter_types(text, kernel)
        typed = (x if kind is None else kind(x) for kind, x in zip(types, arguments, strict=True))
        self.queue(modules.module(text, "errorfree.cu").step(kernel, grid, block, *typed, shared=shared))

    def free(self) -> None:
        """Free all buffers."""
        for buffer in (*self._buffers.values(), *self._tables.values()):
            buffer.free()
        self._buffers.clear()
        self._tables.clear()


@lru_cache(maxsize=512)
def _parameter_types(text: str, kernel: str) -> list[Callable[[Any], Any] | None]:
    """Return the types of a kernel's parameters; None for pointers and structures, which are packed as they are."""
    (declared,) = re.findall(rf"__global__ void __launch_bounds__\(\d+\)\s+{kernel}\(([^)]*)\)", text)
    return [_TYPES.get(parameter.split()[0]) for parameter in declared.split(",")]


@per_device()
def workspace() -> Workspace:
    """Return the workspace that calls on the current GPU share; `workspace().free()` frees its memory."""
    return Workspace()


def padded(n: int, to: int) -> int:
    """Return the least multiple that is not below n."""
    return -(-n // to) * to


def most_shared() -> int:
    """Return the bytes of dynamic shared memory that a thread block of these kernels can have on the current GPU."""
    return device.most_shared() - _STATIC


# --- operands

NOTHING = -(1 << 20)  # as in kernels/slices.cuh
_STATIC = 7 * 1024  # bytes of shared memory set aside for the reductions of a thread block
RULES = {"published": 0, "balanced": 1, "truncate": 2, "nearest": 3}
CARRIERS = {"int8": (0, 1), "fp16": (1, 2), "bf16": (2, 2), "tf32": (3, 4), "fp32": (3, 4), "fp64": (4, 8)}
"""Code in kernels/slices.cuh and bytes of each format that cuBLAS multiplies."""
_MOST_FILLED = 2176  # as in kernels/slices.cu; slices of one bit span all of fp64
_BLOCKS = 2  # thread blocks per multiprocessor of kernels that need scratch memory for each row
_MODERATE = 900  # binary exponents for which scaling by 2^±unit is exact in fp64
VIEW = fields("u8 at, i8 row column, i4 narrow complex")
END = fields(
    "View A B C D, f8 alpha beta alpha_imaginary beta_imaginary, u8 rows columns nan, i4 K has_c", View=VIEW
)  # as in exact_sums.cuh


@dataclass(frozen=True, eq=False)
class Rows:
    """A's rows, or B's columns, as rows of doubles with K contiguous."""

    name: str  # "A" or "B"
    source: Matrix  # of the caller (rows, K)
    pointer: int
    pitch: int  # elements between rows
    # int32 (rows,), written by `survey`
    high: Buffer  # ceil(log2 max|x|)
    low: Buffer  # least exponent of a last place
    special: Buffer  # whether there is a NaN or an Inf

    @classmethod
    def of(cls, work: Workspace, source: Matrix, name: str) -> Rows:
        """Return the rows of a matrix, before `survey`."""
        exponents = (work.get(f"{what} of {name}", 4 * source.shape[0]) for what in ("high", "low", "special"))
        return cls(name, source, *load(work, source, name), *exponents)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.source.shape[0]

    @property
    def K(self) -> int:  # noqa: N802 (a name of the field's)
        """Length of a row."""
        return self.source.shape[1]

    @property
    def arguments(self) -> tuple[int, int, int, int]:
        """Kernel arguments."""
        return self.pointer, self.pitch, self.rows, self.K


def transposed(X: Matrix) -> Matrix:
    """Return a view of a matrix with rows and columns exchanged."""
    return Matrix(X.pointer, X.dtype, X.shape[::-1], X.strides[::-1], X.owner)


def stack(X: Matrix, lead: tuple[int, ...]) -> list[Any]:
    """Return the matrices of a stack, broadcast to a batch of shape `lead`."""
    places = (X.pointer + X.dtype.itemsize * int(offset) for offset in X.offsets(lead))
    return [Matrix(place, X.dtype, X.shape[-2:], X.strides[-2:], X.owner) for place in places]


def load(work: Workspace, X: Matrix, name: str) -> tuple[int, int]:
    """Return address and pitch of a matrix as rows of contiguous doubles, copied only where necessary."""
    (rows, K), (row_step, step) = X.shape, X.strides
    if X.dtype == np.float64 and step == 1 and row_step >= K:
        return X.pointer, row_step
    copy = work.get(f"rows of {name}", 8 * rows * K)
    far = 1 << 40  # the stride of an axis of one entry means nothing; the kernel reads along the smaller one
    steps = (far if n == 1 else d for n, d in zip(X.shape, X.strides, strict=True))
    matrix = (X.pointer, X.dtype == np.float32, *steps, rows, K)
    work.launch(source("slices.cu"), "gather", -(-K // 32) * -(-rows // 32), (32, 8), *matrix, copy, K)
    return copy.pointer, K


class Span(NamedTuple):
    """Exponents of all rows."""

    width: int  # bits from the highest to the lowest of a row, at most
    top: int  # ceil(log2 max|x|) of all rows; 0 for zeros
    bottom: int  # least exponent of a last place; 0 for zeros
    nonfinite: bool  # a row has a NaN or an Inf
    norm: int  # the sum of squares of a row, as integers in units of its lowest place, is 2^norm at most

    @property
    def moderate(self) -> bool:
        """The exponents permit fp64 arithmetic in place of integers."""
        return self.top <= _MODERATE and self.bottom >= -_MODERATE and self.width <= _MODERATE


def survey(work: Workspace, *sides: Rows) -> list[Span]:
    """Return the exponents of all rows; waits for the GPU."""
    maxima = work.get("surveys", 20 * len(sides))
    work.queue(Fill(maxima.pointer, 0x80, 20 * len(sides)))  # far below zero
    for i, X in enumerate(sides):
        row = (*X.arguments, X.high, X.low, X.special, maxima.pointer + 20 * i)
        work.launch(source("slices.cu"), "survey", min(X.rows, 1 << 16), 256, *row)
    spans = []
    for width, top, bottom, nonfinite, norm in maxima.array((len(sides), 5), np.int32).tolist():
        zero = top <= NOTHING
        normal = max(top, bottom) <= _MODERATE // 2  # no square leaves the normal range
        norm = max(norm, 0) if normal else 2 * max(width, 0) + sides[0].K.bit_length()
        spans.append(Span(max(width, 0), 0 if zero else top, 0 if zero else -bottom, nonfinite > 0, norm))
    return spans


# --- one product


@dataclass(frozen=True, eq=False)
class ErrorFreeProduct:
    """One product D = alpha · A B + beta · C: its operands, and the parameters of its epilogue."""

    work: Workspace
    A: Rows
    B: Rows
    end: Any  # struct End of kernels/exact_sums.cuh

    @classmethod
    def of(
        cls,
        work: Workspace,
        A: Rows,
        B: Rows,
        D: Matrix,
        C: Matrix | None = None,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        nan: int = 0,
    ) -> ErrorFreeProduct:
        """Return the product; `nan` is the code of a NaN in the result."""
        end = np.zeros(1, END)
        for name, X in (("A", A.source), ("B", transposed(B.source)), ("C", C), ("D", D)):
            if X is not None:
                end[name] = (X.pointer, *X.strides, X.dtype == np.float32, 0)
        end["alpha"], end["beta"], end["K"], end["has_c"] = alpha, beta, A.K, C is not None
        end["rows"], end["columns"], end["nan"] = A.special.pointer, B.special.pointer, nan
        return cls(work, A, B, end)

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N, K."""
        return self.A.rows, self.B.rows, self.A.K

    @property
    def plain(self) -> bool:
        """Whether D is the rounded sum times a power of two."""
        alpha = float(self.end["alpha"][0])
        return isfinite(alpha) and frexp(alpha)[0] == 0.5 and not self.end["has_c"][0]

    def survey(self) -> tuple[Span, Span]:
        """Return the exponents of A and B; if all rows are finite, the epilogue does not check them again."""
        a, b = survey(self.work, self.A, self.B)
        for span, field in ((a, "rows"), (b, "columns")):
            if not span.nonfinite:
                self.end[field] = 0
        return a, b

    def grid(self, rows: int) -> tuple[int, int]:
        """Return the thread blocks of a kernel with 256 threads that computes some rows of D."""
        return -(-self.B.rows // 256), min(rows, 65535)


PANEL = 12 << 30
"""Limit of the bytes of products in memory at a time."""


class Products(NamedTuple):
    """Memory for some rows of several products, with pitch and stride in elements."""

    pointer: int
    item: int
    pitch: int
    stride: int

    def stack(self, i: int, step: int = 1) -> Stack:
        """Return the products i, i + step ..."""
        return Stack(self.pointer + self.item * i * self.stride, self.pitch, step * self.stride)


class Term(NamedTuple):
    """Products of slices added in one accumulator: (p, q), (p + 1, q - 1) ... `length` of them."""

    p: int
    q: int
    length: int = 1
    more: int = 0  # added to the exponent of the product


def panels(x: ErrorFreeProduct, count: int, item: int, *, more: int = 0) -> tuple[Products, list[tuple[int, int, int]]]:
    """Return the memory of `count` products for some rows of D at a time, and these: first, number, rows to multiply.

    The rows to multiply are a multiple of 16, which cuBLAS' int8 kernels need. `item` is the bytes of an element, and
    `more` the further bytes for each row.
    """
    M, N, _ = x.shape
    pitch, present, rows = padded(N, 32), x.work.nbytes("products"), padded(M, 16)
    row_bytes = count * pitch * item + more
    if rows * row_bytes > min(PANEL, present):  # the memory of an earlier product does not suffice
        most = min(PANEL, (callers.free_bytes() + present) // 2)
        number = -(-M // max(16, most // row_bytes // 16 * 16))
        rows = min(padded(-(-M // number), 16), rows)
    T = x.work.get("products", count * rows * pitch * item)
    parts = [(first, min(rows, M - first), min(rows, padded(M, 16) - first)) for first in range(0, M, rows)]
    return Products(T.pointer, item, pitch, rows * pitch), parts


# --- slices


@dataclass(frozen=True, eq=False)
class Slices:
    """The slices of some rows, side by side along K."""

    data: Buffer  # (all_rows, count, width); slice p is at index p, or count - 1 - p where `backwards`
    kind: str  # format of the entries
    all_rows: int  # zeros fill rows up to this number
    count: int
    width: int  # zeros fill columns up to this number
    exponents: Buffer  # int32 (count, all_rows), of a slice's unit
    tops: Buffer  # int32 (all_rows,), tau
    backwards: bool
    slices: int  # that are not all zero, at least one
    complete: bool  # whether they sum to the operand
    largest: int  # largest entry
    deepest: int  # largest magnitude of an exponent
    fill: tuple[float, ...]  # fraction of non-zero entries in every slice

    def stack(self, p: int, step: int = 0, *, row: int = 0, k: int = 0) -> Stack:
        """Return the slices p, p + step ... from a row and a k on."""
        index, sign = (self.count - 1 - p, -1) if self.backwards else (p, 1)
        pitch = self.count * self.width
        start = self.data.pointer + CARRIERS[self.kind][1] * (row * pitch + index * self.width + k)
        return Stack(start, pitch, sign * step * self.width)


def limit_code(plan: SlicePlan) -> int:
    """Return the argument of `key` in kernels/slices.cuh: entries reach 2^bits - 1 in a limited split, else 2^bits."""
    if not plan.limited:
        return 0
    return {"published": plan.bits, "truncate": 64}.get(plan.rule, plan.bits + 1)


def split(
    work: Workspace, X: Rows, span: Span, plan: SlicePlan, count: int, kind: str, *, backwards: bool = False
) -> Slices:
    """Compute the first `count` slices of every row; waits for the GPU."""
    name, all_rows, width, (carrier, size) = X.name, padded(X.rows, 16), padded(X.K, 128), CARRIERS[kind]
    data = work.get(f"digits of {name}", all_rows * count * width * size)
    exponents, tops = work.get(f"exponents of {name}", 4 * count * all_rows), work.get(f"tops of {name}", 4 * all_rows)
    flags = work.zeros(f"cut of {name}", 16 + 8 * _MOST_FILLED)
    rule = (plan.bits, RULES[plan.rule], limit_code(plan), plan.headroom)
    row = (X.pointer, X.pitch, X.rows, all_rows, X.K, *rule, count, carrier, backwards, width, data, exponents, tops)
    text, grid, residuals = source("slices.cu"), min(all_rows, 1 << 16), 10 * padded(X.K, 8)
    if span.moderate and 8 * width <= most_shared():
        work.launch(text, "cut_doubles", grid, 512, *row, flags, shared=8 * width)
    elif residuals <= most_shared():
        work.launch(text, "cut", grid, 512, *row, 0, flags, shared=residuals)
    else:
        blocks = _BLOCKS * multiprocessors()
        work.launch(text, "cut", blocks, 512, *row, work.get("residuals", residuals * blocks), flags)
    numbers = flags.array(4 + 2 * _MOST_FILLED, np.int32)
    used, incomplete, largest, deepest = numbers[:4].tolist()
    nonzero = numbers[4:].view(np.uint64)[: min(max(used, 1), _MOST_FILLED)].tolist()
    fill = tuple(n / (X.rows * X.K) for n in nonzero)
    counts = (max(used, 1), not incomplete, largest, deepest, fill)
    return Slices(data, kind, all_rows, count, width, exponents, tops, backwards, *counts)
