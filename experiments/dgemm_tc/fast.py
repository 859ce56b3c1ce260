"""DGEMM-TC, section 3.2, fast mode: the accuracy that the omitted products cost, and the number of products."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fpemu import inputs, metrics, plotting, reference, schemes
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.schemes import ozaki

from .._findings import paragraph
from .._rows import Row, in_legend, runs_by
from ._pages import TITAN, unit
from ._record import PAPER as SOURCE
from ._record import PHI

PAPER = f"{SOURCE}, section 3.2, fast mode"
CAPTION = """DP mode with the products p + q <= d + 1 (fast mode) and with all d² products of the same d slices, against
the exact product, operands (rand - 0.5)·exp(φ·randn): (a) largest relative error, (b) relative L2 error. DGEMM is one
chain of fused multiply-adds, in ascending and in descending order of k."""
UNIT = "The Turing row of the catalogue (documented in the literature) models the tensor cores of the Titan RTX."
ASSUMPTIONS = [
    "Algorithm 3 as printed determines d. Every product has 32 x 32 entries and k = n.",
    """The paper does not state the size of a negligible loss. A loss counts as negligible if it is at most a tenth of
    the error that it is compared with: of DGEMM, whose accuracy DP mode aims at, or of DP mode with all products.""",
]
LENGTHS = (1024, 4096)
ERRORS = {"largest relative error": "largest", "relative L2 error": "L2"}
_LOOK = {
    "DGEMM": Series("DGEMM", plotting.BLACK, "s", "--", filled=False),
    "reversed": Series("DGEMM, descending $k$", plotting.GREY, "x", ":"),
    "fast": Series("DP mode, fast", plotting.VERMILION, "o"),
    "all": Series("DP mode, all $d^2$ products", plotting.BLUE, "D", "-.", filled=False),
}


def assumptions(given: Mapping[str, Any]) -> list[str]:
    return [UNIT if given["hardware"] == TITAN else unit(given), *ASSUMPTIONS]


def cells(lengths: tuple[int, ...] = LENGTHS, rows: int = 32, seeds: int = 20, hardware: str = TITAN) -> list[Row]:
    common = {"hardware": hardware, "inputs": "phi", "rows": rows}
    return [{**common, "phi": phi, "n": n, "seed": seed} for n in lengths for phi in PHI for seed in range(seeds)]


def cost(cell: Row) -> float:
    return float(cell["n"])


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    rows, common = cell["rows"], {"hardware": cell["hardware"], "slices": "printed"}
    A, B = inputs.operands(cell["inputs"], rows, rows, cell["n"], cell["seed"], "fp64", phi=cell["phi"])
    exact = reference.matmul(A, B, device=device)
    counts = {name: ozaki.counts(A, B, fast=name == "fast", **common) for name in ("fast", "all")}
    results = {
        "DGEMM": schemes.gemm(A, B, scheme="dgemm", device=device),
        "reversed": schemes.gemm(A[:, ::-1], B[::-1], scheme="dgemm", device=device),
        "fast": schemes.gemm(A, B, scheme="ozaki", fast=True, device=device, **common),
        "all": schemes.gemm(A, B, scheme="ozaki", fast=False, device=device, **common),
    }
    numbers = {"slices": float(counts["fast"].slices[0])}
    numbers |= {f"{name} products": float(count.products) for name, count in counts.items()}
    for name, D in results.items():
        numbers[f"{name} largest"] = metrics.max_relative(D, exact)
        numbers[f"{name} L2"] = metrics.relative_l2(D, exact)
    return numbers


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 2, height=4.6, share_y=False)
    points = sorted({(row["n"], row["phi"]) for row in rows})
    for axis, (words, error) in zip(axes[:, 0], ERRORS.items(), strict=True):
        for number, (name, look) in enumerate(_LOOK.items()):
            # beside one another: some of the medians nearly coincide
            places = [i + 0.14 * (number - 1.5) for i in range(len(points))]
            runs = [_runs(rows, *point, f"{name} {error}") for point in points]
            low, middle, high = np.quantile(runs, (0.25, 0.5, 0.75), axis=1)
            axis.errorbar(places, middle, (middle - low, high - middle), **look.line(linestyle="none"))
        axis.set(yscale="log", ylabel=words.replace("L2", "$L_2$"))
    axes[1, 0].set_xticks(range(len(points)), [f"{n}\n$\\varphi$ = {phi:g}" for n, phi in points])
    axes[1, 0].set_xlabel("$n$")
    plotting.panel_titles(axes, list(ERRORS))
    size = rows[0]["rows"]
    plotting.legend_below(figure, axes[0, 0], 2, title=f"{in_legend(rows)}, {size} × {size} entries, $k = n$")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for row in rows:
        variant = f"n = {row['n']}, φ = {row['phi']:g}"
        for error in ERRORS.values():
            loss = row[f"fast {error}"] - row[f"all {error}"]
            for reading, other in (("of the error of DGEMM", "DGEMM"), ("of the error with all products", "all")):
                yield Measure("fast_loss", loss / row[f"{other} {error}"], f"{reading}, {error}", variant)
        d = row["slices"]
        yield Measure("fast_products", row["fast products"] / (d * (d + 1) / 2), variant=f"fast mode, {variant}")
        yield Measure("fast_products", row["all products"] / d**2, variant=f"all products, {variant}")
        yield Measure("dgemm_reversed", row["reversed largest"] / row["DGEMM largest"], variant=variant)


def finding(rows: list[Row]) -> str:
    more = {error: [row[f"fast {error}"] / row[f"all {error}"] for row in rows] for error in ERRORS.values()}
    return paragraph(
        ("the errors of fast mode, relative to the errors with all products, are", more, ".3g×"),
        ("the numbers of slices are {}", [row["slices"] for row in rows], "g"),
    )


_runs = runs_by("n", "phi")


PAGE = Page(
    PAPER,
    CAPTION,
    assumptions,
    cells,
    evaluate,
    draw,
    measures,
    finding,
    cost,
    quick={"lengths": LENGTHS[:1], "seeds": 3},
)
