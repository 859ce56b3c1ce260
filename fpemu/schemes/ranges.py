"""Operands checked, scaled by an overflow policy and split; results unscaled, with the outputs of NaN and Inf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import choice, is_real, unwrapped
from fpemu.arrays import _float64, as_array
from fpemu.errors import InputError, entries, shown
from fpemu.formats import FP32, FloatFormat
from fpemu.mma.gemm import _chain
from fpemu.mma.spec import FMA_SPECS
from fpemu.schemes.words import Word, of_operand, steps

Array = NDArray[Any]
Mask = NDArray[np.bool_]
POLICIES = {
    "raise": "an error that counts the entries whose words overflow, and those that are NaN or infinite",
    "propagate": "the result of the hardware, with NaN and Inf of overflows; NaN and Inf in A and B as in SGEMM",
    "scale": "one power of two per matrix brings its largest entry to [2^13, 2^14); undone at the end",
    "scale-rows": "one power of two per row of A and per column of B; undone at the end",
}
TOP = 14  # scaling brings the largest entry below 2^TOP


class OverflowPolicy(StrEnum):
    """Treatment of entries that the words cannot hold; see `POLICIES`."""

    RAISE = "raise"
    PROPAGATE = "propagate"
    SCALE = "scale"
    SCALE_ROWS = "scale-rows"

    @property
    def scales(self) -> bool:
        """Whether operands are multiplied by powers of two."""
        return self in (OverflowPolicy.SCALE, OverflowPolicy.SCALE_ROWS)


def policy(on_range: str) -> OverflowPolicy:
    """The overflow policy of a name."""
    return OverflowPolicy(choice("on_range", on_range, POLICIES))


# --- operands


def operand(X: Any, name: str, fmt: FloatFormat, *, read: bool = True) -> Array:
    """`X` as an array of `fmt` (fp32 or fp64) with the same values, at least two-dimensional.

    Raises
    ------
    InputError
        Not real numbers; fewer than two axes; entries that are not numbers of `fmt` (how many, and the first).
    """
    x = as_array(X, name)
    if x.ndim < 2:
        raise InputError(f"{name} must be a matrix (..., rows, columns), not of shape {x.shape}")
    if x.dtype == fmt.dtype:
        return x
    if not read:
        return np.zeros(x.shape, fmt.dtype)
    wide = _float64(x, name)
    if fmt is not FP32:
        return wide
    with np.errstate(over="ignore", under="ignore"):
        narrow = wide.astype(np.float32)
    bad = (narrow != wide) & ~np.isnan(wide)
    if bad.any():
        raise InputError(f"{name}: not fp32 numbers: {entries(bad, wide)}; round it: {name}.astype(np.float32)")
    return narrow


def matrices(A: Any, B: Any, fmt: FloatFormat, *, read: bool = True) -> tuple[Array, Array]:
    """A (..., M, K) and B (..., K, N) as arrays of `fmt` whose shapes fit each other."""
    a, b = operand(A, "A", fmt, read=read), operand(B, "B", fmt, read=read)
    if a.shape[-1] != b.shape[-2]:
        raise InputError(
            f"A of shape {a.shape} and B of shape {b.shape}: A has {a.shape[-1]} columns and B {b.shape[-2]} rows"
        )
    try:
        np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise InputError(f"A of shape {a.shape} and B of shape {b.shape}: their batch axes do not broadcast") from None
    return a, b


def addend(C: Any, shape: tuple[int, ...], beta: Any, fmt: FloatFormat) -> Array | None:
    """C as an array of `fmt` that broadcasts against the product of shape `shape`; None where beta = 0."""
    if C is None:
        if beta != 0:
            raise InputError(f"beta = {float(beta)} needs C, a matrix of shape {shape}")
        return None
    c = operand(C, "C", fmt, read=bool(beta != 0))
    fits = c.shape[-2:] == shape[-2:]
    try:
        np.broadcast_shapes(c.shape[:-2], shape[:-2])
    except ValueError:
        fits = False
    if not fits:
        raise InputError(f"C of shape {c.shape} does not fit the product of shape {shape}")
    return c if beta != 0 else None


def scalar(value: Any, name: str, fmt: FloatFormat) -> Any:
    """alpha or beta rounded to `fmt`; one that is finite and beyond it is refused."""
    if type(value) is not float:
        value = unwrapped(value)
        if not is_real(value):
            raise InputError(f"{name} must be one real number, not {shown(value)}")
        value = value.item() if isinstance(value, np.generic) else value
        if value == value and not ((abs(value) < 2**1024 and float(value) == value) or abs(value) == np.inf):
            raise InputError(f"{name} = {shown(value)} is no number that float64 holds")
    wide = float(value)
    with np.errstate(over="ignore", under="ignore"):
        number = fmt.dtype.type(wide)
    if np.isinf(number) and not np.isinf(wide):
        raise InputError(f"{name} = {wide!r} is beyond the largest {fmt} number, {fmt.max}")
    return number


# --- ranges


@dataclass(frozen=True)
class Prepared:
    """A split operand: its finite values times 2^exponents, their words, and the rows (columns) with NaN or Inf."""

    values: Array
    words: tuple[Array, ...]
    exponents: NDArray[np.int32]
    special: NDArray[np.bool_] | None


def prepare(X: Array, name: str, rules: Sequence[Word], on_range: str, scaling: str, scheme: str) -> Prepared:
    """Scale an operand by its policy, split it, and check that its words hold it.

    Parameters
    ----------
    X : array (..., M, K) or (..., K, N) of fp32
    name : {"A", "B"}
    on_range : str
        Overflow policy.
    scaling : str
        "scale" or "scale-rows"; anything else scales nothing.
    """
    finite = np.isfinite(X)
    special = None
    if not finite.all():
        if on_range == OverflowPolicy.RAISE:
            raise InputError(
                f"{name}: NaN or infinite: {entries(~finite, X)}; on_range='propagate' returns the NaN and Inf of SGEMM"
            )
        special = np.asarray(~finite.all(axis=-1 if name == "A" else -2))
        X = np.where(finite, X, np.float32(0))
    values, exponents = X.astype(np.float64), np.zeros((1, 1), np.int32)
    if scaling in (OverflowPolicy.SCALE, OverflowPolicy.SCALE_ROWS):
        axes = (-2, -1) if scaling == OverflowPolicy.SCALE else ((-1,) if name == "A" else (-2,))
        exponents = _exponents(values, axes, rules[0].format)
        values = np.ldexp(values, exponents)
    words: list[Array] = []
    for word, scaled, value, _ in steps(values, of_operand(rules, name)):
        if on_range != OverflowPolicy.PROPAGATE:
            over = word.overflows(scaled)
            if over.any():
                raise InputError(_overflow(name, word, over, X, on_range, scheme, first=not words))
        words.append(value)
    return Prepared(values, tuple(words), exponents, special)


def _exponents(x: Array, axes: tuple[int, ...], fmt: FloatFormat) -> NDArray[np.int32]:
    """Powers of two that bring the largest magnitude along `axes` to [2^13, 2^14), or as near as `fmt` allows."""
    largest = np.max(np.abs(x), axis=axes, keepdims=True, initial=0.0)
    _, e = np.frexp(largest)
    return np.where(largest == 0, 0, min(TOP, fmt.emax - 1) - e).astype(np.int32)


def _overflow(name: str, word: Word, over: Array, X: Array, on_range: str, scheme: str, *, first: bool) -> str:
    part = f"the {word.format} part {word.name}" + (f" (times 2^{word.exponent})" if word.exponent else "")
    cures = [] if first else ["a smaller residual scale keeps it in range"]
    cures += ["on_range='scale' scales the matrices by powers of two"] if on_range == "raise" else []
    cures += ["on_range='propagate' returns the result of the hardware"]
    return f"{name}: {part} of {scheme} overflows: {entries(over, X)}; {', '.join(cures)}"


def undo(T: Array, a: Prepared, b: Prepared) -> Array:
    """T without the operands' powers of two: exact in float64, then one rounding (only a subnormal result rounds)."""
    if not (a.exponents.any() or b.exponents.any()):
        return T
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.asarray(np.ldexp(T.astype(np.float64), -(a.exponents + b.exponents)).astype(np.float32))


def patch(T: Array, A: Array, B: Array, rows: Mask | None, columns: Mask | None) -> Array:
    """Give the outputs that a NaN or an Inf reaches what SGEMM and DGEMM give there.

    Every output of such a row of A or column of B is NaN or infinite, and which of these depends on the signs alone:
    so a chain of FMAs over signs decides it, and finite entries cannot overflow on the way.
    """
    if rows is None and columns is None:
        return T
    T = np.array(T)
    batch = T.shape[:-2]
    signs_a, signs_b = (np.broadcast_to(_signs(X), batch + X.shape[-2:]) for X in (A, B))
    rows = np.broadcast_to(False if rows is None else rows, batch + T.shape[-2:-1])
    columns = np.broadcast_to(False if columns is None else columns, batch + T.shape[-1:])
    for at in np.ndindex(*batch):
        for where, x, y in (
            ((rows[at], slice(None)), signs_a[at][rows[at]], signs_b[at]),
            ((slice(None), columns[at]), signs_a[at], signs_b[at][:, columns[at]]),
        ):
            if x.size and y.size:
                T[at][where] = _chain([(x, y)], None, FMA_SPECS["fp32"])
    return T


def _signs(X: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(X), np.sign(X), X).astype(np.float32)
