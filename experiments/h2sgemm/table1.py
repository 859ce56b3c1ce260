"""H2SGEMM, table 1: bits of an fp32 significand that the splits of five methods lose."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.schemes import words
from fpemu.schemes.ape import Ape
from fpemu.schemes.egemm import Egemm
from fpemu.schemes.h2sgemm import H2sgemm
from fpemu.schemes.markidis import Markidis
from fpemu.schemes.ootomo import Ootomo
from fpemu.schemes.split_scheme import TwoWords

from .._findings import paragraph
from .._rows import Row
from ._methods import PAPER as _PAPER

PAPER = f"{_PAPER}, section 2, table 1"
CAPTION = """Split of an fp32 number 1.M·2^E into two fp16 words by the five methods of table 1, over E. Bits lost: the
least number t of trailing zeros of M with which every number equals the sum of its two words; counted over one period
of the mantissa. (a) Words rounded as table 1 states: truncated (RZ) or to nearest (RN). (b) Words rounded as the
methods' own papers state: all to nearest. Lines at 1 and 2: the bits lost that table 1 prints."""
ASSUMPTIONS = [
    """Table 1 does not define the precision loss. The number of lost bits is here the smallest number t of trailing
    zeros of M with which the two words represent every number of the exponent exactly.""",
    """Table 1 counts without underflow of the residual, so the claim is judged at E = 0 to 14, where the residuals of
    all methods are normal. E = 15 is excluded because h may overflow.""",
    "The scaling exponents are 0 (Markidis, EGEMM-TC), 11 (Ootomo) and 12 (Ma, H2SGEMM), as in the methods' papers.",
]

METHODS: dict[str, tuple[TwoWords, str, int, Series]] = {
    "Markidis": (Markidis(), "RZ", 2, Series("Markidis et al.", plotting.ORANGE, "^")),
    "EGEMM-TC": (Egemm(), "RZ", 2, Series("Feng et al. (EGEMM-TC)", plotting.GREEN, "v", "--", filled=False)),
    "Ootomo": (Ootomo(), "RNE", 1, Series("Ootomo, Yokota", plotting.SKY, "D")),
    "Ma": (Ape(), "RNE", 1, Series("Ma et al. (APE)", plotting.PURPLE, "s", "--", filled=False)),
    "H2SGEMM": (H2sgemm(), "RNE", 1, Series("H2SGEMM", plotting.BLUE, "o", ":")),
}
"""Scheme of this package, rounding and bits lost by table 1, and appearance."""
READINGS = ("rounding as in Table 1", "rounding as in the methods' papers")
_PERIOD = 14
"""Bits of the mantissa that decide the residual at E >= -14: see `_enumeration`."""


def cells() -> list[Row]:
    return [{"method": m, "reading": r, "exponent": e} for m in METHODS for r in READINGS for e in range(-14, 15)]


def evaluate(cell: Row) -> dict[str, float]:
    """Bits lost, and the largest error in units of the last place of fp32."""
    scheme, rounding, *_ = METHODS[cell["method"]]
    stated = cell["reading"] == READINGS[0]
    options: dict[str, Any] = {"high_rounding": rounding, "residual_rounding": rounding} if stated else {}
    rules = replace(scheme, **options).rules()
    mantissas = np.arange(2**_PERIOD)
    x = np.ldexp((2**23 + mantissas).astype(np.float64), cell["exponent"] - 23).astype(np.float32)[None]
    pairs = zip(words.split(x, rules), rules, strict=True)
    held = sum(np.ldexp(word.astype(np.float64), -rule.exponent) for word, rule in pairs)
    error = np.abs(x - held)[0]
    lost = next(t for t in range(24) if not error[:: 2**t].any())
    return {"bits lost": float(lost), "error in ulp": float(np.ldexp(error.max(), 23 - cell["exponent"]))}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 2, height=4.8)
    for axis, reading in zip(axes[:, 0], READINGS, strict=True):
        for place, (method, (*_, look)) in enumerate(METHODS.items()):
            line = [row for row in rows if (row["method"], row["reading"]) == (method, reading)]
            size = 8.0 - 1.4 * place  # lines coincide
            axis.plot([r["exponent"] for r in line], [r["bits lost"] for r in line], **look.line(markersize=size))
        for bits in (1, 2):
            dotted = {"color": plotting.GREY, "linestyle": (0, (1, 1.5)), "linewidth": 0.8, "zorder": 1}
            axis.axhline(bits, label="1 and 2 bits, as table 1 prints", **dotted)
        axis.set(ylabel="bits lost of 24", ylim=(0, 14.5))
    axes[-1, 0].set_xlabel("exponent $E$ of the number")
    plotting.panel_titles(axes, READINGS)
    plotting.legend_below(figure, axes, 2)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for method, (_, _, printed, _) in METHODS.items():
        for reading in READINGS:
            if lost := _lost(rows, method, reading):
                yield Measure("table1_bits", max(lost, key=lambda bits: abs(bits - printed)) - printed, reading, method)


def finding(rows: list[Row]) -> str:
    lost = {reading: {m: max(_lost(rows, m, reading), default=None) for m in METHODS} for reading in READINGS}
    lowest = {m: min(r["exponent"] for r in rows if r["method"] == m and r["bits lost"] <= 2) for m in METHODS}
    return paragraph(
        *(
            (f"with {reading}, these numbers of bits are lost from E = 0 to 14", counts, ".0f")
            for reading, counts in lost.items()
        ),
        ("the smallest E with at most 2 lost bits are", lowest, "d"),
    )


def _lost(rows: list[Row], method: str, reading: str) -> list[float]:
    return [
        row["bits lost"]
        for row in rows
        if (row["method"], row["reading"]) == (method, reading) and 0 <= row["exponent"] <= 14
    ]


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="M")
