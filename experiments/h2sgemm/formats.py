"""H2SGEMM's theory of the split for other formats and roundings: what is lost, what is kept, and which sb is safe.

The paper's two fp16 words of an fp32 number have p = 11 bits each, and it recommends sb = p + 1 = 12. The formulas of
`fpemu.theory.underflow` hold for any two formats. Two words keep 2p bits if the residual is rounded to nearest, and
2p - 1 if it is cut, from the exponent emin + p - sb on. The residual of a rounded h reaches 2^(E - p), half of h's last
place, and that of a cut one nearly 2^(E - p + 1), so that none overflows up to emax + p - sb. (A cut h with a residual
rounded to nearest meets 2^(E - p + 1) itself: one exponent less.) So abs(sb - p) exponents are lost, at the bottom or
at the top.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fpemu import formats, plotting
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share
from fpemu.theory import enumeration, underflow
from fpemu.theory.residuals import Split

from .._findings import paragraph
from .._rows import listed

PAPER = "H2SGEMM: emulating FP32 GEMM on Ascend NPUs using FP16 units (2025), section 3.1"
EXPLAINS = ("h2sgemm/formats",)
TITLE = "the split in other formats and roundings"
KIND = "M"
CAPTION = """Two words of p bits each, the residual scaled by 2^sb. Left, over the exponent E of the number, from emin
of the words' format on: (a) share of the numbers whose unscaled residual becomes 0, by formula (lines) and counted over
one period of the mantissa (markers), both words rounded to nearest (filled) or cut (open); (c) bits of an fp32 number
that two fp16 words keep in the worst case, both rounded to nearest (filled) or cut (open). Right, over sb: exponents
between emin and emax at which too few bits are kept or a residual overflows, (b) both words rounded to nearest (wanted:
2p bits), (d) the high word cut, r rounded to nearest (2p) or cut as well (2p - 1). The numbers are fp32 for fp16, bf16
and tf32 words, fp16 for the FP8 words."""
ASSUMPTIONS = [
    """Ours: the paper has fp32 numbers, fp16 words and rounding to nearest alone.""",
    """Bits kept are counted by error: the most b with abs(x - h - r/2^sb) <= 2^(E - b) for all mantissas with finite
    words. Wanted are 2p bits, or 2p - 1 where the residual is cut: after a cut high word it keeps no more.""",
    "A residual overflows if its rounding with an unbounded exponent is above the format's largest number.",
    """Exponents shown are the 15 lowest and the 15 highest of a format, where bits are lost or residuals overflow;
    between them nothing of either happens with sb from 0 to 16.""",
    """The count is over one period of the residual in the mantissa, at sb = 0 for what becomes 0 and at sb = p for the
    bits; it agrees with a formula if it is equal.""",
]

WIDE = {"fp16": "fp32", "bf16": "fp32", "tf32": "fp32", "e5m2": "fp16", "e4m3": "fp16"}
ROUNDINGS = (("RNE", "RNE"), ("RZ", "RZ"), ("RZ", "RNE"))
SCALES = range(17)
DISTANCES = range(15)


def cells(size: str) -> list[dict[str, Any]]:
    return [
        {
            "wide": wide,
            "narrow": narrow,
            "rounding": high,
            "residual_rounding": low,
            "end": end,
            "distance": distance,
            "exponent": _exponent(narrow, end, distance),
            "seed": 0,
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


def cost(cell: dict[str, Any]) -> float:
    return 8.0 if cell["narrow"] == "bf16" else 1.0


def evaluate(cell: dict[str, Any]) -> dict[str, float]:
    """By formula "gone" (sb = 0), "bits sb", "mean sb" and "overflows sb"; by count the same at sb = 0 and sb = p."""
    names = ("wide", "narrow", "rounding", "residual_rounding")
    split: Any = {name: cell[name] for name in names}
    narrow, e = formats.get(cell["narrow"]), cell["exponent"]
    numbers = {"gone": underflow.underflow_probability(e, **split)}
    for sb in SCALES:
        bits = underflow.bits_kept(e, sb, **split)
        numbers |= {f"bits {sb}": float(bits.worst), f"mean {sb}": bits.mean, f"overflows {sb}": bits.r_overflows}
    # the lowest mantissas of an exponent: their h is finite even at emax, where those of the highest are not
    period = Split.of(**split).period(e)
    gone = enumeration.residuals(e, mantissas=period, **split)
    kept = enumeration.kept(e, narrow.precision, mantissas=period, **split)
    return numbers | {
        "counted gone": gone.gone / gone.mantissas,
        "counted bits": float(kept.worst),
        "counted mean": kept.mean,
        "counted overflows": kept.r_overflows / kept.mantissas,
    }


def wanted(row: dict[str, Any]) -> int:
    """The bits that the two words of a row are to keep."""
    return 2 * formats.get(row["narrow"]).precision - (row["residual_rounding"] == "RZ")


def lost(rows: list[dict[str, Any]], sb: int) -> dict[str, int]:
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


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(2, 2, height=6.4, share_y=False)
    (gone, nearest), (bits, cut) = axes
    for narrow, (color, marker) in _COLOURS.items():
        for rounding, filled in (("RNE", True), ("RZ", False)):
            points = _ordered(_select(rows, narrow, rounding, rounding, "emin"))
            seen = [row for row in points if row["counted gone"]]
            size = 6.5 if narrow == "tf32" else 3.8  # it lies under fp16
            look = Series(f"{narrow}, {'nearest' if filled else 'cut'}", color, marker, "", filled)
            gone.plot(
                [r["distance"] for r in points],
                [r["gone"] or float("nan") for r in points],
                color=color,
                linewidth=0.9,
                zorder=1,
            )
            gone.plot([r["distance"] for r in seen], [r["counted gone"] for r in seen], **look.line(markersize=size))
    gone.set_yscale("log", base=2)
    gone.set_ylabel("share of the numbers")
    for sb, (color, marker) in _SCALED.items():
        for rounding, filled in (("RNE", True), ("RZ", False)):
            points = _ordered(_select(rows, "fp16", rounding, rounding, "emin"))
            look = Series(f"sb = {sb}, {'nearest' if filled else 'cut'}", color, marker, "-" if filled else ":", filled)
            size = 6.5 if sb == 11 else 3.8  # under sb = 12 from the first exponent on
            bits.plot([r["distance"] for r in points], [r[f"bits {sb}"] for r in points], **look.line(markersize=size))
    bits.set_ylabel("bits kept in the worst case")
    bits.set_xlabel("exponent of the number, $E - e_{\\min}$")
    for axis, (high, low) in ((nearest, ("RNE", "RNE")), (cut, ("RZ", "RNE")), (cut, ("RZ", "RZ"))):
        for narrow, (color, marker) in _COLOURS.items():
            some = _select(rows, narrow, high, low)
            if not some:
                continue
            counts = [sum(lost(some, sb).values()) for sb in SCALES]
            how = {"RNERNE": "", "RZRNE": ", r to nearest", "RZRZ": ", r cut"}[high + low]
            dash = ":" if (high, low) == ("RZ", "RNE") else "-"
            look = Series(narrow + how, color, marker, dash, (high, low) != ("RZ", "RNE"))
            axis.plot(list(SCALES), counts, **look.line(markersize=6.5 if narrow == "tf32" else 3.8))
        axis.set_ylabel("exponents lost")
    cut.set_xlabel("scaling exponent $sb$")
    plotting.panel_titles(
        axes, ["residual becomes 0, sb = 0", "both words to nearest", "fp32 in two fp16 words", "high word cut"]
    )
    for axis in axes.ravel():
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, columnspacing=1.2)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    for text, formula, counted in (
        ("residuals that become 0, sb = 0", "gone", "counted gone"),
        ("bits kept, worst, sb = p", "bits {}", "counted bits"),
        ("bits kept, mean, sb = p", "mean {}", "counted mean"),
        ("residuals that overflow, sb = p", "overflows {}", "counted overflows"),
    ):
        # at emax a part of the numbers have no h: a period has not the mean of the others
        judged = [row for row in rows if row["exponent"] < formats.get(row["narrow"]).emax]
        apart = [abs(row[formula.format(_p(row))] - row[counted]) for row in judged]
        measured = f"differs by {max(apart, default=0):.3g} at most"
        yield share(f"formula = counted: {text}", "", [not a for a in apart], measured)
    for (high, low), words in _ROUNDED.items():
        held, at = [], []
        for narrow in WIDE:
            if some := _select(rows, narrow, high, low):
                counts = [sum(lost(some, sb).values()) for sb in SCALES]
                held.append(counts[_p(some[0])] == min(counts))
                at.append(f"{narrow} {counts[_p(some[0])]}")
        measured = f"exponents lost: {', '.join(at)}"
        yield share(f"{words}: no sb loses fewer exponents than sb = p", "", held, measured)
    for more in (0, 1):
        counts = [
            sum(lost(some, _p(some[0]) + more).values())
            for narrow in WIDE
            if (some := _select(rows, narrow, "RNE", "RNE"))
        ]
        text = f"both words to nearest: sb = p{' + 1' * more} serves every exponent from emin to emax"
        measured = f"{_range(counts)} exponents lost" if counts else ""
        yield share(text, "", [not count for count in counts], measured)
    twins = {
        (r["rounding"], r["residual_rounding"], r["distance"]): r["gone"]
        for r in rows
        if r["narrow"] == "fp16" and r["end"] == "emin"
    }
    held = [
        twins[key] == r["gone"]
        for r in rows
        if r["narrow"] == "tf32"
        and r["end"] == "emin"
        and (key := (r["rounding"], r["residual_rounding"], r["distance"])) in twins
    ]
    measured = f"{sum(held)} shares are the same" if held else ""
    yield share("tf32 loses residuals as fp16 does, at the same distance from emin", "", held, measured)


def finding(rows: list[dict[str, Any]]) -> str:
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
        statements.append((f"{words}, the fewest exponents are lost with", best))
    more = [lost(some, _p(some[0]) + 1) for narrow in WIDE if (some := _select(rows, narrow, "RNE", "RNE"))]
    over = [counts["overflow"] for counts in more]
    forgotten = bool(over) and min(over) > 0
    return paragraph(
        *statements,
        (
            "both words to nearest, sb = p + 1 (the paper's 12 for fp16): exponents at the top with overflows",
            over if forgotten else None,
            "g",
        ),
        (
            "a number midway between two numbers of the format leaves half of a last place, which Equation 6 omits",
            forgotten,
        ),
    )


_ROUNDED = {
    ("RNE", "RNE"): "both words to nearest (2p bits)",
    ("RZ", "RZ"): "both words cut (2p - 1 bits)",
    ("RZ", "RNE"): "high word cut, residual to nearest (2p bits)",
}


def _range(values: list[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else f"{min(values)} to {max(values)}"


def _select(rows: list[dict[str, Any]], narrow: str, high: str, low: str, end: str | None = None) -> Any:
    return [
        row
        for row in rows
        if (row["narrow"], row["rounding"], row["residual_rounding"]) == (narrow, high, low)
        and end in (None, row["end"])
    ]


def _ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["distance"])


def _p(row: dict[str, Any]) -> int:
    return formats.get(row["narrow"]).precision
