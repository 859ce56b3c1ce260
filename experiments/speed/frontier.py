"""Error against speed on one GPU: from plain fp16 to DGEMM, every scheme that has a kernel here."""

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import groups
from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from ._look import label_points, look
from ._record import RULES, at, evaluate, is_square, one_gpu, products, provenance

PAPER = "Speed on one GPU, measured here: yardsticks and goals of this project"
N = groups.HEAD
DATA = {
    "symmetric": "uniform [-1, 1]",
    "positive": "uniform [0, 1]",
    "phi 0.5": "(u - 0.5) exp(0.5 g)",
    "normal": "normal",
}
UNIFORM = ("symmetric", "positive")
CAPTION = f"""Relative L2 error over effective FP32 throughput, n = {N}. Marker: operands uniform in [-1, 1], the first
ten launches after a pause, in kernels of cuBLAS or of fpemu. Vertical line: range of the error over four kinds of
operands, uniform in [-1, 1] and in [0, 1], normal, and (u - 0.5) exp(0.5 g) with u uniform in [0, 1) and g normal.
"1/8 exact": every 8th stage has exact corrections; "bf16 ×9": bf16 words, nine products. Splits are not timed.
{provenance("speed/frontier")}"""
ASSUMPTIONS = [
    *RULES,
    """"Three products of the library": three times the time of its fp16 product, a lower bound for three products.""",
    """The error of SGEMM belongs to the kernel that cuBLAS selects for this shape; kernels for other shapes have other
    errors.""",
]
FIRST_GOAL, SUSTAINED_GOAL = 264.0, 1.08
"""First launches in TFLOP/s, and sustained speed over three products of the library, at SGEMM's accuracy."""
CHEAPER, LOOSE = 1.35, 1e-5
"""Sustained speed over three products of the library at SGEMM's accuracy on uniform data, the error elsewhere."""
LEAST = 1e-8
"""Lower end of the figure; DGEMM lies far below."""
PUBLISHED = 72.6
"""TFLOP/s: the best published fp16 SGEMM with corrections on a Hopper (GH200, n = 16384)."""
_OURS = ("staged", *groups.FRONTIER, *groups.STRASSEN)
_GROUPS = {
    "cuBLAS": (groups.LIBRARY, Series("cuBLAS", plotting.BLACK, "s", "", filled=False)),
    "published": ((*groups.SCHEMES, *groups.OTHERS), Series("published scheme", plotting.BLUE, "o", "")),
    "ours": (_OURS, Series("scheme of this project", plotting.VERMILION, "*", "")),
}
_LINES = (
    Series("range, four kinds of data", plotting.GREY, "|", ""),
    Series("to the sustained speed", plotting.GREY, "_", ""),
)
_SHORT = {
    "fp16": "fp16",
    "staged-int8 exact=8": "staged-int8, 1/8 exact",
    "staged-int8 exact=4": "staged-int8, 1/4 exact",
    "strassen": "staged, Strassen 1 level",
    "strassen levels=2": "staged, Strassen 2 levels",
    "h2sgemm term-wise": "H2SGEMM term-wise",
    "h2sgemm element-wise": "H2SGEMM element-wise",
    "ootomo-tf32": "Ootomo, tf32",
    "bf16x9": "bf16 ×9",
    "bf16x6": "bf16 ×6",
    "bf16x3": "bf16 ×3",
    "ozaki2 SP moduli=7": "Ozaki II, 7 moduli",
    "ozaki2 SP moduli=8": "Ozaki II, 8 moduli",
}


def cells() -> list[Row]:
    return products(
        (*groups.LIBRARY, *groups.SPEEDS), lambda row: row["M"] == N and is_square(row) and row["fmt"] == "fp32", DATA
    )


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(height=5.6)
    axis = axes[0, 0]
    axis.set(xscale="log", yscale="log", xlim=(36, 1300), ylim=(LEAST, 1e-3))
    points: list[tuple[float, float, str, Series]] = []
    for names, style in _GROUPS.values():
        for name in names:
            row, errors = at(rows, name, N, N, N), _errors(rows, name)
            if row is None or "first" not in row or not errors or max(errors.values()) < LEAST:
                continue
            first, error = row["first"], row["relative_l2"]
            axis.plot([row.get("sustained", first), first], [error] * 2, color=style.color, linewidth=0.7)
            axis.plot([first] * 2, [min(errors.values()), max(errors.values())], color=style.color, linewidth=0.7)
            points.append((first, error, _SHORT.get(name, look(name).label.removesuffix(" (cuBLAS)")), style))
    points.sort(key=lambda point: point[0])
    for number, (first, error, name, style) in enumerate(points, 1):
        axis.plot([first], [error], **style.line(markersize=6 if style.marker == "*" else 4, label=f"{number}  {name}"))
    axis.set_xticks([50, 100, 200, 400, 800], ["50", "100", "200", "400", "800"])
    axis.tick_params(axis="x", which="minor", labelbottom=False)
    axis.set(xlabel="effective FP32 throughput (2MNK / time), TFLOP/s", ylabel="relative $L_2$ error")
    for style in (*(style for _, style in _GROUPS.values()), *_LINES):
        axis.plot([], [], **style.line())
    title = f"{one_gpu()}, n×n×n, n = {N}, first launches, uniform in [-1, 1]"
    below = at(rows, "dgemm", N, N, N)
    if below is not None and "first" in below:
        title += f"\nbelow the panel: DGEMM, {below['relative_l2']:.1g} at {below['first']:.3g} TFLOP/s"
    plotting.legend_below(figure, axes, 2, title)
    label_points(axis, [(first, error, f"{i}", style.color) for i, (first, error, _, style) in enumerate(points, 1)])
    return figure


def _errors(rows: list[Row], implementation: str) -> dict[str, float]:
    """The error of an implementation by the kind of operands."""
    return {data: row["relative_l2"] for data in DATA if (row := at(rows, implementation, N, N, N, data)) is not None}


def _least(rows: list[Row], implementation: str, column: str) -> tuple[float, str] | None:
    """The least number of a column over the kinds of operands that have it, and their number in words."""
    selected = (at(rows, implementation, N, N, N, data) or {} for data in DATA)
    known = [row[column] for row in selected if column in row]
    return (min(known), f"{len(known)} of {len(DATA)} distributions") if known else None


def measures(rows: list[Row]) -> Iterator[Measure]:
    sgemm = _errors(rows, "sgemm")
    bars = sgemm | {data: LOOSE for data in DATA if data not in UNIFORM}
    for name, allowed, of in (
        ("staged_accuracy", sgemm, ("staged",)),
        ("int8_accuracy", bars, groups.FRONTIER),
        ("strassen_accuracy", sgemm, groups.STRASSEN),
    ):
        for implementation in of:
            ratios = [allowed[data] / error for data, error in _errors(rows, implementation).items() if data in allowed]
            if ratios:
                yield Measure(name, min(ratios), variant=_variant(implementation))
    for implementation in ("fp16", "three fp16"):
        ratios = [error / sgemm[data] for data, error in _errors(rows, implementation).items() if data in sgemm]
        if ratios:
            yield Measure("truncation_detected", min(ratios), variant=look(implementation).label)
    first, over = _least(rows, "staged", "first"), _least(rows, "staged", "sustained / three products")
    if first is not None:
        least, of_data = first
        yield Measure("staged_speed", least / FIRST_GOAL, variant=f"{FIRST_GOAL:g} TFLOP/s, first launches, {of_data}")
        yield Measure("faster_than_published", least / PUBLISHED, variant=of_data)
    if over is not None:
        least, of_data = over
        variant = f"{SUSTAINED_GOAL:g} times three products of the library, sustained, {of_data}"
        yield Measure("staged_speed", least / SUSTAINED_GOAL, variant=variant)
    for implementation in groups.FRONTIER:
        if (fast := _least(rows, implementation, "sustained / three products")) is not None:
            least, of_data = fast
            yield Measure("int8_speed", least / CHEAPER, variant=f"{_variant(implementation)}, {of_data}")
    staged = at(rows, "staged", N, N, N) or {}
    for implementation in groups.STRASSEN:
        row = at(rows, implementation, N, N, N) or {}
        if {"sustained"} <= set(row) & set(staged):
            yield Measure("strassen_speed", row["sustained"] / staged["sustained"], variant=_variant(implementation))
    checked = [row["mismatches"] for row in rows if "mismatches" in row]
    if checked:
        yield Measure("same_bits", sum(checked))


def _variant(implementation: str) -> str:
    return "" if implementation == "staged" else _SHORT.get(implementation, implementation)


def finding(rows: list[Row]) -> str:
    selected = [row for row in rows if row["data"] == "symmetric" and "first" in row and row.get("relative_l2")]
    best = [
        row
        for row in selected
        if not any(o["first"] > row["first"] and o["relative_l2"] < row["relative_l2"] for o in selected)
    ]
    best.sort(key=lambda row: -row["first"])
    frontier = [
        f"{look(row['contender']).label} ({row['first']:.3g} TFLOP/s, error {row['relative_l2']:.2g})" for row in best
    ]
    staged, plain = at(rows, "staged", N, N, N) or {}, at(rows, "fp16", N, N, N) or {}
    rates = {}
    if "sustained" in staged and "sustained" in plain:
        rates["first launches"] = {"staged": 3 * staged["first"], "library": plain["first"]}
        rates["sustained"] = {"staged": 3 * staged["sustained"], "library": plain["sustained"]}
    power = f"{staged['power_W']:.3g} W at {staged['clock_MHz']:.4g} MHz" if "power_W" in staged else ""
    return paragraph(
        ("on uniform [-1, 1] no other scheme is both faster and more accurate than", "; ".join(frontier)),
        ("TFLOP/s of the tensor cores, three products of staged and one of the library", rates),
        (f"staged, sustained, on the {one_gpu()}, where power limits it", power),
        ("outputs compared with the emulation", sum(int(row.get("checked", 0)) for row in rows), ".0f"),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
