"""MAGMA batched, figures 14 and 15: batches of 10 and of 100 products, real and half-complex, against cuBLAS."""

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from ..speed._look import plain_ticks
from ..speed._shapes import (
    BATCHED,
    LOOKS,
    RULES,
    cells_of,
    evaluate,
    line,
    multiprocessors,
    over_powers,
    plot,
    provenance,
    span,
)
from ._errors import PAPER
from ._speed import IN_LEGEND, NAMES, factors, speedups

CAPTION = f"""n×n×n products, 10 (open, dotted) and 100 (filled) in a call, fp32 sums: (a) HGEMM, (b) HCGEMM, fpemu's
kernels, interleaved, against cuBLAS, planar by four calls where it is complex; (c) speed-up over cuBLAS.
{provenance("magma/fig14")}"""
ASSUMPTIONS = [*RULES, BATCHED, "The paper prints only the largest sizes, 128 (HGEMM) and 256 (HCGEMM)."]
_COLOURS = {"real": (plotting.BLUE, "^"), "complex": (plotting.PURPLE, "D")}
cells = cells_of("magma/fig14")


def _look(look: Series, batch: int) -> Series:
    few = batch == shapes.FEW[0]
    return Series(f"{look.label}, {batch}", look.color, look.marker, ":" if few else "-", filled=not few)


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=6.8, share_y=False)
    for axis, data in zip(axes[:, 0], NAMES, strict=False):
        for name in (shapes.BASE, "ours"):
            for batch in shapes.FEW:
                plot(axis, line(rows, name, data=data, batch=batch), "rate", "M", _look(LOOKS[name], batch))
        plain_ticks(axis)
        axis.set_ylabel("TFLOP/s")
    factors(
        axes[2, 0],
        (
            (speedups(rows, data=data, batch=batch), _look(Series(f"{name} over cuBLAS", *_COLOURS[data]), batch))
            for data, name in NAMES.items()
            for batch in shapes.FEW
        ),
    )
    over_powers(axes, (8, 16, 32, 64, 128, 256))
    plotting.panel_titles(axes, [*NAMES.values(), "speed-up"])
    plotting.legend_below(figure, axes, 2, title=f"{IN_LEGEND}; 10 or 100 products")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    few, many = shapes.FEW
    for data, name in NAMES.items():
        first, second = (speedups(rows, data=data, batch=batch) for batch in shapes.FEW)
        change = [second[n] / first[n] for n in first if n in second]
        for word, end in (("least", min), ("largest", max)):
            if change:
                yield Measure("batch_size", end(change), variant=f"{name}, {word}")
    ours = {row["M"]: row["rate"] for row in line(rows, "ours", data="complex", batch=few)}
    other = {row["M"]: row["rate"] for row in line(rows, shapes.BASE, data="complex", batch=many)}
    reach = [ours[n] / other[n] for n in ours if n in other]
    if reach:
        yield Measure("ten_like_a_hundred", max(reach))


def finding(rows: list[Row]) -> str:
    of = {(data, batch): speedups(rows, data=data, batch=batch) for data in NAMES for batch in shapes.FEW}
    few, sms = shapes.FEW[0], multiprocessors()
    selected = line(rows, "ours", data="real", batch=few)
    growth = {}
    if len(selected) > 1:
        growth = {name: selected[-1][name] / selected[0][name] for name in ("operations", "seconds")}
    return paragraph(
        (
            "the speed-ups of fpemu over cuBLAS are",
            {f"{NAMES[data]}, {batch} products:": span(x.values()) for (data, batch), x in of.items()},
        ),
        (
            f"fpemu selects kernels for batches of {shapes.BATCH}: up to n = 128 one thread block computes a product, "
            f"so {few} products use {few} of {sms} multiprocessors",
            bool(sms) and any(x < 1 for (_, batch), each in of.items() if batch == few for x in each.values()),
        ),
        (f"from the smallest to the largest n, operations and time of {few} real products grow by", growth, ".3g×"),
        (
            "the times of a call in µs are",
            {f"n = {r['M']}:": 1e6 * r["seconds"] for r in selected[:: max(len(selected) - 1, 1)]} if growth else None,
        ),
        ("latency, and not arithmetic, determines the time", bool(growth)),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
