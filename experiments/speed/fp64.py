"""FP64 and complex products from int8 tensor cores: error, speed and energy against cuBLAS and GEMMul8 on one GPU."""

import functools
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, size_axis
from ._look import plain_ticks
from ._record import measured_on, record_file

PAPER = "Speed on one GPU, measured here: yardsticks and goals of this project"
PEER = "GEMMul8 fast"
SERIES = {
    "accurate": Series("ozaki2, 15 moduli, accurate", plotting.BLUE, "o"),
    "invariant, nearest": Series("ozaki2, 15 (e, f: 7) moduli, invariant, nearest", plotting.GREEN, "s"),
    "invariant, nearest, 14": Series(
        "ozaki2, 14 (e, f: 6) moduli, invariant, nearest", plotting.GREEN, "s", "--", filled=False
    ),
    "exact": Series("ozaki, mode CR", plotting.PURPLE, "*"),
    "GEMMul8 accurate": Series("GEMMul8, 15 (c, d, h: 14; e, f: 7) moduli, accurate", plotting.ORANGE, "^"),
    PEER: Series("GEMMul8, 15 (c, d, h: 14; e, f: 7) moduli, fast", plotting.VERMILION, "v"),
    "library": Series("cuBLAS DGEMM, ZGEMM, CGEMM", plotting.BLACK, "x", "--"),
}
SHORT = {"invariant, nearest, 7": "invariant, nearest", "invariant, nearest, 6": "invariant, nearest, 14"}
"""Ways of complex64, and those with as many moduli for their format"""
OURS = ("accurate", "invariant, nearest", "invariant, nearest, 14")
KINDS = {"real": "float64", "complex": "complex128", "complex64": "complex64"}
ERROR_N = 8192
ASSUMPTIONS = [
    """Whole calls on torch tensors of one GPU, alternating in one process, in two rounds; the mean. First: eight
    calls after a pause of 0.5 s. Throughput is 2n³ / time, of complex products 8n³ / time. Real products were measured
    on another H200 than complex ones.""",
    """Operands are (u − 0.5) exp(0.5 g) with u uniform in [0, 1) and g normal. Errors are those of samples of rows and
    columns against sums in long double.""",
    """Energy is read from the counter of the GPU around a run without a pause of 0.5 s.""",
]


def _record() -> dict[str, Any]:
    path = record_file("h200_fp64.json")
    return _read(path.read_bytes()) if path.is_file() else {}


@functools.lru_cache(maxsize=4)
def _read(data: bytes) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(data)
    return record | {"digest": hashlib.sha256(data).hexdigest()[:12]}


def provenance() -> str:
    """Return the GPU, its driver, the libraries and the date, for the caption."""
    head = _record()
    if not head:
        return "No record of fp64 products is here."
    return measured_on({"device": head | {"library": f"{head['library']}, PyTorch {head['torch']}"}}, {head["date"]})


CAPTION = f"""(a), (c), (e) Relative L2 error against effective throughput, n = {ERROR_N}, first calls after a pause,
for real, complex128 and complex64 products. (b), (d), (f) Throughput relative to cuBLAS. (g), (h) Energy per product
relative to cuBLAS, sustained. {provenance()}"""


def cells() -> Iterator[Row]:
    record = _record()
    for row in record.get("rows", ()):
        yield {"kind": row["kind"], "n": row["n"], "way": row["way"], "record": record["digest"]}


def evaluate(cell: Row) -> dict[str, float]:
    """Return first and sustained throughput in TFLOP/s, the joules of a product, and the relative L2 error."""
    rows = {(row["kind"], row["n"], row["way"]): row for row in _record()["rows"]}
    row = rows[cell["kind"], cell["n"], cell["way"]]
    return {name: row[name] for name in ("first", "sustained", "joules", "error") if name in row}


def _line(rows: list[Row], kind: str, way: str, column: str) -> dict[int, float]:
    """Return a column by n."""
    ours = [row for row in rows if row["kind"] == kind and SHORT.get(row["way"], row["way"]) == way]
    line = {row["n"]: row[column] for row in ours if column in row}
    return dict(sorted(line.items()))


def _ratios(rows: list[Row], kind: str, way: str, column: str, base: str = "library") -> dict[int, float]:
    """Return the ratio of a column to that of another implementation, by n."""
    below = _line(rows, kind, base, column)
    return {n: x / below[n] for n, x in _line(rows, kind, way, column).items() if n in below}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, 4, height=8.4, share_x=False, share_y=False)
    for (error, speed), kind in zip(axes, KINDS, strict=False):
        for way, series in SERIES.items():
            first, errors = (_line(rows, kind, way, name).get(ERROR_N) for name in ("first", "error"))
            if first is not None and errors:
                error.plot([first], [errors], **series.line(linestyle=""))
        error.set(xlabel="throughput, TFLOP/s", ylabel="relative $L_2$ error", yscale="log")
        error.margins(0.15)
        error.set_xlim(left=0)
        _ratio_panel(speed, rows, kind, "first", "speed / cuBLAS")
    for axis, kind in zip(axes[3], KINDS, strict=False):
        _ratio_panel(axis, rows, kind, "joules", "energy / cuBLAS")
    panels = [f"{what}, {kind}" for kind in KINDS.values() for what in ("error", "speed")]
    plotting.panel_titles(axes, [*panels, "energy, float64", "energy, complex128"])
    plotting.legend_below(figure, axes, 1, "n×n×n, whole calls on one GPU")
    return figure


def _ratio_panel(axis: Any, rows: list[Row], kind: str, column: str, label: str) -> None:
    """Draw a column relative to cuBLAS, over n."""
    ticks: set[int] = set()
    for way, series in SERIES.items():
        ratios = _ratios(rows, kind, way, column)
        ticks |= ratios.keys()
        if ratios:
            axis.plot(ratios.keys(), ratios.values(), **series.line(label="_" + series.label))
    size_axis(axis, sorted(ticks))
    axis.set(xlabel="$n$", ylabel=label)
    plain_ticks(axis)


def measures(rows: list[Row]) -> Iterator[Measure]:
    for kind, name in (("real", "fp64_real"), ("complex", "fp64_complex"), ("complex64", "fp32_complex")):
        best = [_ratios(rows, kind, way, "first", PEER) for way in OURS]
        for n in best[1]:
            yield Measure(name, max(line[n] for line in best if n in line), variant=f"n = {n}")
        errors = _ratios(rows, kind, "accurate", "error")
        if errors:
            yield Measure("fp64_accuracy", 1 / max(errors.values()), variant=KINDS[kind])


def finding(rows: list[Row]) -> str:
    def by_n(kind: str, way: str, base: str) -> dict[str, float]:
        return {f"n = {n}:": x for n, x in _ratios(rows, kind, way, "first", base).items()}

    joules = {f"{KINDS[kind]}, n = {n}:": x for kind in KINDS for n, x in _line(rows, kind, OURS[1], "joules").items()}
    return paragraph(
        *(
            (f"{KINDS[kind]}, invariant scaling, speed / {name}", by_n(kind, OURS[1], base))
            for kind in KINDS
            for base, name in (("library", "cuBLAS"), (PEER, "GEMMul8 fast"))
        ),
        ("joules of a product, invariant scaling", joules, ".2g"),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
