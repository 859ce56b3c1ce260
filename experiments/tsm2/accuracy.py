"""TSM2 and ISM2: the error of a chain of fused multiply-adds over its length k, in fp32 and fp64.

Both kernels give every entry of C to one thread, which adds its products one after another in a register: one chain of
FMAs, k ascending, for all tiles (t1, t2, t3, tcf). TSM2 multiplies a large matrix, k in the ten thousands, by a tall
and skinny one; ISM2 a tall and skinny matrix by a small one, k from 2 to 16. The paper has no error figure.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import inputs, metrics, plotting, simt
from fpemu.mma.device import Device
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._numeric import product_in_two
from .._rows import Row, in_legend, runs_by, size_axis
from ._chains import FORMATS, LOOK, NEAR, expected, farthest, on_powers, relative_l2
from ._chains import PAPER as PAPER

CAPTION = """Error over k of the chains of FMAs that TSM2 and ISM2 compute, operands uniform in [0, 1], against the
exact product, in units of the roundoff u (2^-24 in fp32, 2^-53 in fp64): (a) relative L2 error, (b) largest relative
error. k up to 16, shaded: the shapes of ISM2, a tall matrix times k×n; above: the shapes of TSM2, a large matrix times
k×n; n = 8 in both, few rows of the large one. Line: growth expected of independent roundings, without a fitted
parameter. All settings of the kernels'
parameters give these bits."""
ASSUMPTIONS = [
    "Every entry of C is one ascending chain of FMAs from zero in the format of the operands, for every tile.",
    """Operands are uniform in [0, 1], as in the paper, and n is 8. Rows of A are independent, so 32 rows represent the
    10240 to 30720 rows of TSM2, and 1000 rows the 10^4 to 10^7 rows of ISM2; at full size 256 and 10000 rows do.""",
    """The expected error assumes that the sum after t steps is t/4 and that the rounding errors are uniform and
    independent. A measured relative L2 error agrees with it if it is within 10 %.""",
]
TALL = (2, 4, 8, 16)


_LENGTHS = (*(2**i for i in range(5, 14)), *range(10240, 30721, 5120))


def cells(lengths: tuple[int, ...] = _LENGTHS, rows: tuple[int, int] = (10000, 256), runs: int = 20) -> list[Row]:
    tall, large = rows
    return [
        {"inputs": "uniform", "format": fmt, "m": tall if k in TALL else large, "n": 8, "k": k, "seed": seed}
        for k in [*TALL, *lengths]
        for fmt in FORMATS
        for seed in range(runs)
    ]


def cost(cell: Row) -> float:
    return float(cell["m"] * cell["n"] * cell["k"] + 10**5)


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    fmt = cell["format"]
    A, B = inputs.operands(cell["inputs"], cell["m"], cell["n"], cell["k"], cell["seed"], fmt, low=0.0, high=1.0)
    D = simt.gemm(A, B, fmt=fmt, device=device).astype(np.float64)
    head, tail = product_in_two(A, B, device)
    return {
        "relative_l2": relative_l2(D, head, tail),
        "max_relative": float(np.max(np.abs((D - head) - tail) / head)),
        "normwise": metrics.normwise(D, head, A, B),
    }


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 2, height=4.6)
    lengths = sorted({row["k"] for row in rows})
    large, tall = (end(row["m"] for row in rows) for end in (min, max))
    for axis, measure in zip(axes[:, 0], ("relative_l2", "max_relative"), strict=True):
        axis.axvspan(1.6, 22, color=plotting.GREY, alpha=0.15, linewidth=0, label=f"shapes of ISM2, m = {tall}")
        for fmt, look in LOOK.items():
            scaled = [[x * 2.0 ** FORMATS[fmt] for x in _runs(rows, k, fmt, measure)] for k in lengths]
            plotting.band(
                axis, lengths, scaled, look, markersize=6 if fmt == "fp64" else 3.5, zorder=3 - 0.1 * (fmt == "fp64")
            )
        if measure == "relative_l2":
            line = [expected(k, 24) * 2.0**24 for k in lengths]
            axis.plot(lengths, line, color=plotting.BLACK, linewidth=0.8, zorder=1.5, label="independent roundings")
        axis.plot(lengths, lengths, color=plotting.GREY, linestyle="--", linewidth=0.8, zorder=1.5, label="bound $k u$")
        on_powers(axis, "")
        axis.set(xlim=(1.6, 2**15.4), ylim=(0.15, 2000))
        axis.set_ylabel("error / $u$")
    size_axis(axes[-1, 0], lengths)
    axes[-1, 0].set_xlabel("$k$")
    plotting.panel_titles(axes, ["relative $L_2$ error", "largest relative error"])
    title = f"m×k times k×8; {in_legend(rows)}\nwhite: shapes of TSM2, m = {large}"
    plotting.legend_below(figure, axes, 2, title)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for fmt in FORMATS:
        ratio = farthest(ratio for (k, one), ratio in _ratios(rows).items() if one == fmt and k > max(TALL))
        if ratio is not None:
            yield Measure("independent_roundings", ratio, variant=fmt)


def finding(rows: list[Row]) -> str:
    last, ratios = max(row["k"] for row in rows), _ratios(rows)
    off = [k for (k, _), ratio in ratios.items() if abs(ratio - 1) > NEAR]
    names = {"root mean square": "relative_l2", "largest": "max_relative"}
    errors = {name: np.mean(_runs(rows, last, "fp32", measure)) for name, measure in names.items()}
    within = f"{len(ratios) - len(off)} of {len(ratios)}"
    return paragraph(
        ("the relative L2 error is {} times the expected error of independent roundings", ratios.values(), ".3f"),
        ("it is within 10 % at {}", f"{within} points" + (f" (the others have k up to {max(off)})" if off else "")),
        (
            f"the errors of an entry at k = {last} in units of u (bound: {last}) are",
            {n: x * 2.0**24 for n, x in errors.items()},
        ),
        ("in fp32 these errors are", errors, ".2g"),
    )


def _ratios(rows: list[Row]) -> dict[tuple[int, str], float]:
    """The mean error over the expected one, by k and format."""
    points = sorted({(row["k"], row["format"]) for row in rows})
    return {
        (k, fmt): float(np.mean(_runs(rows, k, fmt, "relative_l2"))) / expected(k, FORMATS[fmt]) for k, fmt in points
    }


_runs = runs_by("k", "format")


QUICK = {"lengths": (64, 256, 1024, 4096, 10240, 30720), "rows": (1000, 32), "runs": 3}
PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost, quick=QUICK)
