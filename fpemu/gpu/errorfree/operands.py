"""The GPU as the error-free schemes use it: persistent buffers, operands as rows with K contiguous, their slices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.runtime import callers, compiler, device, modules, plan
from fpemu.gpu.runtime.cublas import Stack
from fpemu.gpu.runtime.device import Buffer, OutOfMemoryError, multiprocessors, per_device
from fpemu.gpu.runtime.steps import Fill, Gemm
from fpemu.schemes.errorfree.plan import SlicePlan

source = lru_cache(maxsize=16)(compiler.kernel_source)


def int32(*values: int) -> tuple[np.int32, ...]:
    """Return kernel arguments of type int."""
    return tuple(np.int32(value) for value in values)


class Device:
    """The GPU with cuBLAS; the tests pass a CPU with the same methods."""

    memory, upload, room = Buffer, staticmethod(Buffer.of), staticmethod(callers.free_bytes)

    def gemm(self, kind: str, M: int, N: int, K: int, A: Stack, B: Stack, D: Stack, *, batch: int = 1) -> None:
        """Queue a product: `fpemu.gpu.runtime.cublas.Blas.gemm`."""
        plan.queue(Gemm(kind, M, N, K, A, B, D, batch))

    def fill(self, buffer: Buffer, byte: int, nbytes: int) -> None:
        """Queue a fill."""
        plan.queue(Fill(buffer.pointer, byte, nbytes))

    def launch(self, source: str, kernel: str, grid: Any, block: Any, *args: Any, shared: int = 0) -> None:
        """Queue a kernel of a source."""
        plan.queue(_module(source).step(kernel, grid, block, *args, shared=shared))


class Workspace:
    """Named buffers that persist between calls, and the kernels and constants of a GPU."""

    def __init__(self, machine: Device) -> None:
        self.machine = machine
        self._buffers: dict[str, Any] = {}
        self._tables: dict[bytes, Buffer] = {}

    def get(self, name: str, nbytes: int) -> Buffer:
        """Return a buffer of at least some bytes, whose content is undefined; a larger one replaces a smaller one."""
        buffer: Any = self._buffers.get(name)
        if buffer is None or buffer.nbytes < nbytes:
            if buffer is not None:
                self._buffers.pop(name).free()  # before the new one is allocated
            try:
                buffer = self.machine.memory(max(nbytes, 16))
            except OutOfMemoryError:
                held = sum(other.nbytes for other in self._buffers.values())
                raise OutOfMemoryError(
                    f"out of memory: {nbytes / 1e9:.2f} GB are needed for {name} beside {held / 1e9:.2f} GB of other "
                    f"work space, and {self.machine.room() / 1e9:.2f} GB are free: multiply fewer rows of A or columns "
                    "of B at a time",
                    nbytes,
                ) from None
            self._buffers[name] = buffer
        return buffer

    def held(self, name: str) -> int:
        """Return the bytes of the buffer of this name."""
        return int(self._buffers[name].nbytes) if name in self._buffers else 0

    def zeros(self, name: str, nbytes: int) -> Buffer:
        """Return a buffer filled with zeros."""
        buffer = self.get(name, nbytes)
        self.machine.fill(buffer, 0, nbytes)
        return buffer

    def table(self, array: NDArray[Any]) -> Buffer:
        """Return a small constant array on the GPU, uploaded once."""
        key = array.dtype.str.encode() + array.tobytes()
        if key not in self._tables:
            if len(self._tables) > 256:
                self._tables.clear()
            self._tables[key] = self.machine.upload(array)
        return self._tables[key]

    def launch(self, file: str, kernel: str, grid: Any, block: Any, *args: Any, shared: int = 0) -> None:
        """Queue a kernel of ``kernels/<file>``."""
        self.machine.launch(source(file), kernel, grid, block, *args, shared=shared)

    def free(self) -> None:
        """Free all buffers."""
        for buffer in (*self._buffers.values(), *self._tables.values()):
            buffer.free()
        self._buffers.clear()
        self._tables.clear()


@lru_cache(maxsize=64)
def _module(source: str) -> modules.Module:
    return modules.Module(source, name="errorfree.cu")


@per_device()
def workspace() -> Workspace:
    """Return the workspace that calls on the current GPU share; `workspace().free()` frees its memory."""
    return Workspace(Device())


# --- operands and their slices

NOTHING = -(1 << 20)  # as in kernels/slices.cuh
_STATIC = 7 * 1024  # bytes of shared memory set aside for the reductions of a thread block
RULES = {"published": 0, "balanced": 1, "truncate": 2, "nearest": 3}
CARRIERS = {"int8": (0, 1), "fp16": (1, 2), "bf16": (2, 2), "tf32": (3, 4), "fp32": (3, 4), "fp64": (4, 8)}
"""Code in kernels/slices.cuh and bytes of each format that cuBLAS multiplies."""
_MOST_FILLED = 2176  # as in kernels/slices.cu; slices of one bit span all of fp64
_BLOCKS = 2  # thread blocks per multiprocessor of kernels that need scratch memory for each row
_MODERATE = 900  # binary exponents for which scaling by 2^±unit is exact in fp64


class Operand(NamedTuple):
    """A matrix of the caller as rows: A's rows, or B's columns.

    Parameters
    ----------
    pointer : int
    narrow : bool
        fp32; else fp64.
    rows, K : int
    row_step, step : int
        Strides in elements between rows and along K.
    """

    pointer: int
    narrow: bool
    rows: int
    K: int
    row_step: int
    step: int

    @property
    def transposed(self) -> Operand:
        """The matrix with K as its rows."""
        return Operand(self.pointer, self.narrow, self.K, self.rows, self.step, self.row_step)


class Loaded(NamedTuple):
    """Rows of doubles with K contiguous."""

    pointer: int
    pitch: int
    rows: int
    K: int


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of doubles.

    Parameters
    ----------
    loaded : Loaded
    operand : Operand
    name : {"A", "B"}
    high, low, special : Buffer
        int32 (rows,), written by `survey`: ceil(log2 max|x|), the least exponent of a last place, and whether there is
        a NaN or an Inf.
    """

    loaded: Loaded
    operand: Operand
    name: str
    high: Buffer
    low: Buffer
    special: Buffer

    @classmethod
    def of(cls, work: Workspace, X: Operand, name: str) -> Rows:
        """Return the rows of X, before `survey`."""
        exponents = (work.get(f"{what} of {name}", 4 * X.rows) for what in ("high", "low", "special"))
        return cls(load(work, X, name), X, name, *exponents)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Kernel arguments."""
        return self.loaded.pointer, self.loaded.pitch, *int32(self.loaded.rows, self.loaded.K)


class Span(NamedTuple):
    """Exponents of all rows.

    Parameters
    ----------
    width : int
        Bits from the highest to the lowest of a row, at most.
    top, bottom : int
        ceil(log2 max|x|) of all rows and the least exponent of a last place; 0 for zeros.
    nonfinite : bool
        A row has a NaN or an Inf.
    norm : int
        The sum of squares of a row, as integers in units of its lowest place, is 2^norm at most.
    """

    width: int
    top: int
    bottom: int
    nonfinite: bool
    norm: int

    @property
    def moderate(self) -> bool:
        """The exponents permit fp64 arithmetic in place of integers."""
        return self.top <= _MODERATE and self.bottom >= -_MODERATE and self.width <= _MODERATE


def load(work: Workspace, X: Operand, name: str) -> Loaded:
    """Return X as rows of doubles with K contiguous, copied only where necessary."""
    if not X.narrow and X.step == 1 and X.row_step >= X.K:
        return Loaded(X.pointer, X.row_step, X.rows, X.K)
    copy = work.get(f"rows of {name}", 8 * X.rows * X.K)
    far = 1 << 40  # the stride of an axis of one entry means nothing; the kernel reads along the smaller one
    row_step, step = (far if n == 1 else d for n, d in ((X.rows, X.row_step), (X.K, X.step)))
    tiles = -(-X.K // 32) * -(-X.rows // 32)
    matrix = (X.pointer, *int32(X.narrow), row_step, step, *int32(X.rows, X.K))
    work.launch("slices.cu", "gather", tiles, (32, 8), *matrix, copy, X.K)
    return Loaded(copy.pointer, X.K, X.rows, X.K)


def survey(work: Workspace, *sides: Rows) -> list[Span]:
    """Return the exponents of all rows; waits for the GPU."""
    maxima = work.get("surveys", 20 * len(sides))
    work.machine.fill(maxima, 0x80, 20 * len(sides))  # far below zero
    for i, X in enumerate(sides):
        row = (*X.arguments, X.high, X.low, X.special, np.uint64(maxima.pointer + 20 * i))
        work.launch("slices.cu", "survey", min(X.loaded.rows, 1 << 16), 256, *row)
    spans = []
    for width, top, bottom, nonfinite, norm in maxima.array((len(sides), 5), np.int32).tolist():
        zero = top <= NOTHING
        normal = max(top, bottom) <= _MODERATE // 2  # no square leaves the normal range
        norm = max(norm, 0) if normal else 2 * max(width, 0) + sides[0].loaded.K.bit_length()
        spans.append(Span(max(width, 0), 0 if zero else top, 0 if zero else -bottom, nonfinite > 0, norm))
    return spans


@dataclass(frozen=True, eq=False)
class Slices:
    """The slices of some rows, side by side along K.

    Parameters
    ----------
    data : Buffer
        Entries (all_rows, count, width); slice p is at index p, or count - 1 - p where `backwards`.
    kind : str
        Their format.
    all_rows, count, width : int
        Zeros fill rows up to `all_rows` and columns up to `width`.
    exponents, tops : Buffer
        int32 (count, all_rows) and (all_rows,): exponent of a slice's unit, and tau.
    slices : int
        Number of slices that are not all zero, at least one.
    complete : bool
        The slices sum to the operand.
    largest, deepest : int
        Largest entry, and largest magnitude of an exponent.
    fill : tuple of float
        Fraction of non-zero entries in every slice.
    backwards : bool
    """

    data: Buffer
    kind: str
    all_rows: int
    count: int
    width: int
    exponents: Buffer
    tops: Buffer
    slices: int
    complete: bool
    largest: int
    deepest: int
    fill: tuple[float, ...]
    backwards: bool

    def place(self, p: int) -> int:
        """Return the address of slice p of the first row."""
        return self.data.pointer + self.width * CARRIERS[self.kind][1] * (self.count - 1 - p if self.backwards else p)

    @property
    def stride(self) -> int:
        """Entries between rows."""
        return self.count * self.width


def room(plan: SlicePlan) -> int:
    """Return the argument of `key` in kernels/slices.cuh: entries reach 2^bits - 1 in a limited split, else 2^bits."""
    if not plan.limited:
        return 0
    return {"published": plan.bits, "truncate": 64}.get(plan.rule, plan.bits + 1)


def split(
    work: Workspace, X: Rows, span: Span, how: SlicePlan, count: int, kind: str, *, backwards: bool = False
) -> Slices:
    """Compute the first `count` slices of every row; waits for the GPU."""
    K, rows, name = X.loaded.K, X.loaded.rows, X.name
    all_rows, width, (carrier, size) = padded(rows, 16), padded(K, 128), CARRIERS[kind]
    data = work.get(f"digits of {name}", all_rows * count * width * size)
    exponents, tops = work.get(f"exponents of {name}", 4 * count * all_rows), work.get(f"tops of {name}", 4 * all_rows)
    flags = work.zeros(f"cut of {name}", 16 + 8 * _MOST_FILLED)
    rule = int32(all_rows, K, how.bits, RULES[how.rule], room(how), how.headroom, count, carrier, backwards)
    row = (*X.arguments[:3], *rule, width, data, exponents, tops)
    grid, residuals = min(all_rows, 1 << 16), 10 * padded(K, 8)
    if span.moderate and 8 * width <= most_shared():
        work.launch("slices.cu", "cut_doubles", grid, 512, *row, flags, shared=8 * width)
    elif residuals <= most_shared():
        work.launch("slices.cu", "cut", grid, 512, *row, 0, flags, shared=residuals)
    else:
        blocks = _BLOCKS * multiprocessors()
        scratch = work.get("residuals", residuals * blocks)
        work.launch("slices.cu", "cut", blocks, 512, *row, scratch, flags)
    numbers = flags.array(4 + 2 * _MOST_FILLED, np.int32)
    used, incomplete, largest, deepest = numbers[:4].tolist()
    nonzero = numbers[4:].view(np.uint64)[: min(max(used, 1), _MOST_FILLED)].tolist()
    return Slices(
        data=data,
        kind=kind,
        all_rows=all_rows,
        count=count,
        width=width,
        exponents=exponents,
        tops=tops,
        slices=max(used, 1),
        complete=not incomplete,
        largest=largest,
        deepest=deepest,
        fill=tuple(n / (rows * K) for n in nonzero),
        backwards=backwards,
    )


def most_shared() -> int:
    """Return the bytes of dynamic shared memory that a thread block of these kernels can have on the current GPU."""
    return device.most_shared() - _STATIC


def padded(n: int, to: int) -> int:
    """Return the least multiple that is not below n."""
    return -(-n // to) * to
