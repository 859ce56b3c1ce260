"""Block formats: elements of few bits that share one scale per block, as in OCP MX and NVFP4.

A block of consecutive numbers x along one axis is stored as x ≈ scale · value. The quantised values and scales are
those which `fpemu.mma.execute` and matrix units with block scales take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu._system import in_ieee
from fpemu.arguments import as_array, as_float64, choice, integer, number, text
from fpemu.errors import InputError, unknown_name
from fpemu.formats import E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, INT8, UE4M3, FloatFormat
from fpemu.rounding import Rounding, _round_to, round_to

SCALE_RULES = ("floor", "rceil", "even", "ceil")
_ROUNDINGS = {"floor": Rounding.RZ, "even": Rounding.RNE, "ceil": Rounding.RU, "rceil": Rounding.RU}


@dataclass(frozen=True)
class BlockFormat:
    """Block format.

    Parameters
    ----------
    name : str
        Name.
    element : FloatFormat
        Format of the values.
    scale : FloatFormat
        Format of the scales: `fpemu.E8M0`, powers of two, or an unsigned format such as `fpemu.formats.UE4M3`.
    block : int
        Numbers that share a scale.
    tensor_scale : bool
        Whether one fp32 number scales the whole array as well (NVFP4).

    Examples
    --------
    >>> NVFP4.element.name, NVFP4.scale.name, NVFP4.block
    ('e2m1', 'ue4m3', 16)
    """

    name: str
    element: FloatFormat
    scale: FloatFormat
    block: int
    tensor_scale: bool = False

    def __post_init__(self) -> None:
        text("BlockFormat: name", self.name)
        integer("BlockFormat: block", self.block, 1)
        if self.scale.min < 0:
            raise InputError(f"block format {self.name!r}: the scales are positive, {self.scale} has negative numbers")

    def __str__(self) -> str:
        return self.name


MXFP8_E4M3 = BlockFormat("mxfp8_e4m3", E4M3, E8M0, 32)
MXFP8_E5M2 = replace(MXFP8_E4M3, name="mxfp8_e5m2", element=E5M2)
MXFP6_E3M2 = replace(MXFP8_E4M3, name="mxfp6_e3m2", element=E3M2)
MXFP6_E2M3 = replace(MXFP8_E4M3, name="mxfp6_e2m3", element=E2M3)
MXFP4 = replace(MXFP8_E4M3, name="mxfp4", element=E2M1)
# OCP MX v1.0, section 5.3.4: an int8 element has the implied scale 2^-6
MXINT8 = replace(MXFP8_E4M3, name="mxint8", element=replace(INT8, name="mxint8 element", emin=0, emax=0))
NVFP4 = BlockFormat("nvfp4", E2M1, UE4M3, 16, tensor_scale=True)

_FORMATS = {f.name: f for f in (MXFP8_E4M3, MXFP8_E5M2, MXFP6_E3M2, MXFP6_E2M3, MXFP4, MXINT8, NVFP4)}


def get(fmt: BlockFormat | str) -> BlockFormat:
    """Return a block format by name ("mxfp4", "nvfp4" ...); a BlockFormat passes through.

    Raises
    ------
    InputError
        An unknown name, with the nearest known.
    """
    if isinstance(fmt, BlockFormat):
        return fmt
    key = fmt.lower().replace("-", "_").strip() if isinstance(fmt, str) else ""
    if key not in _FORMATS:
        raise unknown_name("block format", fmt, _FORMATS)
    return _FORMATS[key]


def names() -> list[str]:
    """The names of the known block formats."""
    return list(_FORMATS)


class Quantized(NamedTuple):
    """A quantised array: x ≈ values · scales · tensor_scale, with one entry of ``scales`` per block."""

    values: NDArray[Any]
    """Values of the element format, of the shape of x."""
    scales: NDArray[Any]
    """Values of the scale format; the axis of the blocks has one entry per block."""
    tensor_scale: np.float32
    """Scale of the whole array; 1 in the MX formats."""


@in_ieee
def quantize(
    x: Any,
    fmt: BlockFormat | str,
    axis: int = -1,
    scale_rule: str | None = None,
    rounding: Rounding | str = "RNE",
    *,
    tensor_scale: float | None = None,
    bits: int | None = None,
    seed: int | None = None,
) -> Quantized:
    """Quantise an array to a block format.

    Parameters
    ----------
    x : array_like
        Real numbers, of any shape.
    fmt : BlockFormat or str
        Block format; ``dataclasses.replace(MXFP4, block=16)`` has other blocks.
    axis : int
        Axis of the blocks, whose length is a multiple of the block: -1 for A (M, K) and -2 for B (K, N) of a product.
    scale_rule : {"floor", "rceil", "even", "ceil"}, optional
        Scale of a block with the largest magnitude a, for elements of largest number m and exponent emax. Powers of
        two: "floor" (default) is 2^(floor(log2 a) - emax), as in OCP MX, so that a may be above m and saturates;
        "ceil" is 2^(ceil(log2 a) - emax); "even" is "floor" of a rounded to the element's precision, ties up; "rceil"
        is a / m rounded up to a power of two, as in cuBLAS. Other scales: a / (m · tensor_scale) rounded down
        ("floor"), to nearest even ("even", default) or up, at most the largest scale.
    rounding : Rounding or str
        Rounding of the elements, as in `fpemu.round_to`; elements saturate.
    tensor_scale : float, optional
        Scale of the array, an fp32 number, for a format with one. Default: the largest magnitude of x divided by the
        largest element and the largest scale, in fp32; 1 if x is zero.
    bits, seed : int, optional
        Random bits and seed of stochastic rounding (mode SR).

    Returns
    -------
    Quantized
        Values, scales and tensor scale. ``fmt.element.encode(values)`` and ``fmt.scale.encode(scales)`` are the codes.

    Raises
    ------
    InputError
        Unknown names; an axis whose length is no multiple of the block; a tensor scale that does not go with the
        format or is not positive.

    Notes
    -----
    The quotients x / scale are rounded once if x has fp32 precision or less. A block of zeros has the smallest scale. A
    block with NaN or Inf, or whose scale is above the largest power of two, has the scale NaN and elements 0. If a
    scale is rounded to zero, the elements are 0.

    References
    ----------
    OCP Microscaling Formats (MX) Specification v1.0, sections 5 and 6.3.

    Examples
    --------
    >>> q = quantize([[1.0, -2.5, 0.2, 7.0] * 8], "mxfp4")
    >>> q.values[0, :4].tolist(), q.scales.tolist()
    ([1.0, -2.0, 0.0, 6.0], [[1.0]])
    """
    fmt = get(fmt)
    default = "floor" if fmt.scale.precision == 1 else "even"
    rule = choice("scale_rule", default if scale_rule is None else scale_rule, SCALE_RULES)
    blocks = _blocks(as_float64(x, "x of quantize"), axis, fmt.block)
    largest = np.max(np.abs(blocks), axis=-1, initial=0.0)
    whole = _tensor_scale(largest, fmt, tensor_scale)
    scales = _scales(largest, fmt, rule, whole)
    total = scales.astype(np.float64)[..., None] * whole
    usable = (total > 0) & np.isfinite(blocks)
    with np.errstate(over="ignore"):
        quotients = np.where(usable, blocks / np.where(usable, total, 1.0), 0.0)
    # a quotient below float64's numbers is not zero: directed roundings give the smallest element
    quotients = np.where(usable & (quotients == 0) & (blocks != 0), np.copysign(2.0**-1074, blocks), quotients)
    quotients = np.moveaxis(quotients.reshape(*blocks.shape[:-2], -1), -1, axis)
    values = round_to(quotients, fmt.element, rounding, saturate=True, bits=bits, seed=seed)
    return Quantized(values, np.moveaxis(scales, -1, axis), whole)


@in_ieee
def dequantize(values: Any, scales: Any, axis: int = -1, tensor_scale: float | np.float32 = 1.0) -> NDArray[np.float64]:
    """Return values · scales · tensor_scale, the numbers that a quantised array stands for.

    Parameters
    ----------
    values : array_like
        Values of the elements.
    scales : array_like
        Values of the scales: ``values`` with one entry per block along the axis.
    axis : int
        Axis of the blocks.
    tensor_scale : float
        Scale of the whole array.

    Returns
    -------
    float64 array
        The products, which are exact for every format of this module, of the shape of ``values``.

    Raises
    ------
    InputError
        Shapes that do not go together.

    Examples
    --------
    >>> dequantize([1.0, 6.0, -0.5, 2.0], [2.0, 0.25])
    array([ 2.   , 12.   , -0.125,  0.5  ])
    """
    v, s = as_float64(values, "values of dequantize"), as_float64(scales, "scales of dequantize")
    whole = number("tensor_scale", tensor_scale)
    fits = v.ndim == s.ndim and -v.ndim <= integer("axis", axis) < v.ndim
    block = v.shape[axis] // max(s.shape[axis], 1) if fits else 0
    if (
        not fits
        or block * s.shape[axis] != v.shape[axis]
        or np.delete(v.shape, axis).tolist() != np.delete(s.shape, axis).tolist()
    ):
        raise InputError(
            f"dequantize: scales of shape {s.shape} for values of shape {v.shape}, blocks along axis {axis}"
        )
    return np.asarray(v * np.repeat(s, block, axis) * whole)


def swizzle(scales: Any) -> NDArray[Any]:
    """Return scales in the order in which cuBLAS and ``torch._scaled_mm`` read them: tiles of 128 rows and 4 columns.

    Parameters
    ----------
    scales : array_like
        Scales or their codes, (..., M, K / block): rows of A, or of B transposed.

    Returns
    -------
    array
        (..., 512 · tiles), the tiles by rows. Row r and column c of a tile have the index 16 (r mod 32) + 4 (r div 32)
        + c in it; missing rows and columns of the last tiles are 0.

    Raises
    ------
    InputError
        An array of fewer than two axes.

    References
    ----------
    cuBLAS documentation, 1D block scaling factors layout.

    Examples
    --------
    >>> swizzle(np.arange(8, dtype=np.uint8).reshape(2, 4))[:24].tolist()
    [0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 5, 6, 7, 0, 0, 0, 0]
    """
    scales = as_array(scales, "scales of swizzle")
    if scales.ndim < 2:
        raise InputError(f"scales of swizzle have the shape {scales.shape}: they need rows and columns")
    *batch, rows, columns = scales.shape
    padding = [(0, 0)] * len(batch) + [(0, -rows % 128), (0, -columns % 4)]
    tiles = np.pad(scales, padding).reshape(*batch, -(-rows // 128), 4, 32, -(-columns // 4), 4)
    return np.moveaxis(tiles, (-2, -3, -4), (-4, -3, -2)).reshape(*batch, -1)


def unswizzle(scales: Any, rows: int, columns: int) -> NDArray[Any]:
    """Return swizzled scales as a matrix: the inverse of `swizzle`.

    Parameters
    ----------
    scales : array_like
        (..., 512 · tiles), or any shape whose last axes have this size if there is no batch.
    rows, columns : int
        M and K / block.

    Returns
    -------
    array
        (..., rows, columns).

    Raises
    ------
    InputError
        A size that is not 512 times the number of tiles.

    Examples
    --------
    >>> unswizzle(swizzle([[1.0, 2.0], [3.0, 4.0]]), 2, 2)
    array([[1., 2.],
           [3., 4.]])
    """
    scales = as_array(scales, "scales of unswizzle")
    rows, columns = integer("rows", rows, 1), integer("columns", columns, 1)
    down, across = -(-rows // 128), -(-columns // 4)
    if not scales.ndim or scales.shape[-1] != 512 * down * across:
        size = 512 * down * across
        raise InputError(f"scales of unswizzle: {rows} x {columns} scales are {size} numbers, not {scales.shape}")
    tiles = scales.reshape(*scales.shape[:-1], down, across, 32, 4, 4)
    matrix = np.moveaxis(tiles, (-4, -3, -2), (-2, -3, -4)).reshape(*scales.shape[:-1], 128 * down, 4 * across)
    return matrix[..., :rows, :columns]


def _blocks(x: NDArray[np.float64], axis: int, block: int) -> NDArray[np.float64]:
    """Return x with the axis last, cut into blocks: (..., blocks, block)."""
    if not -x.ndim <= integer("axis", axis) < x.ndim:
        raise InputError(f"quantize: x of shape {x.shape} has no axis {axis}")
    if x.shape[axis] % block:
        raise InputError(f"quantize: axis {axis} of x has {x.shape[axis]} entries, no multiple of the block of {block}")
    moved = np.moveaxis(x, axis, -1)
    return moved.reshape(*moved.shape[:-1], x.shape[axis] // block, block)


def _tensor_scale(largest: NDArray[np.float64], fmt: BlockFormat, given: float | None) -> np.float32:
    if not fmt.tensor_scale:
        if given is not None:
            raise InputError(f"quantize: {fmt} has no tensor scale: leave out tensor_scale")
        return np.float32(1)
    if given is not None:
        scale = np.float32(number("tensor_scale", given, above=0))
        if float(scale) != given or not np.isfinite(scale):
            raise InputError(f"quantize: tensor_scale = {given} is no fp32 number")
        return scale
    peak = np.max(largest, initial=0.0, where=np.isfinite(largest))
    with np.errstate(over="ignore", under="ignore"):
        scale = np.float32(peak) / np.float32(fmt.element.max * fmt.scale.max)
    return scale if 0 < scale < np.inf else np.float32(1)


def _scales(largest: NDArray[np.float64], fmt: BlockFormat, rule: str, whole: np.float32) -> NDArray[Any]:
    """Return the scale of each block from its largest magnitude."""
    finite = np.isfinite(largest)
    a, limit = np.where(finite, largest, 0.0), fmt.element.max
    if fmt.scale.precision > 1:
        scales = _round_to(a / (limit * np.float64(whole)), fmt.scale, _ROUNDINGS[rule], saturate=True)
        return np.where(finite, scales, scales.dtype.type(np.nan))
    (m, e), (top, exponent) = np.frexp(a), np.frexp(limit)
    up = {
        "floor": np.zeros(a.shape, bool),
        "ceil": m > 0.5,
        "even": m >= 1 - 2.0 ** (-fmt.element.precision - 1),
        "rceil": m > top,
    }[rule]
    powers = np.where(a == 0, fmt.scale.emin, np.maximum(e - exponent + up, fmt.scale.emin))
    finite &= powers <= fmt.scale.emax
    return np.where(finite, np.ldexp(1.0, np.minimum(powers, fmt.scale.emax)), np.nan).astype(fmt.scale.dtype)
