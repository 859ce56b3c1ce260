"""Scaling of the residual in a split in two words: the bits kept, and the exponents sb that serve (H2SGEMM, Eq. 6).

Figure 2(b), Eq. 6 and Rules 1 and 2, "printed" and "corrected" as in `fpemu.theory.underflow`, which lists these names.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Unpack

from fpemu.arguments import checked
from fpemu.errors import InputError
from fpemu.theory.residuals import Choice, Form, Split


# --- figure 2(b) and Eq. 6
@dataclass(frozen=True)
class Bits:
    """Accuracy of two words over the numbers of one exponent.

    Attributes
    ----------
    worst : int
        Largest b with abs(x - h - r / 2^sb) <= 2^(E - b) for every number whose words are finite; 0 if there is none.
    mean : float
        The mean of the same b, number by number; 0 if no words are finite.
    h_overflows : float
        Share of the numbers whose high word overflows.
    r_overflows : float
        Share of the numbers whose residual overflows, and not the high word.
    """

    worst: int
    mean: float
    h_overflows: float
    r_overflows: float


@checked
def bits_kept(exponent: int, sb: int = 0, **split: Unpack[Choice]) -> Bits:
    """Return the bits that the two words keep of the numbers of an exponent (figure 2(b)).

    A number that is kept exactly counts P bits, the precision of the wide format.

    Parameters
    ----------
    exponent : int
        E, the exponent of x.
    sb : int
        Scaling exponent of the residual.
    **split
        Formats and roundings of the split, as in `Choice`.

    Returns
    -------
    Bits
        The worst case and the mean, and the shares of overflowing words.

    Raises
    ------
    InputError
        Unknown names, or a narrow format that is not narrower than the wide one.

    Examples
    --------
    >>> bits_kept(0, 12).worst, bits_kept(-8, 0).worst, round(bits_kept(15, 12).r_overflows * 2**13)
    (23, 17, 3)
    """
    return _bits(Split.of(**split), exponent, sb)


@functools.lru_cache(maxsize=4096)
def _bits(setup: Split, exponent: int, sb: int) -> Bits:
    counts = {b: count for b, count in setup.bits(exponent, sb).items() if count}
    kept, every = sum(counts.values()), setup.mantissas()
    finite = sum(interval.within(interval.first, interval.last) for interval in setup.intervals(exponent))
    mean = sum(b * count for b, count in counts.items()) / kept if kept else 0.0
    return Bits(min(counts, default=0), mean, (every - finite) / every, (finite - kept) / every)


@checked
def printed_bits(exponent: int, sb: int, **split: Unpack[Choice]) -> int:
    """Return the bits of figure 2(b) as the text states them.

    They are min(2p, E + sb - (emin - p + 1)), and not below the p of h, for a normal h.

    Parameters
    ----------
    exponent : int
        E, the exponent of x.
    sb : int
        Scaling exponent of the residual.
    **split
        Formats and roundings of the split, as in `Choice`.

    Returns
    -------
    int
        Number of bits.

    Raises
    ------
    InputError
        Unknown names, or a narrow format that is not narrower than the wide one.

    Examples
    --------
    >>> printed_bits(0, 12), printed_bits(-8, 0)
    (22, 16)
    """
    setup = Split.of(**split)
    p = setup.narrow.precision
    return max(p, min(2 * p, exponent + sb - setup.least))


@checked
def scaling_interval(
    lowest: int, highest: int, *, bits: int | None = None, form: Form = "corrected", **split: Unpack[Choice]
) -> range:
    """Return the scaling exponents that keep enough bits and overflow no residual, Eq. 6.

    They keep `bits` bits from the exponent `lowest` on and overflow no residual up to `highest`. As printed, for fp16
    and 22 bits -24 + 22 - E_min <= sb <= 15 + 12 - E_max, and in general

        (emin - p + 1) + bits - E_min  <=  sb  <=  emax + (p + 1) - E_max

    Corrected, with bits counted as in `bits_kept`, the ends are those that exact counts give. For nearest rounding of
    both words, h normal, and bits from p + 1 to 2p + 1, they are

        (emin - p) + bits - E_min  <=  sb  <=  emax + p - E_max

    Numbers with an overflowing h (at emax, above the largest number) are not considered.

    Parameters
    ----------
    lowest, highest : int
        Exponents of the smallest and of the largest numbers.
    bits : int, optional
        Default: 2p, the paper's 22.
    form : {"printed", "corrected"}
        Which of the two formulas.
    **split
        Formats and roundings of the split, as in `Choice`.

    Returns
    -------
    range
        Empty, with its two ends crossed, where none serves; range(0) where no sb keeps the bits, or no h at `highest`
        is finite.

    Raises
    ------
    InputError
        `lowest` above `highest`; no more bits than h has; an exponent that the wide format does not have.

    Examples
    --------
    >>> scaling_interval(-14, 15, form="printed"), scaling_interval(-14, 15)
    (range(12, 13), range(11, 12))
    """
    setup = Split.of(**split)
    narrow = setup.narrow
    wanted = 2 * narrow.precision if bits is None else bits
    if lowest > highest:
        raise InputError(f"the lowest exponent, {lowest}, is above the highest, {highest}")
    if wanted <= narrow.precision:
        raise InputError(f"{wanted} bits need no residual: h alone is {narrow}, of {narrow.precision}; choose more")
    low, high = setup.least + wanted - lowest, narrow.emax + narrow.precision + 1 - highest
    if form == "printed":
        return range(low, high + 1)
    least, most = _lowest(setup, lowest, wanted), _highest(setup, highest)
    return range(0) if least is None or most is None else range(least, most + 1)


def _lowest(setup: Split, exponent: int, bits: int) -> int | None:
    """The smallest sb that keeps the bits at an exponent; None if there is none."""
    last = setup.narrow.emin - setup.unit(exponent)  # from here on every residual is normal: scaling is no help
    first = setup.least - exponent - 2  # up to here every residual is gone: h alone does not keep the bits
    return next((sb for sb in range(first, last + 1) if _bits(setup, exponent, sb).worst >= bits), None)


def _highest(setup: Split, exponent: int) -> int | None:
    """The largest sb with which no residual overflows at an exponent; None if none does with any sb."""
    intervals = [interval for interval in setup.intervals(exponent) if interval.last]
    if not intervals:
        return None
    largest = max(interval.last for interval in intervals).bit_length()
    sb = setup.narrow.emax - setup.unit(exponent) - largest  # every residual stays below 2^emax
    while all(interval.last < setup.least_over(exponent, sb + 1, interval.event) for interval in intervals):
        sb += 1
    return sb


# --- Rules 1 and 2: Eq. 6 in words
@dataclass(frozen=True)
class Rule1:
    """Binary exponents of the numbers below which an unscaled residual (sb = 0) is not enough.

    Attributes
    ----------
    scale_below : int
        Below it the residual must be scaled for the two words to keep 2p bits (printed: -2).
    fails_below : int
        Below it the unscaled residual adds nothing to the p bits of h (printed: -12).
    """

    scale_below: int
    fails_below: int


@checked
def rule_1(*, form: Form = "corrected", bits: int | None = None, **split: Unpack[Choice]) -> Rule1:
    """Return Rule 1: where the residual must be scaled.

    As printed emin + p + 1 and emin + 2, -2 and -12 for fp16.

    Corrected: the lowest normal exponents of h from which on sb = 0 keeps `bits` bits (default 2p), and more than p;
    one above the highest where none does (2p bits, both words truncated).

    Parameters
    ----------
    form : {"printed", "corrected"}
        The paper's formula, or exact counts.
    bits : int, optional
        Bits to keep; default 2p.
    **split
        Formats and roundings of the split, as in `Choice`.

    Returns
    -------
    Rule1
        The two exponents.

    Raises
    ------
    InputError
        Unknown names, or a narrow format that is not narrower than the wide one.

    Examples
    --------
    >>> rule_1(form="printed"), rule_1()
    (Rule1(scale_below=-2, fails_below=-12), Rule1(scale_below=-3, fails_below=-13))
    """
    setup = Split.of(**split)
    narrow = setup.narrow
    wanted = 2 * narrow.precision if bits is None else bits
    if form == "printed":
        return Rule1(setup.least + wanted, narrow.emin + 2)
    ends = []
    for least in (wanted, narrow.precision + 1):
        spans = range(max(narrow.emin, setup.wide.emin), min(narrow.emax, setup.wide.emax) + 1)
        # the quantum of a subnormal r is the same everywhere: bits kept never fall as the exponent grows
        ends.append(next((e for e in spans if _bits(setup, e, 0).worst >= least), spans.stop))
    return Rule1(*ends)


@checked
def rule_2(*, form: Form = "corrected", **split: Unpack[Choice]) -> int:
    """Return Rule 2: the largest scaling exponent with which no residual of large numbers overflows.

    As printed p + 1 (12 for fp16).

    Parameters
    ----------
    form : {"printed", "corrected"}
        The paper's formula, or exact counts.
    **split
        Formats and roundings of the split, as in `Choice`.

    Returns
    -------
    int
        Scaling exponent.

    Raises
    ------
    InputError
        Unknown names, or a narrow format that is not narrower than the wide one.

    Examples
    --------
    >>> rule_2(form="printed"), rule_2(), overflow_example(15, 12) == 2**15 + 16
    (12, 11, True)
    """
    setup = Split.of(**split)
    if form == "printed":
        return setup.narrow.precision + 1
    top = min(setup.narrow.emax, setup.wide.emax)
    largest = (_highest(setup, e) for e in range(top, setup.wide.emin - 1, -1))
    return next(sb for sb in largest if sb is not None)  # at emax there may be no residual


@checked
def overflow_example(exponent: int, sb: int, **split: Unpack[Choice]) -> float | None:
    """Return a number of an exponent whose scaled residual overflows while h does not.

    Parameters
    ----------
    exponent : int
        E, the exponent of the number.
    sb : int
        Scaling exponent of the residual.
    **split
        Formats and roundings of the split, as in `Choice`.

    Returns
    -------
    float or None
        The smallest of the numbers with the largest residual; None if no residual overflows.

    Raises
    ------
    InputError
        Unknown names, or a narrow format that is not narrower than the wide one.

    Examples
    --------
    >>> overflow_example(15, 11) is None
    True
    """
    setup = Split.of(**split)
    examples: list[tuple[int, int]] = []
    for interval in setup.intervals(exponent):
        if interval.last >= setup.least_over(exponent, sb, interval.event):
            examples.append((-interval.last, setup.smallest(exponent, interval.event, interval.last)))
    return float(min(examples)[1]) * 2.0 ** setup.unit(exponent) if examples else None
