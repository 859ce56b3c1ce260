"""H2SGEMM's theory of the split for other formats and roundings: losses, bits kept, and the safe sb.

The paper's two fp16 words of an fp32 number have p = 11 bits each, and it recommends sb = p + 1 = 12. The formulas of
`_underflow` hold for any two formats. Two words keep 2p bits if the residual is rounded to nearest, and
2p - 1 if it is truncated, from the exponent emin + p - sb on. The residual of a rounded h reaches 2^(E - p), half of
h's last place, and the residual of a truncated h nearly 2^(E - p + 1), so no residual overflows up to emax + p - sb. (A
truncated h with a residual rounded to nearest reaches 2^(E - p + 1), so the limit is one exponent lower.) Therefore
abs(sb - p) exponents are lost, at the bottom or at the top.
"""

from collections.abc import Iterator
from typing import Any

from fpemu import formats, plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from . import _enumeration as enumeration
from . import _underflow as underflow
from ._residuals import Split

PAPER = "H2SGEMM: emulating FP32 GEMM on Ascend NPUs using FP16 units (2025), section 3.1"
CAPTION = """Two words of p bits each, the residual scaled by 2^sb. Left, over the exponent E of the number, from emin
of the words' format on: (a) share of the numbers whose unscaled residual becomes 0, by formula (lines) and counted
over one period of the mantissa (markers), both words rounded to nearest (filled) or truncated (open); (c) bits of an
fp32 number that two fp16 words keep in the worst case, both rounded to nearest (filled) or truncated (open). Right,
over sb: exponents between emin and emax at which too few bits are kept or a residual overflows, (b) both words rounded
to nearest (wanted: 2p bits), (d) the high word truncated, r rounded to nearest (2p, filled) or truncated (2p - 1,
open). The numbers are fp32 for fp16, bf16 and tf32 words, fp16 for the FP8 words."""
ASSUMPTIONS = [
    """This page extends the paper, which has only fp32 numbers, fp16 words and rounding to nearest.""",
    """The number of bits kept is the largest b with abs(x - h - r/2^sb) <= 2^(E - b) for all mantissas with finite
    words. An exponent is lost if it keeps fewer than 2p bits, or fewer than 2p - 1 bits if the residual is
    truncated.""",
    "A residual overflows if its rounding with an unbounded exponent is above the format's largest number.",
    """The exponents are the 15 lowest and the 15 highest of a format. Between them no bits are lost and no residuals
    overflow with sb from 0 to 16.""",
    """The count is over one period of the residual in the mantissa, at sb = 0 for the residuals that become 0 and at
    sb = p for the bits; it agrees with a formula if the two are equal.""",
]

WIDE = {"fp16": "fp32", "bf16": "fp32", "tf32": "fp32", "e5m2": "fp16", "e4m3": "fp16"}
ROUNDINGS = (("RNE", "RNE"), ("RZ", "RZ"), ("RZ", "RNE"))
SCALES = range(17)
DISTANCES = range(15)


def cells() -> list[Row]:
    return [
        {
            "wide": wide,
            "narrow": narrow,
            "rounding": high,
            "residual_rounding": low,
            "end": end,
            "distance": distance,
            "exponent": _exponent(narrow, end, distance),
        }
        for narrow, wide in WIDE.items()
        for high, low in ROUNDINGS
        for end in ("emin", "emax")
        for distance in DISTANCES
    ]


def _exponent(narrow: str, end: str, distance: int) -> int:
    """Of the numbers: as far inside the range of the words' format."""
    fmt = formats.get(narrow)
    return fmt.emin + distance if end == "emin" else fmt.emax - distance


def cost(cell: Row) -> float:
    return 8.0 if cell["narrow"] == "bf16" else 1.0


def evaluate(cell: Row) -> dict[str, float]:
    """By formula "gone" (sb = 0), "bits sb", "mean sb" and "overflows sb"; by count the same at sb = 0 and sb = p."""
    names = ("wide", "narrow", "rounding", "residual_rounding")
    split: Any = {name: cell[name] for name in names}
    narrow, e = formats.get(cell["narrow"]), cell["exponent"]
    numbers = {"gone": underflow.underflow_probability(e, **split)}
    for sb in SCALES:
        bits = underflow.bits_kept(e, sb, **split)
        numbers |= {f"bits {sb}": float(bits.worst), f"mean {sb}": bits.mean, f"overflows {sb}": bits.r_overflows}
    # the lowest mantissas of an exponent: their h is finite even at emax, unlike the h of the highest mantissas
    period = Split.of(**split).period(e)
    gone = enumeration.residuals(e, mantissas=period, **split)
    kept = enumeration.kept(e, narrow.precision, mantissas=period, **split)
    return numbers | {
        "counted gone": gone.gone / gone.mantissas,
        "counted bits": float(kept.worst),
        "counted mean": kept.mean,
        "counted overflows": kept.r_overflows / kept.mantissas,
    }


def wanted(row: Row) -> int:
    """The bits that the two words of a row are to keep."""
    return 2 * formats.get(row["narrow"]).precision - (row["residual_rounding"] == "RZ")


def lost(rows: list[Row], sb: int) -> dict[str, int]:
    """Exponents of these rows at which bits are missing, and at which a residual overflows."""
    return {
        "bits": sum(row[f"bits {sb}"] < wanted(row) for row in rows if row["end"] == "emin"),
        "overflow": sum(row[f"overflows {sb}"] > 0 for row in rows if row["end"] == "emax"),
    }


_COLOURS = {
    "tf32": (plotting.SKY, "s"),
    "fp16": (plotting.BLUE, "o"),
    "bf16": (plotting.VERMILION, "D"),
    "e5m2": (plotting.GREEN, "^"),
    "e4m3": (plotting.PURPLE, "v"),
}
_SCALED = {0: (plotting.SKY, "^"), 6: (plotting.ORANGE, "s"), 11: (plotting.BLUE, "D"), 12: (plotting.VERMILION, "o")}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, 2, height=5.4, share_x=False, share_y=False)
    (gone, nearest), (bits, truncated) = axes
    for rounding, filled in (("RNE", True), ("RZ", False)):
        for narrow, (color, marker) in _COLOURS.items():
            points = _ordered(_select(rows, narrow, rounding, rounding, "emin"))
            seen = [row for row in points if row["counted gone"]]
            look = Series("_", color, marker, "", filled)
            formula = [r["gone"] or float("nan") for r in points]
            gone.plot([r["distance"] for r in points], formula, color=color, linewidth=0.9, zorder=1)
            size = _size(narrow)
            gone.plot([r["distance"] for r in seen], [r["counted gone"] for r in seen], **look.line(markersize=size))
        for sb, (color, marker) in _SCALED.items():
            points = _ordered(_select(rows, "fp16", rounding, rounding, "emin"))
            look = Series(f"(c) sb = {sb}" if filled else "_", color, marker, "-" if filled else ":", filled)
            size = 6.0 if sb == 11 else 3.0  # under sb = 12 from the first exponent on
            bits.plot([r["distance"] for r in points], [r[f"bits {sb}"] for r in points], **look.line(markersize=size))
    for axis, high, low, filled in (
        (nearest, "RNE", "RNE", True),
        (truncated, "RZ", "RNE", True),
        (truncated, "RZ", "RZ", False),
    ):
        for narrow, (color, marker) in _COLOURS.items():
            some = _select(rows, narrow, high, low)
            counts = [sum(lost(some, sb).values()) for sb in SCALES]
            label = f"(a, b, d) {narrow}" if axis is nearest else "_"
            look = Series(label, color, marker, "-" if filled else ":", filled)
            axis.plot(list(SCALES), counts, **look.line(markersize=_size(narrow)))
    gone.set(ylabel="share of the numbers", xlabel="$E - e_{\\min}$")
    gone.set_yscale("log", base=2)
    bits.set(ylabel="bits kept in the worst case", xlabel="$E - e_{\\min}$")
    for axis in (nearest, truncated):
        axis.set(ylabel="exponents lost", xlabel="scaling exponent sb")
    titles = ["residual becomes 0, sb = 0", "$h$ and $r$ to nearest", "fp32 in two fp16 words", "$h$ truncated"]
    plotting.panel_titles(axes, titles)
    for full, text in ((True, "filled: $r$ to nearest"), (False, "open: $r$ truncated")):
        gone.plot([], [], **Series(text, plotting.GREY, "o", "", full).line())
    gone.plot([], [], color=plotting.GREY, linewidth=0.9, label="(a) formula; markers: counted")
    plotting.legend_below(figure, axes.ravel()[[1, 2, 0]], 2, "In (a) and (c) $h$ and $r$ have the same rounding.")
    return figure


def _size(narrow: str) -> float:
    """Size of the markers; the markers of tf32 lie under the markers of fp16."""
    return 5.5 if narrow == "tf32" else 3.0


def measures(rows: list[Row]) -> Iterator[Measure]:
    for variant, formula, counted in (
        ("residuals that become 0, sb = 0", "gone", "counted gone"),
        ("worst bits kept, sb = p", "bits {}", "counted bits"),
        ("mean bits kept, sb = p", "mean {}", "counted mean"),
        ("residuals that overflow, sb = p", "overflows {}", "counted overflows"),
    ):
        # at emax some numbers have no h: the mean over a period is not the mean over the others
        judged = [row for row in rows if row["exponent"] < formats.get(row["narrow"]).emax]
        apart = [abs(row[formula.format(_p(row))] - row[counted]) for row in judged]
        yield Measure("formula_is_the_count", max(apart), variant=variant)
    for (high, low), variant in _ROUNDED.items():
        more = []
        for narrow in WIDE:
            some = _select(rows, narrow, high, low)
            counts = [sum(lost(some, sb).values()) for sb in SCALES]
            more.append(counts[_p(some[0])] - min(counts))
        yield Measure("sb_p_loses_least", float(max(more)), variant=variant)
    for narrow in WIDE:
        some = _select(rows, narrow, "RNE", "RNE")
        yield Measure("printed_sb_overflows", float(lost(some, _p(some[0]) + 1)["overflow"]), variant=narrow)


def finding(rows: list[Row]) -> str:
    statements: list[tuple[Any, ...]] = []
    for (high, low), words in _ROUNDED.items():
        best: dict[str, str] = {}
        for narrow in WIDE:
            if some := _select(rows, narrow, high, low):
                counts = {sb: sum(lost(some, sb).values()) for sb in SCALES}
                least = min(counts.values())
                apart = [sb - _p(some[0]) for sb, count in counts.items() if count == least]
                which = " and ".join("p" + (f" {'+' if d > 0 else '-'} {abs(d)}" if d else "") for d in apart)
                label = f"sb = {which} ({least}) for"
                best[label] = f"{best[label]}, {narrow}" if label in best else narrow
        statements.append((f"with {words}, the smallest numbers of exponents are lost for", best))
    more = [lost(some, _p(some[0]) + 1) for narrow in WIDE if (some := _select(rows, narrow, "RNE", "RNE"))]
    over = [counts["overflow"] for counts in more]
    forgotten = bool(over) and min(over) > 0
    return paragraph(
        *statements,
        (
            "with both words to nearest and sb = p + 1 (12 in the paper), the number of exponents with overflows is {}",
            over if forgotten else None,
            "g",
        ),
        (
            "the residual of a number midway between two of the format is half a last place, which Equation 6 omits",
            forgotten,
        ),
    )


_ROUNDED = {
    ("RNE", "RNE"): "both words to nearest (2p bits)",
    ("RZ", "RZ"): "both words truncated (2p - 1 bits)",
    ("RZ", "RNE"): "high word truncated, residual to nearest (2p bits)",
}


def _select(rows: list[Row], narrow: str, high: str, low: str, end: str | None = None) -> Any:
    return [
        row
        for row in rows
        if (row["narrow"], row["rounding"], row["residual_rounding"]) == (narrow, high, low)
        and end in (None, row["end"])
    ]


def _ordered(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["distance"])


def _p(row: Row) -> int:
    return formats.get(row["narrow"]).precision


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost=cost, kind="M")
