"""Operands of the error-free schemes on the GPU: rows with K contiguous, what they span, and their digits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fpemu.gpu.errorfree.machine import Memory, Workspace, source

NOTHING = -(1 << 20)  # as in kernels/slices.cuh
SHARED = 220 * 1024  # bytes of shared memory of a block
RULES = {"published": 0, "balanced": 1, "truncate": 2, "nearest": 3}
CARRIERS = {"int8": (0, 1), "fp16": (1, 2), "bf16": (2, 2), "tf32": (3, 4), "fp32": (3, 4), "fp64": (4, 8)}
"""Number and bytes of a digit in each format that cuBLAS multiplies."""
_MOST_FILLED = 512
_BLOCKS = 264  # of kernels whose rows need memory of their own


class Operand(NamedTuple):
    """One matrix of the caller's as rows: A's rows, or B's columns.

    Parameters
    ----------
    pointer : int
    narrow : bool
        float, else double.
    rows, K : int
    row_step, step : int
        Elements from row to row, and along K.
    """

    pointer: int
    narrow: bool
    rows: int
    K: int
    row_step: int
    step: int

    @property
    def turned(self) -> Operand:
        """The matrix with K for its rows."""
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
    high, low, special : Memory
        int32 (rows,), filled by `survey`: ceil(log2 max|x|), the least exponent of a last place, and whether there is a
        NaN or an Inf.
    """

    loaded: Loaded
    operand: Operand
    name: str
    high: Memory
    low: Memory
    special: Memory

    @classmethod
    def of(cls, work: Workspace, X: Operand, name: str) -> Rows:
        """The rows of X, not surveyed yet."""
        exponents = (work.get(f"{what} of {name}", 4 * X.rows) for what in ("high", "low", "special"))
        return cls(load(work, X, name), X, name, *exponents)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As kernels take them."""
        return self.loaded.pointer, self.loaded.pitch, np.int32(self.loaded.rows), np.int32(self.loaded.K)


_RANGE = 900  # binary exponents that leave fp64 room for 2^±unit and back


class Span(NamedTuple):
    """What a survey found.

    Parameters
    ----------
    width : int
        Bits from the highest to the lowest of a row, at most.
    top, bottom : int
        ceil(log2 max|x|) of all rows and the least exponent of a last place; 0 for zeros.
    odd : bool
        Whether a row has a NaN or an Inf.
    norm : int
        The sum of squares of a row, as integers in units of its lowest place, is 2^norm at most.
    """

    width: int
    top: int
    bottom: int
    odd: bool
    norm: int

    @property
    def tame(self) -> bool:
        """Whether floating point can do what otherwise integers do."""
        return self.top <= _RANGE and self.bottom >= -_RANGE and self.width <= _RANGE


def load(work: Workspace, X: Operand, name: str) -> Loaded:
    """X as rows of doubles, K contiguous: itself if it is that, else a copy."""
    if not X.narrow and X.step == 1 and X.row_step >= X.K:
        return Loaded(X.pointer, X.row_step, X.rows, X.K)
    copy = work.get(f"rows of {name}", 8 * X.rows * X.K)
    far = 1 << 40  # the stride of an axis of one entry means nothing; the kernel reads along the smaller one
    row_step, step = (far if n == 1 else d for n, d in ((X.rows, X.row_step), (X.K, X.step)))
    work.machine.launch(
        source("slices.cu"),
        "gather",
        -(-X.K // 32) * -(-X.rows // 32),
        (32, 8),
        X.pointer,
        np.int32(X.narrow),
        row_step,
        step,
        np.int32(X.rows),
        np.int32(X.K),
        copy,
        X.K,
    )
    return Loaded(copy.pointer, X.K, X.rows, X.K)


def survey(work: Workspace, *sides: Rows) -> list[Span]:
    """The exponents of all rows; waits for the GPU."""
    found = work.get("surveys", 20 * len(sides))
    work.machine.fill(found, 0x80, 20 * len(sides))  # far below zero: all that is found are maxima
    for i, X in enumerate(sides):
        at = np.uint64(found.pointer + 20 * i)
        work.machine.launch(
            source("slices.cu"), "survey", min(X.loaded.rows, 1 << 16), 256, *X.arguments, X.high, X.low, X.special, at
        )
    spans = []
    for width, top, bottom, odd, norm in found.array((len(sides), 5), np.int32).tolist():
        zero = top <= NOTHING
        tame = max(top, bottom) <= _RANGE // 2  # no square leaves the normal range
        norm = max(norm, 0) if tame else 2 * max(width, 0) + sides[0].loaded.K.bit_length()
        spans.append(Span(max(width, 0), 0 if zero else top, 0 if zero else -bottom, odd > 0, norm))
    return spans


@dataclass(frozen=True, eq=False)
class Digits:
    """The slices of some rows, side by side along K.

    Parameters
    ----------
    data : Memory
        (all_rows, count, width) digits; slice p stands at place p, or count - 1 - p where `backwards`.
    kind : str
        Their format.
    all_rows, count, width : int
        Zeros fill rows up to `all_rows` and columns up to `width`.
    exponents, tops : Memory
        int32 (count, all_rows) and (all_rows,): exponent of the unit digit, and tau.
    slices : int
        How many are not all zero, at least one.
    complete : bool
    largest, deepest : int
        Largest digit, and largest magnitude of an exponent.
    fill : tuple of float
        Fraction of non-zero digits in every slice.
    backwards : bool
    """

    data: Memory
    kind: str
    all_rows: int
    count: int
    width: int
    exponents: Memory
    tops: Memory
    slices: int
    complete: bool
    largest: int
    deepest: int
    fill: tuple[float, ...]
    backwards: bool

    def place(self, p: int) -> int:
        """Address of slice p of the first row."""
        return self.data.pointer + self.width * CARRIERS[self.kind][1] * (self.count - 1 - p if self.backwards else p)

    @property
    def stride(self) -> int:
        """Digits from row to row."""
        return self.count * self.width


class Splitting(NamedTuple):
    """How rows are cut: `bits` a slice by a rule; digits up to 2^bits - 1 where `limited`, else 2^bits."""

    bits: int
    rule: str
    limited: bool
    headroom: int = 0

    @property
    def room(self) -> int:
        """As `key` in kernels/slices.cuh wants it."""
        if not self.limited:
            return 0
        return {"published": self.bits, "truncate": 64}.get(self.rule, self.bits + 1)


def cut(
    work: Workspace, X: Rows, span: Span, how: Splitting, count: int, kind: str, *, backwards: bool = False
) -> Digits:
    """The first `count` slices of every row; waits for the GPU."""
    K, rows, name = X.loaded.K, X.loaded.rows, X.name
    all_rows, width, (carrier, size) = padded(rows, 16), padded(K, 128), CARRIERS[kind]
    data = work.get(f"digits of {name}", all_rows * count * width * size)
    exponents, tops = work.get(f"exponents of {name}", 4 * count * all_rows), work.get(f"tops of {name}", 4 * all_rows)
    found = work.zeros(f"cut of {name}", 16 + 8 * _MOST_FILLED)
    given = (
        *X.arguments[:3],
        np.int32(all_rows),
        np.int32(K),
        np.int32(how.bits),
        np.int32(RULES[how.rule]),
        np.int32(how.room),
        np.int32(how.headroom),
        np.int32(count),
        np.int32(carrier),
        np.int32(backwards),
        width,
        data,
        exponents,
        tops,
    )
    own = 10 * padded(K, 8)
    if span.tame and 8 * width <= SHARED:
        grid = min(all_rows, 1 << 16)
        work.machine.launch(source("slices.cu"), "cut_doubles", grid, 512, *given, found, shared=8 * width)
    elif own <= SHARED:
        work.machine.launch(source("slices.cu"), "cut", min(all_rows, 1 << 16), 512, *given, 0, found, shared=own)
    else:
        scratch = work.get("residuals", own * _BLOCKS)
        work.machine.launch(source("slices.cu"), "cut", _BLOCKS, 512, *given, scratch, found)
    numbers = found.array(4 + 2 * _MOST_FILLED, np.int32)
    used, incomplete, largest, deepest = numbers[:4].tolist()
    filled = numbers[4:].view(np.uint64)[: min(max(used, 1), _MOST_FILLED)].tolist()
    return Digits(
        data,
        kind,
        all_rows,
        count,
        width,
        exponents,
        tops,
        max(used, 1),
        not incomplete,
        largest,
        deepest,
        tuple(n / (rows * K) for n in filled),
        backwards,
    )


def padded(n: int, to: int) -> int:
    """n, or the next multiple."""
    return -(-n // to) * to
