"""Pictures of bits: the alignment of the terms of one dot product in a matrix instruction, and the truncated bits.

`blocks` divides a dot product into blocks with the NumPy reference implementation (`mma.reference`); `draw` shows a row
for every term that is not zero and a column for every binary place. Both are for the arithmetics that align once:
"truncated" (NVIDIA), and "exact", which truncates nothing before its single rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu import mma, plotting
from fpemu.arguments import as_float64, integer
from fpemu.errors import InputError
from fpemu.mma import MmaSpec, reference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {
    "kept": ("#D6E6F2", plotting.BLUE, "kept"),
    "cut": ("#F9DCC8", plotting.VERMILION, "truncated by the alignment"),
    "rounded": ("#FBEBC4", plotting.ORANGE, "removed by the rounding"),
}
"""The fate of a bit: colour of a zero, of a one, and the legend."""
_DIGITS = 52
"""Columns above which digits no longer fit into their cells."""


@dataclass(frozen=True)
class Term:
    """Product or accumulator that enters a sum, as significand · 2^place.

    Attributes
    ----------
    label : str
        The factors of a product, or "c".
    significand : int
        Signed integer significand.
    place : int
        Binary exponent of the significand's last bit.
    exponent : int
        Exponent that the alignment uses.
    kept : int
        Aligned significand, signed, in units of the block's last place.
    """

    label: str
    significand: int
    place: int
    exponent: int
    kept: int

    @property
    def value(self) -> float:
        """The term before its truncation."""
        return float(np.ldexp(float(self.significand), self.place))


@dataclass(frozen=True)
class Block:
    """One block of a dot product, whose terms are aligned to one grid, added and rounded once.

    Attributes
    ----------
    spec : MmaSpec
        Specification of the instruction.
    terms : tuple of Term
        The accumulator and the products; products that are zero are left out.
    exponent : int
        Largest exponent of the terms, or the floor E0 where that is higher.
    place : int
        Binary exponent of the last place kept: ``exponent - F`` where terms are truncated.
    total : int
        Sum of the aligned terms, in units of the last place.
    result : float
        Value that the instruction returns (from `mma.execute`).
    """

    spec: MmaSpec
    terms: tuple[Term, ...]
    exponent: int
    place: int
    total: int
    result: float

    @property
    def sum(self) -> float:
        """The sum before its one rounding; exact in float64 where `total` has at most 53 bits."""
        return float(np.ldexp(float(self.total), self.place))

    @property
    def quantum(self) -> int:
        """Binary exponent of the last place that the rounding of the sum leaves."""
        emin = self.spec.operand_formats[3].emin
        return max(self.place + abs(self.total).bit_length() - 1, emin) - self.spec.sum_fraction_bits


def blocks(a: Any, b: Any, c: Any = 0.0, *, spec: MmaSpec) -> tuple[Block, ...]:
    """Return the blocks of the dot product c + a·b on an instruction.

    Blocks come in ascending k; the result of each is the accumulator of the next.

    Parameters
    ----------
    a, b : array_like (K,)
        Finite values of the instruction's formats. Zeros fill the last block.
    c : float
        Finite, a value of C's format.
    spec : MmaSpec
        Of the arithmetic "truncated" or "exact".

    Returns
    -------
    tuple of Block
        One block per rounding step of the instruction.

    Raises
    ------
    InputError
        Another arithmetic; shapes that do not match; values that are not finite or not of the formats; a sum that
        overflows before the last block.

    Examples
    --------
    >>> import fpemu
    >>> a, b = [-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1, 1, 1]
    >>> [blocks(a, b, 2.0**23, spec=fpemu.mma.spec(gpu))[0].result for gpu in ("V100", "A100", "H100", "MI100")]
    [0.0, -0.5, -0.75, -0.875]
    """
    if not spec.rules.rounds_once:
        raise InputError(f"{spec}: no picture of the arithmetic {spec.arithmetic!r}, which does not align once")
    a, b, c = np.atleast_1d(as_float64(a, "a")), np.atleast_1d(as_float64(b, "b")), as_float64(c, "c")
    if a.ndim != 1 or a.shape != b.shape or not a.size or c.ndim:
        raise InputError(f"a and b of shapes {a.shape} and {b.shape}, c of {c.shape}: give one dot product")
    formats = spec.operand_formats
    given = zip((a, b, c), formats, strict=False)
    if not all(np.isfinite(x).all() and fmt._contains(x).all() for x, fmt in given):
        raise InputError(f"a, b and c must be finite values of {formats[0]}, {formats[1]} and {formats[2]}")
    sequence = []
    for k in range(0, len(a), spec.block):
        if not np.isfinite(c):
            raise InputError(f"{spec}: the sum overflows before k = {k}: there are no bits to show after that")
        sequence.append(_block(a[k : k + spec.block], b[k : k + spec.block], float(c), spec))
        c = sequence[-1].result
    return tuple(sequence)


def _block(a: NDArray[Any], b: NDArray[Any], c: float, spec: MmaSpec) -> Block:
    fa, fb, fc, _ = spec.operand_formats
    (sa, ea), (sb, eb), (sc, ec) = reference.decode(a, fa), reference.decode(b, fb), reference.decode(np.array([c]), fc)
    significands, exponents = np.append(sc, sa * sb), np.append(ec, ea + eb)
    points = np.append(fc.precision - 1, np.full(len(a), fa.precision + fb.precision - 2))
    labels = ["c", *(f"{_short(x)} × {_short(y)}" for x, y in zip(a, b, strict=True))]
    nonzero = np.flatnonzero(significands)
    floor = spec.E0
    shown = [int(exponents[i]) for i in nonzero] + ([] if floor is None else [floor])
    top = max(shown, default=0)
    lowest = min((int(exponents[i] - points[i]) + _zeros(int(significands[i])) for i in nonzero), default=top)
    place = top - spec.F if spec.rules.truncates else lowest
    terms = []
    for i in nonzero:
        significand, low = int(significands[i]), int(exponents[i] - points[i])
        if spec.rules.truncates:
            kept = int(reference.align(significands[i], exponents[i] - top, points[i], spec.F))
        else:
            kept = significand << (low - place) if low >= place else significand >> (place - low)  # zeros alone go
        terms.append(Term(labels[i], significand, low, int(exponents[i]), kept))
    return Block(spec, tuple(terms), top, place, sum(term.kept for term in terms), _executed(a, b, c, spec))


def _executed(a: NDArray[Any], b: NDArray[Any], c: float, spec: MmaSpec) -> float:
    fa, fb, fc, _ = spec.operand_formats
    one = spec.replace(k=spec.block, name=spec.name)
    A, B = np.zeros((1, spec.block), fa.dtype), np.zeros((spec.block, 1), fb.dtype)
    A[0, : len(a)], B[: len(b), 0] = a, b
    return float(mma.execute(A, B, np.full((1, 1), c, fc.dtype), one).item())


class _Line(NamedTuple):
    """A row of the picture: magnitude · 2^place, its bits below the place `end` lost."""

    label: str
    magnitude: int
    place: int
    end: int
    fate: str
    note: str

    @property
    def top(self) -> int:
        return self.place + self.magnitude.bit_length() - 1


def draw(pictures: Sequence[Block], titles: Sequence[str] | None = None, *, below: int = 8) -> Figure:
    """Draw one panel per block, one above the other, on a common axis of binary places.

    Dark cells are ones; pale cells are zeros below the leading bit. Blue bits are kept, vermilion bits are truncated by
    the alignment, and orange bits are removed by the rounding. The dashed line is the last place of the aligned terms.

    Parameters
    ----------
    pictures : sequence of Block
        Blocks to draw, from `blocks`.
    titles : sequence of str, optional
        Default: the architecture, the largest exponent and F.
    below : int
        Places shown below the lowest grid; bits farther down are left out, an arrow says so.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

    Raises
    ------
    InputError
        Without blocks, or with another number of titles.

    Examples
    --------
    >>> import fpemu
    >>> draw(blocks([1.0, 2.0**-14], [1.0, 2.0**-12], spec=fpemu.mma.spec("A100"))).axes[0].get_xlabel()
    'binary exponent of the place'
    """
    below = integer("below", below, 0, 10**4)
    titles = [_title(one) for one in pictures] if titles is None else titles
    if not pictures or len(titles) != len(pictures):
        raise InputError(f"draw: {len(pictures)} blocks and {len(titles)} titles: give one title for each block")
    panels = [_lines(one) for one in pictures]
    bits = [line for lines in panels for line in lines if line.magnitude]
    high = max((line.top for line in bits), default=0)
    lowest = min((line.place for line in bits), default=0)
    low = max(lowest, min(one.place for one in pictures) - below)
    with plotting.style():
        height = 0.165 * sum(map(len, panels)) + 0.28 * len(panels) + 0.75
        figure, axes = plotting.figure(1, len(panels), width=plotting.DOUBLE, height=height, share_y=False)
        for one, lines, title, axis in zip(pictures, panels, titles, axes[:, 0], strict=True):
            _panel(axis, lines, high, low)
            if one.spec.rules.truncates:
                axis.plot([0.5 - one.place] * 2, [-0.6, len(one.terms) - 0.5], color="black", linestyle="--", lw=0.9)
            axis.set_title(title, loc="left")
        ticks = [place for place in range(high, low - 1, -1) if place % 4 == 0]
        axes[-1, 0].set_xticks([-place for place in ticks], [str(place).replace("-", "−") for place in ticks])
        axes[-1, 0].set_xlabel("binary exponent of the place")
        axes[-1, 0].set_xlim(-high - 0.8, (2.2 if lowest < low else 0.8) - low)
        _legend(figure)
    return figure


def _title(one: Block) -> str:
    name = one.spec.architecture.capitalize().replace("Cdna", "CDNA ")
    if not one.spec.rules.truncates:
        return f"{name}: exact alignment"
    floor = ", the floor" if one.exponent == one.spec.E0 else ""
    return f"{name}: largest exponent {one.exponent}{floor}, $F$ = {one.spec.F}".replace("-", "−")


def _lines(one: Block) -> list[_Line]:
    fmt = one.spec.operand_formats[3]
    lines = []
    for term in one.terms:
        kept = float(np.ldexp(float(term.kept), one.place))
        note = _short(term.value, 9) + ("" if kept == term.value else f" → {_short(kept, 9)}")
        lines.append(_line(term.label, term.significand, term.place, one.place, "cut", note))
    lines.append(_line("sum", one.total, one.place, one.quantum, "rounded", _short(one.sum, 10)))
    fraction, exponent = np.frexp(one.result) if np.isfinite(one.result) else (0.0, 0)
    result = int(np.ldexp(fraction, fmt.precision)), int(exponent) - fmt.precision
    lines.append(_line(f"D, {fmt} {one.spec.final}", *result, result[1], "kept", _short(one.result, 10)))
    return lines


def _line(label: str, significand: int, place: int, end: int, fate: str, note: str) -> _Line:
    """Without the zeros at the end."""
    zeros = _zeros(significand)
    return _Line(label, abs(significand) >> zeros, place + zeros, end, fate, note)


def _zeros(x: int) -> int:
    """The number of trailing zero bits of an integer."""
    return (x & -x).bit_length() - 1 if x else 0


def _panel(axis: Axes, lines: list[_Line], high: int, low: int) -> None:
    from matplotlib.colors import ListedColormap

    columns = high - low + 1
    colours = [colour for zero, one, _ in _COLOURS.values() for colour in (zero, one)]
    cells = np.full((len(lines), columns), np.nan)
    for row, line in enumerate(lines):
        for place in range(max(line.place, low), line.top + 1) if line.magnitude else ():
            bit = line.magnitude >> (place - line.place) & 1
            fate = "kept" if place >= line.end else line.fate
            cells[row, high - place] = 2 * list(_COLOURS).index(fate) + bit
            if columns <= _DIGITS:
                color = "white" if bit and fate != "rounded" else "black"
                axis.text(-place, row, str(bit), ha="center", va="center_baseline", fontsize=7, color=color)
        if line.magnitude and line.place < low:
            axis.annotate("", (2.1 - low, row), (0.6 - low, row), arrowprops={"arrowstyle": "->", "lw": 0.8})
        axis.text(1.01, row, line.note, transform=axis.get_yaxis_transform(), va="center_baseline", fontsize=7)
    axis.grid(False)
    axis.pcolormesh(
        np.arange(columns) - high,
        np.arange(len(lines)),
        np.ma.masked_invalid(cells),
        shading="nearest",
        cmap=ListedColormap(colours),
        vmin=0,
        vmax=len(colours) - 1,
        edgecolor="white",
        linewidth=0.8,
        zorder=0.5,
    )
    axis.axhline(len(lines) - 2.5, color="black", linewidth=0.6)
    axis.set_yticks(range(len(lines)), [line.label for line in lines])
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", direction="out", length=2)
    axis.set_ylim(len(lines) - 0.4, -0.6)


def _legend(figure: Figure) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=one, label=label) for _, one, label in _COLOURS.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def _short(x: float, digits: int = 5) -> str:
    """A number as it is, or as a power of two where that is shorter."""
    fraction, exponent = np.frexp(abs(x))
    if fraction != 0.5 or -4 < exponent <= 4:
        return f"{x:.{digits}g}".replace("-", "−")
    return ("−" if x < 0 else "") + f"$2^{{{exponent - 1}}}$"
