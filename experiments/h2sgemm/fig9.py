"""H2SGEMM, figure 9: error over the sizes of the product, offset exponent 0."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.mma.device import Device
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, in_legend, runs_by, size_axis
from . import _methods as methods
from ._methods import KINDS, LOOKS, METHODS, PUBLISHED_ORDER, SGEMMS, evaluate_methods, means, ratios

PAPER = f"{methods.PAPER}, section 4.1, figure 9"
CAPTION = """Relative L2 error against the exact product at offset exponent 0 over (a, b) m = n with k = 64·44, (c, d) k
with m = 176 and n = 32, (e, f) m = n = k; operands uniform in [-1, 1] (left) and in [0, 1] (right); sb: scaling
exponent of H2SGEMM's residuals. Lines: median over the seeds; bands: quartiles. SGEMM by OpenBLAS on the paper's
Kunpeng 920 and on an x86 processor (Haswell), by cuBLAS on an H200 where an order is recorded, and as one chain of
FMAs. Without sb = 0, whose error at this exponent equals the error with sb = 12 (figure 8)."""
ASSUMPTIONS = [
    methods.ELEMENTWISE,
    "HGEMM rounds the operands to fp16 and accumulates one product in fp32; its result is fp32 or fp16.",
    methods.ORDERS,
    """The paper does not print the lengths of figure 9. Panels (c, d) have m = 176 and n = 32, the two lengths that the
    paper derives from its blocks and cores.""",
    "The paper does not state which of its two distributions figure 9 shows; this page shows both.",
    "The growth of an error is the exponent p of error ~ k^p, fitted by least squares to the logarithms.",
    methods.REFERENCE,
]

PANELS = {
    "m = n": ("$m = n$, for $k = 2816$", "k = 2816"),
    "k": ("$k$, for $m = 176$, $n = 32$", "m = 176, n = 32"),
    "m = n = k": ("$m = n = k$", "m = n = k"),
}
_COLUMNS = [name for name in METHODS if not name.startswith(("sb=0", "sb=6"))]


def cells(
    rows_and_columns: tuple[int, ...] = (11, 22, 44, 88, 176),
    depths: tuple[int, ...] = (64, 256, 1024, 2816, 8192, 16384, 45056),
    squares: tuple[int, ...] = (32, 64, 128, 256, 512),
    seeds: int = 20,
    hardware: str = methods.HARDWARE,
) -> list[Row]:
    return [
        {"hardware": hardware, "inputs": kind, "panel": panel, "length": x, "seed": seed, "m": m, "n": n, "k": k}
        for kind in KINDS
        for panel, lengths in zip(PANELS, (rows_and_columns, depths, squares), strict=True)
        for x in lengths
        for m, n, k in [{"m = n": (x, x, 64 * 44), "k": (176, 32, x), "m = n = k": (x, x, x)}[panel]]
        for seed in range(seeds)
    ]


def cost(cell: Row) -> float:
    return float(cell["m"] * cell["n"] * cell["k"] + 10**6)  # 10^6: the work that does not depend on the sizes


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    return evaluate_methods(cell, _COLUMNS, device)


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, 3, height=6.6, share_x=False)
    runs = runs_by("inputs", "panel", "length")
    for line, (panel, (label, _)) in zip(axes, PANELS.items(), strict=True):
        lengths = sorted({row["length"] for row in rows if row["panel"] == panel})
        for axis, kind in zip(line, KINDS, strict=True):
            for name in _COLUMNS:
                points = [x for x in lengths if runs(rows, kind, panel, x, name)]
                if points:
                    plotting.band(axis, points, [runs(rows, kind, panel, x, name) for x in points], LOOKS[name])
            size_axis(axis, lengths)
            axis.set_xticks(lengths, [str(x) if i % 3 == 0 or len(lengths) < 6 else "" for i, x in enumerate(lengths)])
            axis.set(yscale="log", ylim=(3e-8, 1e-3), xlabel=label)
        line[0].set_ylabel("relative $L_2$ error")
    plotting.panel_titles(axes, ["$[-1,\\,1]$", "$[0,\\,1]$"] * len(PANELS))
    plotting.legend_below(figure, axes, 2, in_legend(rows))
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for kind, interval in zip(KINDS, ("[-1, 1]", "[0, 1]"), strict=True):
        flat = [means(rows, name, "length", inputs=kind, panel="m = n").values() for name in _COLUMNS]
        yield Measure("stable_over_mn", max(max(e) / min(e) for e in flat if len(e) > 1), variant=interval)
        for panel in ("k", "m = n = k"):
            variant = f"{interval}, {PANELS[panel][1]}"
            error = {name: means(rows, name, "length", inputs=kind, panel=panel) for name in _COLUMNS}
            ours = error["sb=12 term-wise"]
            for reading, column in SGEMMS.items():
                both = {x: error[column][x] for x in ours if x in error[column]}
                if len(both) > 2:
                    case = f"{variant}, k = {min(both)} to {max(both)}"
                    slower = growth(both) - growth({x: ours[x] for x in both})
                    lower = min(ratios(both, ours).values())
                    for name, value in (("termwise_scales_better", slower), ("termwise_lower_over_k", lower)):
                        if reading == PUBLISHED_ORDER:
                            yield Measure(name, value, variant=case)
                        else:
                            yield Measure(f"{name}_other_orders", value, reading, case)
            element = error["sb=12 element-wise"]
            yield Measure("termwise_outscales_elementwise", growth(element) - growth(ours), variant=variant)


def finding(rows: list[Row]) -> str:
    statements: list[tuple[Any, ...]] = []
    for kind, interval in zip(KINDS, ("[-1, 1]", "[0, 1]"), strict=True):
        error = {name: means(rows, name, "length", inputs=kind, panel="k") for name in _COLUMNS}
        ks = sorted(error["sb=12 term-wise"])
        named = {"term-wise": "sb=12 term-wise"} | SGEMMS
        powers = {text: f"k^{growth(error[name]):.2f}" for text, name in named.items() if len(error[name]) > 2}
        statements.append((f"the errors on operands in {interval}, k = {ks[0]} to {ks[-1]}, grow as", powers))
        for text, name in SGEMMS.items():
            ratio = ratios(error[name], error["sb=12 term-wise"])
            statements.append(
                (
                    f"the error of {text} is {{}} the term-wise error at k = {min(ratio)} to {max(ratio)}",
                    [*ratio.values()],
                    ".2g×",
                )
            )
    return paragraph(*statements)


def growth(errors: Mapping[int, float]) -> float:
    """The exponent p of errors ~ lengths^p, by least squares in the logarithms."""
    x, y = np.log(list(errors)), np.log(list(errors.values()))
    x = x - x.mean()
    return float(np.sum(x * y) / np.sum(x * x))


QUICK = {
    "rows_and_columns": (16, 24, 32, 48, 64),
    "depths": (64, 256, 1024, 2816),
    "squares": (32, 64, 128, 256),
    "seeds": 3,
}
PAGE = Page(
    PAPER,
    lambda given: f"{CAPTION} {methods.unit(given)}",
    lambda given: [methods.cube(given), *ASSUMPTIONS],
    cells,
    evaluate,
    draw,
    measures,
    finding,
    cost,
    quick=QUICK,
)
