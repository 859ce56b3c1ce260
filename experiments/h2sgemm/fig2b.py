"""H2SGEMM, figure 2(b): bits kept by a split over the exponent, Rules 1 and 2 and Equation 6 against all mantissas.

x = 1.M · 2^E is split as h = RNE16(x) and r = RNE16((x - h) · 2^sb). The number of bits kept at E is the largest b, at
most 24, with abs(x - h - r / 2^sb) <= 2^(E - b) for every mantissa whose words are finite.

Equation 6 as printed, -24 + 22 - E_min <= sb <= 15 + 12 - E_max, is to keep 22 bits without an overflow. It counts the
places of r, but the error of rounding to nearest is at most half of the last place, so one more bit is kept. It also
assumes that the largest residual has N = 0 and is below 2^(E - 11), but the residual of a tie (N = -1) is 2^(E - 11).
With the number of bits defined above, for E from -14 to 15,

    -25 + 22 - E_min <= sb <= 15 + 11 - E_max

Over the whole range of fp16, E from -14 to 15, only sb = 12 meets the printed bounds. Its residuals overflow at E = 15
within one fp32 place of a tie (3 of 2^13 mantissas: x = 2^15 + 16 has the residual 16, and 16 · 2^12 = 65536). Only
sb = 11 meets the corrected bounds; it keeps 22 bits and never overflows.

The formulas come from `_underflow`, the counts from `_enumeration`, which proves that the
residual x - h has the period 2^14 in M from E = -14 up, and 2^(14 - 14 - E) below, wherever h is finite. r and the bits
kept depend on the residual alone, so one period is enumerated. The overflows of h have no period, so all 2^23 mantissas
are enumerated at E = 15 for sb = 11 and 12.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from . import _enumeration as enumeration
from . import _underflow as underflow
from ._residuals import Split

PAPER = "H2SGEMM: emulating FP32 GEMM on Ascend NPUs using FP16 units (2025), section 3.1.3, Eq. 6, figure 2(b)"
CAPTION = """Split of x = 1.M·2^E into fp16 words h and r (residual scaled by 2^sb) over all mantissas, counted over one
period of the residual, which gives the same. (a) Bits kept in the worst case: the most b with an error of at most 2^(E
- b) for every M with finite words; lines: as printed, min(22, E + 24 + sb) and not below the 11 of h where h is normal;
no marker: no bits are kept. sb = 11 is shown where h is normal. (b) sb over E: filled, 22 bits are kept and no r
overflows; ring, an r overflows; cross, fewer bits; lines: Equation 6 as printed (dashed) and corrected."""
ASSUMPTIONS = [
    """The number of bits kept is defined by the error, not by places: it is the largest b, at most 24, with abs(x - h -
    r/2^sb) <= 2^(E - b) for all mantissas of the exponent whose words are finite, and 0 if there are no such
    mantissas.""",
    """Figure 2(b) has no numbers. Its lines follow Equation 6 and the text: min(22, E + 24 + sb) bits from -14 to 15,
    at least 11 (the bits of h). The exponents end at 27, the last exponent in the text.""",
    """A bound of Equation 6 holds at an exponent if it equals the measured bound: the smallest sb that keeps 22 bits,
    or the largest sb without an overflow of r. The paper does not define 22 bits; the page has an error of at most 2^(E
    - 22), and an error of at most 2^(E - 23), half of the 22nd place after the leading bit. The corrected bounds are
    results of this project.""",
    "All roundings are to nearest even; the sign does not matter.",
]

FRACTION = 23
"""Fraction bits of fp32: 2^23 mantissas are all of an exponent."""
CURVES = (0, 12, 11)
"""The sb of panel (a): unscaled, the paper's choice, and the only one that Equation 6 corrected allows everywhere."""
EXPONENTS = range(-25, 28)
NORMAL = range(-14, 16)
"""Exponents of fp16's normal numbers."""


def cells() -> list[Row]:
    lowest = {0: -24, 12: EXPONENTS[0], 11: NORMAL[0]}  # unscaled, nothing is held below 2^-24
    wanted = {(e, sb) for e in EXPONENTS for sb in CURVES if e >= lowest[sb]}
    wanted |= {(e, low + i) for e in NORMAL for low in (-3 - e, 26 - e) for i in range(-2, 3)}
    return [
        {"exponent": e, "sb": sb, "mantissas": FRACTION if e == 15 and sb in (11, 12) else period(e)}
        for e, sb in sorted(wanted)
    ]


def cost(cell: Row) -> float:
    return float(2 ** cell["mantissas"] + 2**12)


def period(exponent: int) -> int:
    """How many low bits of the mantissa decide the residual where h does not overflow."""
    return Split.of("fp32", "fp16").period(exponent)


def evaluate(cell: Row) -> dict[str, float]:
    """Bits kept in the worst case, and the shares of the mantissas 0 to 2^mantissas - 1 whose h or r overflows."""
    numbers = enumeration.kept(cell["exponent"], cell["sb"], mantissas=cell["mantissas"])
    return {
        "bits": float(numbers.worst),
        "h overflows": numbers.h_overflows / numbers.mantissas,
        "r overflows": numbers.r_overflows / numbers.mantissas,
    }


def printed_bits(exponent: int, sb: int) -> float:
    """Figure 2(b) as the text has it, for numbers that fp16 holds as normal ones; NaN elsewhere."""
    return float(underflow.printed_bits(exponent, sb)) if exponent in NORMAL else np.nan


def equation_6(low: int, high: int, *, corrected: bool = False) -> tuple[int, int]:
    """The least and the largest sb for exponents from `low` to `high`."""
    allowed = underflow.scaling_interval(low, high, form="corrected" if corrected else "printed")
    return allowed.start, allowed.stop - 1


_LOOK = {
    0: Series("sb = 0", plotting.SKY, "^", ""),
    12: Series("sb = 12", plotting.VERMILION, "o", ""),
    11: Series("sb = 11", plotting.BLUE, "x", ""),
}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 2, height=6.2, share_x=False, share_y=False)
    left, right = axes[:, 0]
    left.axvspan(-30.7, -14.5, color=plotting.GREY, alpha=0.12, linewidth=0, label="subnormal in fp16")
    for sb in CURVES:
        points = sorted((row["exponent"], row["bits"]) for row in rows if row["sb"] == sb and row["bits"])
        look = _LOOK[sb]
        left.plot(*zip(*points, strict=True), **look.line(markersize=5.0 if sb == 12 else 3.6))
        if sb != 11:
            printed = [printed_bits(e, sb) for e in NORMAL]
            dash = "-" if sb else "--"
            left.plot(list(NORMAL), printed, color=look.color, linestyle=dash, label=f"sb = {sb}, as printed")
    left.set(xlim=(-30.7, 27.7), ylim=(0, 25))
    left.set_yticks([0, 5, 11, 15, 22, 24])
    left.set(xlabel="exponent $E$ of the number", ylabel="bits kept in the worst case")
    kinds = {
        "22 bits, no overflow": (plotting.BLUE, "o", plotting.BLUE, lambda row: _safe(row)),
        "22 bits, but r overflows": (plotting.VERMILION, "o", "white", lambda row: _bits(row) and not _fits(row)),
        "fewer bits": (plotting.GREY, "x", plotting.GREY, lambda row: not _bits(row)),
    }
    shown = [row for row in rows if row["exponent"] in NORMAL]
    for label, (color, marker, face, test) in kinds.items():
        points = [(row["exponent"], row["sb"]) for row in shown if test(row)]
        if points:
            right.plot(
                *zip(*points, strict=True),
                color=color,
                marker=marker,
                markerfacecolor=face,
                linestyle="",
                markersize=2.8,
                markeredgewidth=0.7,
                label=label,
            )
    for name, dash, corrected in (("Eq. 6 as printed", "--", False), ("Eq. 6 corrected", "-", True)):
        bounds = [equation_6(e, e, corrected=corrected) for e in NORMAL]
        line = {"color": plotting.BLACK, "linestyle": dash, "linewidth": 0.8}
        right.plot(list(NORMAL), [b[0] for b in bounds], label=name, **line)
        right.plot(list(NORMAL), [b[1] for b in bounds], **line)
    right.set(xlim=(-15, 16), xlabel="exponent $E$ of the number", ylabel="scaling exponent $sb$")
    plotting.panel_titles(axes, ["bits kept", "scaling exponents allowed"])
    for axis in (left, right):
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, columnspacing=1.2)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    at = {(row["exponent"], row["sb"]): row for row in rows}
    scaled = {e: row for (e, sb), row in at.items() if sb == 12}
    for side, bits, reading, _ in _BOUNDS:
        for corrected in (False, True):
            if apart := _apart(rows, side, bits, corrected=corrected):
                name = f"eq6_{'upper' if side else 'lower'}{'_corrected' * corrected}"
                if not (corrected and bits == 23):  # the corrected bound is for the other count
                    yield Measure(name, float(max(apart, key=abs)), "" if corrected else reading)
    if (-13, 0) in at:
        for bits, reading in ((0, "an error of at most 2^(E - bits)"), (1, "an error of at most 2^(E - bits - 1)")):
            yield Measure("rule1_collapse", at[-13, 0]["bits"] - bits - 11, reading)
    for variant, exponents in (("E = -14 to 14", NORMAL[:-1]), ("E = 15", NORMAL[-1:])):
        worst = min(row["bits"] * _fits(row) for e, row in scaled.items() if e in exponents)
        yield Measure("sb12_keeps_22_bits", worst, variant=variant)
    for name, sb in (("sb12_never_overflows", 12), ("sb11_never_overflows", 11)):
        shares = [row["r overflows"] for (e, of), row in at.items() if of == sb and e in NORMAL]
        yield Measure(name, max(shares))
    finite = [e for e, row in scaled.items() if 15 <= e <= 27 and row["h overflows"] < 1]
    yield Measure("remapped_range", float(len(finite)))


def finding(rows: list[Row]) -> str:
    at = {(row["exponent"], row["sb"]): row for row in rows}
    if (15, 12) not in at or (15, 11) not in at:
        return ""
    overflows = {sb: at[15, sb]["r overflows"] * 2**13 for sb in (12, 11)}
    large = [row for row in rows if row["exponent"] >= 16]
    small = [row["bits"] for (e, sb), row in at.items() if sb == 12 and e < -24]
    bounds = {what: _off(apart) for side, bits, _, what in _BOUNDS if (apart := _apart(rows, side, bits))}
    least = min((row["bits"] for (e, sb), row in at.items() if sb == 11 and e in NORMAL), default=None)
    return paragraph(
        ("at E = 15 these numbers of 2^13 residuals overflow", {f"sb = {sb}:": x for sb, x in overflows.items()}),
        ("with sb = 11 at least {} bits are kept from E = -14 to 15", least, ".0f"),
        *((f"Equation 6 for {bound} {text}", True) for bound, text in bounds.items()),
        ("from 2^16 on h overflows for every sb", bool(large) and all(row["h overflows"] == 1 for row in large)),
        ("below 2^-24 {} bits are kept if only r is scaled by 2^12", small, ".0f"),
    )


_BOUNDS = (
    (0, 22, "22 bits: an error of at most 2^(E - 22)", "the smallest sb with an error of at most 2^(E - 22)"),
    (0, 23, "22 bits: an error of at most 2^(E - 23)", "the smallest sb with an error of at most 2^(E - 23)"),
    (1, 0, "", "the largest sb with which no r overflows"),
)
"""Side of Equation 6, bits by error, the reading of the claim, and the measured quantity."""


def _apart(rows: list[Row], side: int, bits: int, *, corrected: bool = False) -> list[int]:
    """Equation 6 less the measured bound, at every exponent where the rows show one: it works, the next sb does not."""
    result = []
    for e in NORMAL:
        here = {row["sb"]: row for row in rows if row["exponent"] == e}
        good = [sb for sb, row in here.items() if (_fits(row) if side else row["bits"] >= bits)]
        edge = (max(good) if side else min(good)) if good else None
        if edge is not None and edge + (1 if side else -1) in here:
            result.append(equation_6(e, e, corrected=corrected)[side] - edge)
    return result


def _off(apart: list[int]) -> str:
    """How far a bound is from the measured one."""
    if len(set(apart)) > 1:
        return f"is off by {min(apart):+d} to {max(apart):+d}"
    off = f"{abs(apart[0])} too {'high' if apart[0] > 0 else 'low'}" if apart[0] else "as measured"
    return f"is {off} at every exponent"


def _bits(row: Row) -> bool:
    return bool(row["bits"] >= 22)


def _fits(row: Row) -> bool:
    return bool(row["r overflows"] == 0)


def _safe(row: Row) -> bool:
    """22 bits, and no word of the scaled residual overflows; no sb helps numbers whose h overflows."""
    return _bits(row) and _fits(row)


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost=cost, kind="M")
