"""Exact products of integer matrices: by BLAS where it makes no rounding error, or by the model of the instruction.

If the sum over k of |x_ik y_kj| is at most 2^24, every partial sum of a float32 product, in any order and with or
without fused multiply-adds, is an integer of at most 24 bits, so that no operation rounds; in float64 the limit is
2^53. A BLAS that multiplies and adds in IEEE arithmetic, or a GPU in its place (`fpemu.mma.device.matmul`), then
returns the exact integers, and so does an exact instruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FloatFormat
from fpemu.mma import KOrder, MmaSpec, exactness
from fpemu.mma import device as devices
from fpemu.mma.device import Backend, Device
from fpemu.mma.gemm import _chain
from fpemu.rounding import round_to
from fpemu.schemes.errorfree.plan import INT32, SlicePlan, SliceSummary, inexact
from fpemu.schemes.errorfree.split import Slices, times

Array = NDArray[Any]
Pairs = list[tuple[int, int]]


def carrier(bound: int) -> Any:
    """The dtype in which BLAS multiplies integers exactly, for sums of |x||y| up to `bound`; else ValueError."""
    if bound <= 2**24:
        return np.float32
    if bound <= 2**53:
        return np.float64
    raise ValueError(f"sums up to 2^{bound.bit_length() - 1} and more are not exact in float64")


def model_of(carrier: str, device: Device) -> dict[str, Any]:
    """The arguments of `_chain` for a carrier: the compiled model but for "numpy", which runs on the CPU."""
    backend: Backend = "numpy" if carrier == "numpy" else "compiled"
    return {"backend": backend, "device": "cpu" if backend == "numpy" else device}


def instruction_product(
    X: Array, Y: Array, spec: MmaSpec, order: KOrder | None, k_block: int | None, model: dict[str, Any]
) -> Array:
    """X @ Y as the instruction computes it, in blocks of `k_block` along K, added in float64 (int64)."""
    wide = np.int64 if spec.is_integer else np.float64
    total = np.zeros((*X.shape[:-1], Y.shape[-1]), wide)
    step = k_block or max(1, X.shape[-1])
    for k in range(0, X.shape[-1], step):
        total += _chain([(X[..., k : k + step], Y[..., k : k + step, :])], None, spec, order, **model).astype(wide)
    return total


def stored(X: Array, fmt: FloatFormat | str) -> Array:
    """X rounded to nearest to words of `fmt`; integers wrap."""
    if isinstance(fmt, str):
        return X.astype(np.int64).astype(fmt)
    return np.asarray(round_to(X, fmt))


@dataclass(frozen=True, eq=False)
class SliceProducts:
    """The products of the slices of A (..., M, K) and B (..., K, N) by a plan, with the conditions of their exactness.

    One carrier multiplies a stack of matrices: the model of the instruction if a product of any of them needs it.
    """

    plan: SlicePlan
    a: Slices
    b: Slices
    carrier: str  # "blas": by BLAS where it returns the instruction's integers, else by the instruction's model
    device: Device = "cpu"

    @cached_property
    def bound(self) -> int:
        """Upper limit of the sums of |x||y| over all of K, from the largest digits."""
        return self.plan.K * int(self.a.largest.max()) * int(self.b.largest.max())

    @cached_property
    def inexact(self) -> str:
        """Reason why a product may be inexact on the instruction; "" if all are exact."""
        return inexact(self.plan, int(self.a.largest.max()), int(self.b.largest.max()))

    @cached_property
    def lost(self) -> Array:
        """Whether a matrix has a digit below its word's range, or a product of digits below the range of the sums."""
        plan, spec, sides = self.plan, self.plan.spec, (self.a, self.b)
        formats = spec.a_format, spec.b_format
        if not plan.one_exponent and all(isinstance(fmt, str) or -plan.bits >= fmt.emin for fmt in formats):
            return np.asarray(plan.unit_lost)  # the unit of a slice is a normal number
        axes = (-2, -1)
        units = sum(np.min([np.min(self._scale(x, p), axes) for p in range(x.slices)], axis=0) for x in sides)
        lost = np.vectorize(lambda unit: not exactness.unit_fits(spec, int(unit)), otypes=[bool])(units)
        for x, fmt in zip(sides, formats, strict=True):
            for p in () if isinstance(fmt, str) else range(x.slices):
                lost = lost | self._lost(x, p, fmt)
        return np.asarray(lost)

    def _lost(self, x: Slices, p: int, fmt: FloatFormat) -> Array:
        exact = times(x.items[p].digits.astype(np.float64), self._scale(x, p))
        words = stored(exact, fmt).astype(np.float64)
        small = np.abs(exact) < fmt.min_normal
        if self.plan.spec.rules.flushes:
            words = np.where(small, 0.0, words)
        return np.asarray(((words != exact) & small).any(axis=(-2, -1)))

    def _scale(self, x: Slices, p: int) -> Array:
        """Exponent that scales digits to words of at most 1 in magnitude."""
        return x.items[p].exponents - x.top if self.plan.one_exponent else np.full_like(x.top, -x.bits)

    @cached_property
    def by_blas(self) -> bool:
        """Whether BLAS computes the products, because it returns the same integers as the instruction."""
        return self.carrier == "blas" and not self.inexact and not self.lost.any()

    @cached_property
    def _dtype(self) -> Any:
        return carrier(self.bound)  # once, not at every product

    def __call__(self, p: int, q: int) -> Array:
        """Slice p of A times slice q of B, in units of their last places: integers as float32, float64 or int64."""
        X, Y = self.a.items[p].digits, self.b.items[q].digits
        if self.by_blas:
            dtype = self._dtype
            return devices.matmul(X.astype(dtype, copy=False), Y.astype(dtype, copy=False), self.device)
        plan, spec, model = self.plan, self.plan.spec, model_of(self.carrier, self.device)
        if spec.is_integer:
            x, y = stored(X, spec.a_format), stored(Y, spec.b_format)
            return instruction_product(x, y, spec, plan.order, plan.k_block, model)
        s, t = self._scale(self.a, p), self._scale(self.b, q)
        x, y = (
            stored(times(X.astype(np.float64), s), spec.a_format),
            stored(times(Y.astype(np.float64), t), spec.b_format),
        )
        return times(instruction_product(x, y, spec, plan.order, plan.k_block, model), -(s + t))

    def sum(self, pairs: Pairs) -> Array:
        """The sum of int8 products of equal p + q in one int32 accumulator, which wraps where it overflows."""
        digits = [self.a.items[p].digits for p, _ in pairs], [self.b.items[q].digits for _, q in pairs]
        bound = len(pairs) * self.bound
        if self.by_blas and bound <= INT32:
            X, Y = np.concatenate(digits[0], axis=-1), np.concatenate(digits[1], axis=-2)
            dtype = carrier(bound)
            return devices.matmul(X.astype(dtype, copy=False), Y.astype(dtype, copy=False), self.device)
        terms = [(x.astype(np.int8), y.astype(np.int8)) for x, y in zip(*digits, strict=True)]
        return _chain(terms, None, self.plan.spec, self.plan.order, **model_of(self.carrier, self.device))


class Tally:
    """The slices of an operand, a stack of matrices, in the blocks of a product."""

    def __init__(self) -> None:
        self._complete, self._largest, self._size = np.array([True]), np.array([0]), 0
        self._filled: list[Any] = []

    def add(self, x: Slices) -> None:
        """Add one block."""
        self._complete, self._largest = self._complete & x.complete, np.maximum(self._largest, x.largest)
        self._size += x.items[0].digits[0].size
        self._filled += [0] * (len(x.items) - len(self._filled))
        for p, item in enumerate(x.items):
            self._filled[p] += np.count_nonzero(item.digits, axis=(1, 2))

    def total(self, most: Any) -> list[SliceSummary]:
        """The slices of all blocks, at most so many of each matrix; zeros follow the last slice of a complete one."""
        filled = np.array(self._filled).T
        numbers = np.arange(1, filled.shape[1] + 1) * ((filled > 0) | ~self._complete[:, None])
        counts = np.clip(numbers.max(axis=1), 1, most)
        columns = counts, self._complete, self._largest, filled / self._size
        every = zip(*(column.tolist() for column in columns), strict=True)
        return [SliceSummary(n, complete, largest, tuple(fill[:n])) for n, complete, largest, fill in every]
