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

from fpemu import mma
from fpemu.formats import FloatFormat
from fpemu.mma import KOrder, MmaSpec, exactness
from fpemu.mma import device as devices
from fpemu.mma.device import Backend, Device
from fpemu.rounding import round_to
from fpemu.schemes.errorfree.report import Fault, Report
from fpemu.schemes.errorfree.split import Slices, times

Array = NDArray[Any]


def carrier(bound: int) -> Any:
    """The dtype in which BLAS multiplies integers exactly, for sums of |x||y| up to `bound`; else ValueError."""
    if bound <= 2**24:
        return np.float32
    if bound <= 2**53:
        return np.float64
    raise ValueError(f"sums up to 2^{bound.bit_length() - 1} and more are not exact in float64")


def integer_product(X: Array, Y: Array, bound: int, device: Device = "cpu") -> Array:
    """X @ Y of integers exactly, as float32 or float64; `bound` is at least the largest sum over k of |x_ik y_kj|."""
    dtype = carrier(bound)
    return devices.matmul(X.astype(dtype, copy=False), Y.astype(dtype, copy=False), device)


def device_of(backend: Backend, device: Device) -> Device:
    """The device of an instruction's model: the NumPy reference implementation runs on the CPU."""
    return "cpu" if backend == "numpy" else device


def backend_of(carrier: str) -> Backend:
    """The implementation of the instruction's model that a carrier names; the compiled one for "blas"."""
    return "numpy" if carrier == "numpy" else "compiled"


def instruction_product(
    X: Array,
    Y: Array,
    spec: MmaSpec,
    order: KOrder | None,
    backend: Backend,
    k_block: int | None = None,
    device: Device = "cpu",
) -> Array:
    """X @ Y as the instruction computes it, in blocks of `k_block` along K, added in float64 (int64)."""
    wide = np.int64 if spec.is_integer else np.float64
    total = np.zeros((X.shape[0], Y.shape[1]), wide)
    step = k_block or max(1, X.shape[1])
    for k in range(0, X.shape[1], step):
        part = mma.gemm(
            X[:, k : k + step],
            Y[k : k + step],
            spec=spec,
            order=order,
            backend=backend,
            device=device_of(backend, device),
        )
        total += part.astype(wide)
    return total


def stored(X: Array, fmt: FloatFormat | str) -> Array:
    """X rounded to nearest to words of `fmt`; integers wrap."""
    if isinstance(fmt, str):
        return X.astype(np.int64).astype(fmt)
    return np.asarray(round_to(X, fmt))


@dataclass(frozen=True, eq=False)
class SliceProducts:
    """The products of the slices of A (M, K) and B (K, N) on an instruction, with the conditions of their exactness."""

    a: Slices
    b: Slices
    spec: MmaSpec
    order: KOrder | None  # of every chain
    carrier: str  # "blas": by BLAS where it returns the instruction's integers, else by the instruction's model
    k_block: int | None = None  # length in k of a chain
    one_exponent: bool = False  # all slices of a row are stored with the exponent of its first slice
    device: Device = "cpu"

    @property
    def K(self) -> int:  # noqa: N802
        """Length of the sums."""
        return int(self.a.items[0].digits.shape[1])

    @property
    def bound(self) -> int:
        """Upper limit of the sums of |x||y| over all of K, from the largest digits."""
        return self.K * self.a.largest * self.b.largest

    @cached_property
    def sum_bound(self) -> int:
        """Upper limit of the sums of |x||y| over a chain on the instruction, from the largest digits."""
        longest = max(exactness.longest_chain(n, self.order) for n in lengths(self.K, self.k_block))
        return longest * self.a.largest * self.b.largest

    @cached_property
    def inexact(self) -> str:
        """Reason why a product, or the sum of its k-blocks, may be inexact on the instruction; "" if all are exact."""
        x, y = self.a.largest, self.b.largest
        limit, outer = exactness.sum_limit(self.spec), exactness.outer_limit(self.spec)
        longest = max(lengths(self.K, self.k_block)) * x * y
        if self.sum_bound > limit:
            return f"sums may reach {self.sum_bound}, and it is exact to {limit}"
        if longest > outer:
            return f"chains may add up to {longest}, and their sum is exact to {outer}"
        if self.bound > 2**53:
            return f"k-blocks may add up to {self.bound}, and their sum is exact to 2^53"
        if all(exactness.holds(self.spec, x, y, n, self.order) for n in lengths(self.K, self.k_block)):
            return ""
        return f"digits of {max(x, y)} do not fit {self.spec.a_format}"

    @cached_property
    def lost(self) -> bool:
        """Whether a non-zero digit is below the range of its word, or its products below the range of the sums."""
        if self.spec.is_integer:
            return False
        unit = sum(min(int(np.min(self._scale(x, p))) for p in range(len(x))) for x in (self.a, self.b))
        sides = ((self.a, self.spec.a_format), (self.b, self.spec.b_format))
        return not exactness.unit_fits(self.spec, unit) or any(
            self._lost(x, p, fmt) for x, fmt in sides for p in range(len(x))
        )

    def _lost(self, x: Slices, p: int, fmt: FloatFormat | str) -> bool:
        if isinstance(fmt, str) or (not self.one_exponent and -x.bits >= fmt.emin):
            return False  # the unit of a slice is a normal number
        exact = times(x.items[p].digits.astype(np.float64), self._scale(x, p))
        words = stored(exact, fmt).astype(np.float64)
        small = np.abs(exact) < fmt.min_normal
        if self.spec.arithmetic == "flushed":
            words = np.where(small, 0.0, words)
        return bool(((words != exact) & small).any())

    def _scale(self, x: Slices, p: int) -> Array:
        """Exponent that scales digits to words of at most 1 in magnitude."""
        if self.spec.is_integer:
            return np.zeros_like(x.top)
        return x.items[p].exponents - x.top if self.one_exponent else np.full_like(x.top, -x.bits)

    def __call__(self, p: int, q: int) -> Array:
        """Slice p of A times slice q of B, in units of their last places: integers as float32, float64 or int64."""
        X, Y = self.a.items[p].digits, self.b.items[q].digits
        if self.by_blas:
            return integer_product(X, Y, self.bound, self.device)
        s, t = self._scale(self.a, p), self._scale(self.b, q)
        x = stored(times(X.astype(np.float64), s), self.spec.a_format)
        y = stored(times(Y.astype(np.float64), t), self.spec.b_format)
        T = instruction_product(x, y, self.spec, self.order, self.backend, self.k_block, self.device)
        return T if self.spec.is_integer else times(T, -(s + t))

    @property
    def backend(self) -> Backend:
        """The implementation of the instruction's model."""
        return backend_of(self.carrier)

    @property
    def by_blas(self) -> bool:
        """Whether BLAS computes the products, because it returns the same integers as the instruction."""
        return self.carrier == "blas" and not self.inexact and not self.lost


def lengths(K: int, k_block: int | None) -> set[int]:
    """Lengths in k of the parts that the instruction sums: all of K, or its k-blocks, of which the last is shorter.

    The longest part does not always have the largest bound: with promotion, a first residue counts as a whole tile.
    """
    if k_block is None or k_block >= K:
        return {K}
    return {k_block} | ({K % k_block} if K % k_block else set())


class Tally:
    """The combined report of the blocks of a product."""

    def __init__(self, scheme: str, spec: MmaSpec, bits: int) -> None:
        self.scheme, self.spec, self.bits = scheme, spec, bits
        self.inexact, self.lost, self.complete, self.sum_bound = "", False, True, 0
        self._filled: tuple[list[int], list[int]] = ([], [])
        self._sizes = [0, 0]

    def add(self, block: SliceProducts) -> None:
        """Add the conditions of one block."""
        self.inexact, self.lost = self.inexact or block.inexact, self.lost or block.lost
        self.sum_bound = max(self.sum_bound, block.sum_bound)
        for side, x in enumerate((block.a, block.b)):
            self.complete = self.complete and x.complete
            self._sizes[side] += x.items[0].digits.size
            filled = self._filled[side]
            filled += [0] * (len(x) - len(filled))
            for p, item in enumerate(x.items):
                filled[p] += int(np.count_nonzero(item.digits))

    @property
    def slices(self) -> tuple[int, int]:
        """Largest numbers of slices of A and of B in a block."""
        return len(self._filled[0]), len(self._filled[1])

    def report(self, *faults: Fault, **more: Any) -> Report:
        """The report, with additional faults and fields of the scheme."""
        if self.inexact:
            why = f"are not exact on {self.spec.name}: {self.inexact}; take fewer bits a slice or a smaller k_block"
            faults += (Fault("inexact-product", f"{self.scheme}: products of slices of {self.bits} bits {why}"),)
        if self.lost:
            why = f"are lost to underflow on {self.spec.name}: take exponents='slice'"
            faults += (Fault("underflow", f"{self.scheme}: digits of late slices, or their products, {why}"),)
        left, right = (tuple(n / size for n in filled) for filled, size in zip(self._filled, self._sizes, strict=True))
        limit = exactness.sum_limit(self.spec)
        return Report(
            self.scheme,
            self.spec.name,
            self.bits,
            self.slices,
            exact=not self.inexact,
            sum_bound=self.sum_bound,
            sum_limit=limit,
            complete=self.complete,
            fill=(left, right),
            underflow=self.lost,
            faults=faults,
            **more,
        )
