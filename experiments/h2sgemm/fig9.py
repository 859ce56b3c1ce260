"""H2SGEMM, figure 9: error over the sizes of the product, offset exponent 0."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.mma.device import Device
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, runs_by, size_axis
from . import _methods as methods
from ._methods import KINDS, LOOKS, METHODS, SGEMMS, evaluate_methods, means, ratios

PAPER = f"{methods.PAPER}, section 4.1, figure 9"
CAPTION = """Relative L2 error against the exact product at offset exponent 0 over (a, d) m = n with k = 64·44, (b, e) k
with m = 176 and n = 32, (c, f) m = n = k; (a-c) operands uniform in [-1, 1], (d-f) in [0, 1]; sb: scaling exponent of
H2SGEMM's residuals. Lines: mean over the seeds; bands: smallest to largest error. Black and green: SGEMM by OpenBLAS on
the paper's Kunpeng 920 and on an x86 processor (Haswell), and as one chain of FMAs. Without sb = 0,
whose error at this exponent equals the error with sb = 12 (figure 8). Ascend 910A cube as an assumed model."""
ASSUMPTIONS = [
    methods.CUBE,
    methods.ELEMENTWISE,
    "HGEMM rounds the operands to fp16 and accumulates one product in fp32; its result is fp32 or fp16.",
    methods.ORDERS,
    """The paper does not print the lengths of figure 9. Panels (b, e) have m = 176 and n = 32, the two lengths that the
    paper derives from its blocks and cores.""",
    "The paper does not state which of its two distributions figure 9 shows; this page shows both.",
    "The growth of an error is the exponent p of error ~ k^p, fitted by least squares to the logarithms.",
    methods.REFERENCE,
]

PANELS = {
    "m = n": ("$m = n$, $k = 64\\cdot 44$", "$m = n$", "k = 2816"),
    "k": ("$m = 176$, $n = 32$", "$k$", "m = 176, n = 32"),
    "m = n = k": ("$m = n = k$", "$m = n = k$", "m = n = k"),
}
_COLUMNS = [name for name in METHODS if not name.startswith(("sb=0", "sb=6"))]


def cells(
    rows_and_columns: tuple[int, ...] = (11, 22, 44, 88, 176),
    depths: tuple[int, ...] = (64, 256, 1024, 2816, 8192, 16384, 45056),
    squares: tuple[int, ...] = (32, 64, 128, 256, 512),
    seeds: int = 20,
) -> list[Row]:
    return [
        {
            "hardware": methods.HARDWARE,
            "inputs": kind,
            "panel": panel,
            "length": x,
            "seed": seed,
            "m": m,
            "n": n,
            "k": k,
        }
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
    figure, axes = plotting.figure(3, 2, height=5.6)
    runs = runs_by("inputs", "panel", "length")
    for line, kind in zip(axes, KINDS, strict=True):
        for axis, (panel, (_, label, _)) in zip(line, PANELS.items(), strict=True):
            lengths = sorted({row["length"] for row in rows if row["panel"] == panel})
            for name in _COLUMNS:
                if name != "SGEMM cuBLAS":
                    values = [runs(rows, kind, panel, x, name) for x in lengths]
                    plotting.band(axis, lengths, values, LOOKS[name])
            size_axis(axis, lengths if len(lengths) < 6 else lengths[::2])
            axis.set(yscale="log", ylim=(2e-8, 2e-3))
            axis.tick_params(axis="x", labelbottom=True)
            axis.set_xlabel(label)
        line[0].set_ylabel("relative $L_2$ error")
    titles = [f"{kind}, {title}" for kind in ("$[-1,\\,1]$", "$[0,\\,1]$") for title, *_ in PANELS.values()]
    plotting.panel_titles(axes, titles)
    plotting.legend_below(figure, axes[0, 0], 4)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for kind, interval in zip(KINDS, ("[-1, 1]", "[0, 1]"), strict=True):
        flat = [means(rows, name, "length", inputs=kind, panel="m = n").values() for name in _COLUMNS]
        yield Measure("stable_over_mn", max(max(e) / min(e) for e in flat if len(e) > 1), variant=interval)
        for panel in ("k", "m = n = k"):
            variant = f"{interval}, {PANELS[panel][2]}"
            error = {name: means(rows, name, "length", inputs=kind, panel=panel) for name in _COLUMNS}
            ours = error["sb=12 term-wise"]
            for reading, column in SGEMMS.items():
                both = {x: error[column][x] for x in ours if x in error[column]}
                if len(both) > 2:
                    case = f"{variant}, k = {min(both)} to {max(both)}"
                    slower = growth(both) - growth({x: ours[x] for x in both})
                    yield Measure("termwise_scales_better", slower, reading, case)
                    yield Measure("termwise_lower_over_k", min(ratios(both, ours).values()), reading, case)
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
PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost, quick=QUICK)
