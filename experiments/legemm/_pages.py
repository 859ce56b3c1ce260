"""LE-GEMM, figures 10 to 13: errors over n, and histograms of errors, by four methods on two GPUs.

The code of figures 10 and 11 is in `_accuracy`, of figures 12 and 13 in
`_histogram`.
"""

from functools import partial

from fpemu.reproduce import Page

from . import _accuracy, _histogram

PAPER = "LE-GEMM, Journal of Systems Architecture 160 (2025) 103336, section 5.3, figure"

CAPTION_OVER_N = """{} of n×n×n products, operands uniform in [-1, 1]; above against an fp32 chain of FMAs as in the
paper, below against the exact product. Lines: median over seeded runs; bands: quartiles."""
CAPTION_HISTOGRAM = """Signed errors of the entries of a product of inner length 1024 on the {}, operands uniform in
[-1, 1], in bins half an octave wide: (a) against an fp32 chain of FMAs as in the paper, (b) against the exact product,
all seeded runs together. The middle bin holds errors below 2^-30 and exact results.{}"""
FLUSHED = " CDNA2 reads fp16 numbers below 2^-14 as zero, in the words of Markidis', Ootomo's and LE-GEMM's splits too."


def _over_n(number: int, caption: str, measure: str) -> Page:
    """The page of an error measure."""
    return Page(
        f"{PAPER} {number}",
        caption,
        _accuracy.ASSUMPTIONS,
        _accuracy.cells,
        _accuracy.evaluate,
        partial(_accuracy.draw, measure=measure),
        _accuracy.measures if measure == "mred" else None,
        partial(_accuracy.finding, measure=measure),
        cost=_accuracy.cost,
        quick={"lengths": (64, 128, 256, 512, 1024), "runs": 5},
    )


def _at_1024(number: int, hardware: str) -> Page:
    """The page of a platform."""
    return Page(
        f"{PAPER} {number}",
        lambda given: _caption(given["hardware"]),
        _histogram.assumptions,
        partial(_histogram.cells, hardware=hardware),
        _histogram.evaluate,
        _histogram.draw,
        None,
        _histogram.finding,
        cost=_histogram.cost,
        quick={"m": 128, "n": 128, "runs": 3},
    )


def _caption(hardware: str) -> str:
    return CAPTION_HISTOGRAM.format(_accuracy.platform(hardware), FLUSHED if hardware == "cdna2" else "")


PAGES = {
    "fig10": _over_n(
        10,
        CAPTION_OVER_N.format("Largest relative error |p - s| / (|p| + |s|) (Max_error, Eq. 19)")
        + " Grey: Max_error above 1/2, where the error of an entry exceeds the entry; Eq. 19 cannot exceed 1.",
        "max_error",
    ),
    "fig11": _over_n(11, CAPTION_OVER_N.format("Mean relative error |s - p| / |s| (MRED, Eq. 20)"), "mred"),
    "fig12": _at_1024(12, "cdna2"),
    "fig13": _at_1024(13, "ampere"),
}
