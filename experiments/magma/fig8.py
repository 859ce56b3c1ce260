"""MAGMA batched, figures 8 and 9, Equations 1 and 2: rooflines of complex products in two layouts."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.roofline import gpus

from .._findings import paragraph
from .._rows import Row, rows_by
from . import model as magma
from ._errors import PAPER

CAPTION = """Upper bound on the speed of half-complex products over n, by the copy bandwidth and the matrix peak of a
GPU: (a) n×n×n, V100 at 847 GB/s with 125 TFLOP/s (section 1 of the paper) and with 113 TFLOP/s by the clock of 1.38 GHz
in section 7.1 (dotted); (b) rank 16, n×n×16, the same GPU; (c) n×n×n on an H200. Planar: four real products one after
another; "planar, one kernel" moves as many bytes as interleaved, and the lines coincide. Vertical lines: sizes from
which the product is compute-bound."""
ASSUMPTIONS = [
    "The peak is 125 TFLOP/s (the paper's introduction), or the peak of the GPU in section 7.1 of the paper.",
    """Every call reads its operands and C once and writes C once, and caches keep no data between calls. The ratio of
    the two layouts then follows from Equations 1 and 2.""",
    "A product is compute-bound if its roofline reaches the peak.",
    "The H200 has its measured copy bandwidth and the fp16 peak of its data sheet.",
]
MACHINES = ("V100 SXM2", "V100", "H200")
"""The V100 of the paper's text is the SXM2's peak with the PCIe card's bandwidth; the table's V100 is the PCIe card."""
LAYOUTS = ("interleaved", "planar", "planar, one kernel")
DIGITS = dict.fromkeys(
    f"{layout} {column}" for layout in (*LAYOUTS, "real") for column in ("intensity", "bound", "counted")
)
"""Products and quotients of whole numbers, the same on every processor; in full, because the claims compare them."""
LENGTHS = sorted({10, 20, 50, 75, *range(100, 1001, 50), *range(560, 600, 10)})


def cells(lengths: Sequence[int] = tuple(sorted({*LENGTHS, *range(10, 1001, 10)}))) -> list[Row]:
    return [{"gpu": gpu, "n": n, "rank": rank} for gpu in MACHINES for rank in (0, 16) for n in lengths]


def evaluate(cell: Row) -> dict[str, float]:
    """Per layout "... intensity" (operations a byte), "... bound" (operations a second), "... crossing" (0: none)."""
    gpu, n = gpus.get(cell["gpu"]), cell["n"]
    k = cell["rank"] or n
    numbers = {"peak": float(gpu.need("fp16 matrix"))}
    for layout in (*LAYOUTS, "real"):
        numbers[f"{layout} intensity"] = magma.operational_intensity(n, n, k, layout)
        numbers[f"{layout} bound"] = magma.bound(n, n, k, layout, gpu)
        crossing = magma.crossing(gpu, layout, cell["rank"] or None)
        numbers[f"{layout} crossing"] = crossing if math.isfinite(crossing) else 0.0
    # by the operations and the words that move, without Equations 1 and 2
    elements = 2 * n * n + k * (n + n)
    operations = n * n * k * (6 + 2)
    numbers["interleaved counted"] = operations / (elements * 4)
    numbers["planar counted"] = 4 * n * n * k * 2 / (4 * elements * 2)
    return numbers


_LOOK = {
    "interleaved": Series("interleaved", plotting.BLUE, "o"),
    "planar": Series("planar, four calls", plotting.VERMILION, "s"),
    "planar, one kernel": Series("planar, one kernel", plotting.BLACK, "+", ""),
}
_ABOVE = {"interleaved": 3.0, "planar": 2.5, "planar, one kernel": 4.0}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=6.2, share_y=False)
    for axis, (gpu, rank) in zip(axes[:, 0], (("V100 SXM2", 0), ("V100 SXM2", 16), ("H200", 0)), strict=True):
        here = _rows(rows, gpu, rank)
        for layout, look in _LOOK.items():
            # markers at a few of the sizes; those between serve the claims
            marked = [i for i, row in enumerate(here) if row["n"] % 100 == 0]
            style = look.line(markersize=5 if look.marker == "+" else 3.5, zorder=_ABOVE[layout], markevery=marked)
            axis.plot([row["n"] for row in here], [row[f"{layout} bound"] / 1e12 for row in here], **style)
        for layout in ("interleaved", "planar"):
            if here and here[0][f"{layout} crossing"]:
                crossing = {"color": _LOOK[layout].color, "linewidth": 0.8, "linestyle": "-."}
                axis.axvline(here[0][f"{layout} crossing"], label=f"crossing, {layout}", **crossing)
        axis.set(xlim=(0, 1000), ylim=(0, None), ylabel="upper bound, TFLOP/s")
    other = _rows(rows, "V100", 0)
    for layout in ("interleaved", "planar"):
        bounds = [row[f"{layout} bound"] / 1e12 for row in other]
        style = {"color": _LOOK[layout].color, "linestyle": (0, (1, 1)), "linewidth": 0.9}
        axes[0, 0].plot([row["n"] for row in other], bounds, label=f"{layout}, section 7.1", **style)
    axes[-1, 0].set_xlabel("$n$")
    axes[-1, 0].set_xticks(range(0, 1001, 200))
    plotting.panel_titles(axes, ["V100, $n×n×n$", "V100, rank 16, $n×n×16$", "H200, $n×n×n$"])
    plotting.legend_below(figure, axes[0, 0], 2, title="complex fp16, rooflines by the bandwidth of a copy")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for number, layout, unit in ((1, "interleaved", 16), (2, "planar", 8)):
        forms = {
            f"Eq. {number}": [(row[f"{layout} intensity"], row) for row in rows],
            f"Eq. {number}, square": [(unit * row["n"] / 32, row) for row in rows if not row["rank"]],
            f"Eq. {number}, rank 16": [(unit * row["n"] / (row["n"] + 16), row) for row in rows if row["rank"]],
        }
        for variant, pairs in forms.items():
            if pairs:
                off = max(abs(value / row[f"{layout} counted"] - 1) for value, row in pairs)
                yield Measure("intensities", off, variant=variant)
    for reading, layout in (("four calls", "planar counted"), ("one kernel", "planar, one kernel intensity")):
        if factors := [row["interleaved counted"] / row[layout] for row in rows]:
            yield Measure("layout_better", min(factors), reading)
            if layout == "planar counted":
                yield Measure("layout_factor", min(factors), variant="least over n")
                yield Measure("layout_factor", max(factors), variant="largest over n")
    for name, ratios in (
        ("complex_intensity", [row["interleaved counted"] / row["real intensity"] for row in rows]),
        ("planar_like_real", [row["planar bound"] / row["real bound"] for row in rows]),
    ):
        for word, end in (("least", min), ("largest", max)):
            if ratios:
                yield Measure(name, end(ratios), variant=f"{word} over n")
    for gpu, reading in (("V100 SXM2", "125 TFLOP/s (section 1)"), ("V100", "113 TFLOP/s (section 7.1)")):
        for row in _rows(rows, gpu, 0)[:1]:
            yield Measure("size_300", min(row["planar crossing"] - 300, 300 - row["interleaved crossing"]), reading)
            yield Measure("layouts_equal_above_550", row["planar crossing"], reading)
        for row in _rows(rows, gpu, 16)[:1]:
            for layout in ("planar", "interleaved"):
                limit = row[f"{layout} intensity"] * (row["n"] + 16) / row["n"]
                bandwidth = row[f"{layout} bound"] / row[f"{layout} intensity"]
                yield Measure(
                    "bandwidth_bound_rank_16", limit * bandwidth / row["peak"], variant=f"{layout}, {reading}"
                )


def finding(rows: list[Row]) -> str:
    text, card = (_rows(rows, gpu, 0) for gpu in ("V100 SXM2", "V100"))
    between = [row for row in text if row["n"] > 550 and row["planar bound"] < row["interleaved bound"]]
    crossings = {
        f"{of[0]['peak'] / 1e12:.4g} TFLOP/s": {
            "interleaved": of[0]["interleaved crossing"],
            "planar": of[0]["planar crossing"],
        }
        for of in (text, card, _rows(rows, "H200", 0))
        if of
    }
    same = [row for row in rows if row["planar, one kernel intensity"] == row["interleaved intensity"]]
    return paragraph(
        (
            "square products become compute-bound at these N (V100 of the text, the measured PCIe card, H200)",
            crossings,
            ".0f",
        ),
        ("the printed size 550 agrees with the second peak", bool(text and card)),
        (
            f"at N = {between[0]['n'] if between else 0} the first peak allows interleaved products a speed-up of {{}}",
            max((row["interleaved bound"] / row["planar bound"] for row in between), default=None),
            ".3f×",
        ),
        (
            "the four separate calls cause the factor of two, and not the layout: one kernel that computes the four "
            "products in its blocks moves as few bytes for planar operands as for interleaved operands",
            bool(rows) and len(same) == len(rows),
        ),
    )


_rows = rows_by("gpu", "rank", order="n")


QUICK = {"lengths": LENGTHS}
PAGE = Page(
    PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, None, quick=QUICK, kind="M", digits=DIGITS
)
