"""Comparison of two results of one product: the number, the positions, the size and the pattern of mismatches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu._system import in_ieee
from fpemu.arguments import as_array, real_factor, real_view
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.probing.callables import bits

_LOST = 2**62  # the distance between a NaN and a number, and the largest between two numbers
_TILES = (8, 16, 32, 64, 128, 256)


def as_real(result: Any, A: Any, B: Any, C: Any) -> tuple[Any, Any, Any, Any]:
    """The real product of the parts that a complex product is (`fpemu.schemes.complex_products`, form 4M)."""
    given = {"the result": result, "A": A, "B": B, **({} if C is None else {"C": C})}
    arrays = {name: as_array(X, name, complex_numbers=True) for name, X in given.items()}
    if min(arrays["A"].ndim, arrays["B"].ndim) < 2:
        raise InputError("A and B must be matrices, or stacks of matrices")
    dtype = np.result_type(np.complex64, *arrays.values())
    d, a, b, *c = (X.astype(dtype) for X in arrays.values())
    return real_view(d), real_view(a), real_factor(b), real_view(c[0]) if c else None


@dataclass(frozen=True)
class Difference:
    """Mismatches between a result and the expected one.

    Attributes
    ----------
    shape : (M, N)
        Shape of the result.
    entries, bits : int
        Mismatching entries, and mismatching bits in them.
    rows, columns : int
        Rows and columns with such an entry.
    first : (row, column)
        The first of them, row by row.
    got, expected : str
        The two values there, each with its code.
    largest : int or None
        Largest distance in ulps, at most 2^62; None where a number stands against a NaN.
    smaller : int
        Number of mismatching entries that are smaller in magnitude than expected.
    patterns : tuple of str
        Common properties of the mismatching entries, in words.
    """

    shape: tuple[int, int]
    entries: int
    bits: int
    rows: int
    columns: int
    first: tuple[int, int]
    got: str
    expected: str
    largest: int | None
    smaller: int
    patterns: tuple[str, ...]

    def __str__(self) -> str:
        M, N = self.shape
        size = "a number against a NaN" if self.largest is None else _count(self.largest, "ulp")
        size = "2^62 ulps or more" if self.largest == _LOST else size
        verb = "differs" if self.entries == 1 else "differ"
        return (
            f"{self.entries} of {M * N} entries {verb} ({_count(self.bits, 'bit')}) in {self.rows} of {M} rows and "
            f"{self.columns} of {N} columns; first at [{self.first[0]}, {self.first[1]}]: "
            f"{self.got}, expected {self.expected}; largest difference: {size}; {'; '.join(self.patterns)}"
        )


def distance(got: NDArray[Any], expected: NDArray[Any], fmt: str) -> NDArray[np.int64]:
    """Distance of each entry in ulps of a format, 0 only for equal bits.

    Two NaN with different codes and zeros of different signs are 1 apart; a NaN and a number 2^62, and so are two
    numbers of fp64 or int64 that are farther apart.
    """
    x, y = bits(got), bits(expected)
    narrow = formats.get(fmt)
    if got.dtype.kind == "i":
        a, b = got.astype(np.int64), expected.astype(np.int64)
    elif np.finfo(got.dtype).nmant > narrow.fraction_bits:
        a, b = _ranks(got, narrow), _ranks(expected, narrow)
    else:
        a, b = _ordered(x), _ordered(y)  # of float64, up to 2^64 apart: their halves do not overflow
    apart = np.abs(a // 2 - b // 2) >= _LOST // 2
    steps = np.where(apart, _LOST, np.abs(a - np.where(apart, a, b)))
    one, other = np.isnan(got), np.isnan(expected)
    steps = np.where(one | other, np.where(one & other, 0, _LOST), steps)
    return np.asarray(np.where((steps == 0) & (x != y), 1, steps), np.int64)


@in_ieee
def compare(got: Any, expected: Any, fmt: str) -> Difference | None:
    """Describe the mismatches of two matrices of one shape and dtype; None if all bits agree.

    Parameters
    ----------
    got, expected : array (M, N)
        Result and expected result, float16, float32, float64 or signed integers.
    fmt : str
        The format of the results, for ulps: it may be narrower than their dtype ("bf16" in float32).

    Returns
    -------
    Difference or None
        The mismatches; None if all bits agree.

    Raises
    ------
    InputError
        Not two matrices of one shape and dtype; an unknown format.
    """
    formats.get(fmt)
    got, expected = as_array(got, "got"), as_array(expected, "expected")
    if got.ndim != 2 or got.shape != expected.shape or got.dtype != expected.dtype or got.dtype.kind not in "fi":
        raise InputError(
            f"got is {got.dtype} of shape {got.shape} and expected is {expected.dtype} of shape {expected.shape}: "
            "compare two matrices of one shape and dtype, floating-point or signed integers"
        )
    return _compare(got, expected, fmt)


def _compare(got: NDArray[Any], expected: NDArray[Any], fmt: str) -> Difference | None:
    """`compare` for two matrices of one shape and dtype."""
    x, y = bits(got), bits(expected)
    wrong = x != y
    if not wrong.any():
        return None
    place = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    steps = distance(got, expected, fmt)[wrong]
    with np.errstate(invalid="ignore"):
        smaller = int(np.count_nonzero(np.abs(got[wrong]) < np.abs(expected[wrong])))
    one_nan = bool((np.isnan(got) != np.isnan(expected)).any())
    return Difference(
        (got.shape[0], got.shape[1]),
        int(wrong.sum()),
        int(np.bitwise_count(x ^ y).sum()),
        int(wrong.any(axis=1).sum()),
        int(wrong.any(axis=0).sum()),
        (int(place[0]), int(place[1])),
        _value(got[place], x[place]),
        _value(expected[place], y[place]),
        None if one_nan else int(steps.max()),
        smaller,
        tuple(_patterns(got, expected, wrong, steps)),
    )


def _ordered(code: NDArray[Any]) -> NDArray[np.int64]:
    """Codes as integers in the order of their values, both zeros at 0."""
    width = 8 * code.dtype.itemsize
    magnitude = (code & code.dtype.type((1 << (width - 1)) - 1)).astype(np.int64)
    return np.where(code >> code.dtype.type(width - 1), -magnitude, magnitude)


def _ranks(x: NDArray[Any], fmt: FloatFormat) -> NDArray[np.int64]:
    """The number of values of a narrow format between 0 and x, with the sign of x; Inf follows the largest number."""
    size = np.minimum(np.nan_to_num(np.abs(x.astype(np.float64)), nan=0.0), 2.0 ** (fmt.emax + 1))
    e = np.where(size == 0, fmt.emin, np.maximum(np.frexp(size)[1].astype(np.int64) - 1, fmt.emin))
    units = np.ldexp(size, fmt.fraction_bits - e).astype(np.int64) + ((e - fmt.emin) << fmt.fraction_bits)
    return np.where(np.signbit(x), -units, units)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


def _value(value: Any, code: Any) -> str:
    return f"{value!s} (0x{int(code):0{2 * code.dtype.itemsize}X})"


def _patterns(
    got: NDArray[Any], expected: NDArray[Any], wrong: NDArray[np.bool_], steps: NDArray[np.int64]
) -> list[str]:
    """Common properties of the mismatching entries, the most specific first."""
    patterns = []
    if got.dtype.kind == "f":
        x, y = got[wrong], expected[wrong]
        zero = "the expected value" if (y == 0).all() else "the result"
        for applies, text in (
            (np.isnan(x) & np.isnan(y), "only the codes of NaN differ"),
            ((x == 0) & (y == 0), "only the sign of zeros differs"),
            (steps == 1, "only the last bit differs (1 ulp)"),
            (~np.isfinite(x) | ~np.isfinite(y), "only where one of the two is Inf or NaN"),
            ((y == 0) if (y == 0).all() else (x == 0), f"only where {zero} is 0"),
        ):
            if applies.all():
                patterns.append(text)
                break
    if wrong.all():
        return [*patterns, "all entries"]
    if wrong.sum() == 1:
        return [*patterns, "this entry alone"]
    patterns += region(wrong) or _magnitude(expected, wrong)
    share = 100 * wrong.mean()
    shown = f"{share:.2g}" if share < 99 else "more than 99"
    return patterns or [f"{shown} % of the entries, spread over the matrix"]


def region(wrong: NDArray[np.bool_]) -> list[str]:
    """The rows, columns or tiles that hold all mismatches, if they are clearly fewer than all."""
    M, N = wrong.shape
    lines = []
    box = np.count_nonzero(wrong.any(axis=1)) * np.count_nonzero(wrong.any(axis=0))
    dense = box <= min(2 * wrong.sum() - 1, 0.25 * wrong.size)  # one tile: no coincidence
    for axis, name, length in ((1, "rows", M), (0, "columns", N)):
        at = np.flatnonzero(wrong.any(axis=axis))
        low, high = int(at[0]), int(at[-1])
        likely = 1 - (1 - wrong.mean()) ** wrong.shape[axis]  # probability of a mismatch in a line by chance
        few = length * likely - 5 * np.sqrt(length * likely * (1 - likely))
        if len(at) >= (0.9 * length if dense else min(few, 0.9 * length)):
            continue
        if high - low + 1 == len(at):
            edge = " (the last)" if high == length - 1 else " (the first)" if low == 0 else ""
            lines.append(f"{name} {low} to {high}{edge}" if high > low else f"{name[:-1]} {low}{edge}")
            continue
        period = min((2, 4, 8, 16, 32, 64, 128), key=lambda p: len(set(at % p)) / p if 2 * p <= length else 1)
        residues = sorted({int(x) for x in at % period})
        if len(residues) <= period // 2:
            lines.append(f"{name} that are {_some(residues, 4)} modulo {period}")
        else:
            lines.append(f"{len(at)} {name}: {_some(at.tolist(), 6)}")
    return ["only in " + " and ".join(lines)] if lines else _tiles(wrong)


def _some(numbers: list[int], most: int) -> str:
    return ", ".join(map(str, numbers[:most])) + " ..." * (len(numbers) > most)


def _tiles(wrong: NDArray[np.bool_]) -> list[str]:
    """Tiles without a mismatch beside tiles with some, if these are more than chance explains."""
    M, N = wrong.shape
    for tile in reversed(_TILES):
        if 2 * tile > max(M, N):
            continue
        rows, columns = np.arange(0, M, tile), np.arange(0, N, tile)
        count = np.add.reduceat(np.add.reduceat(wrong.astype(np.int64), rows, axis=0), columns, axis=1)
        clean = count == 0
        chance = clean.size * (1 - wrong.mean()) ** (tile * min(tile, M, N))
        if clean.any() and not clean.all() and chance < 0.01 * clean.sum():
            return [f"only in {int((~clean).sum())} of {clean.size} tiles of {tile} × {tile}"]
    return []


def _magnitude(expected: NDArray[Any], wrong: NDArray[np.bool_]) -> list[str]:
    """Whether only large, or only small, results mismatch."""
    with np.errstate(invalid="ignore"):
        size = np.abs(expected.astype(np.float64))
    bad, good = size[wrong & np.isfinite(size)], size[~wrong & np.isfinite(size)]
    if len(bad) < 4 or len(good) < 4:
        return []
    if bad.min() > np.quantile(good, 0.75):
        return [f"only large results, of magnitude {bad.min():.4g} or more"]
    if bad.max() < np.quantile(good, 0.25):
        return [f"only small results, of magnitude {bad.max():.4g} or less"]
    return []
