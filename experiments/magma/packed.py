"""MAGMA batched, section 8.1: bits of a product that shares an instruction with others, and of the product alone.

Two arrangements place several products of one size in a 16×16×16 instruction. With the matrices of A below one another
and the matrices of B beside one another, the products are on the diagonal of D, over the same k. With the matrices of A
on a diagonal and the matrices of B below one another, the products are below one another, each over a separate k. The
hardware adds blocks of 4, 8 or 16 terms, whose borders may then lie inside a product. The zeros beside the diagonal are
multiplied by the entries of the other products, and an infinite entry gives 0 · Inf = NaN.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs, metrics, mma, plotting, reference
from fpemu.batched import hgemm
from fpemu.mma import MmaSpec
from fpemu.mma.device import Device
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, in_legend, runs_by
from ._errors import ACCUMULATORS, PAPER

CAPTION = """Share of the entries of n×n×n products whose sums differ in bits between a 16×16×16 instruction shared by
floor(16/n) products and an instruction for one product alone. Colours: matrices of A on a diagonal and matrices of B
below one another, so that each product has a separate k; black: A below one another, B beside one another, all over the
same k, largest share of any hardware. Sums in (a) fp16, (b) fp32, before they are rounded to fp16; operands uniform in
[-1, 1]."""
ASSUMPTIONS = [
    """The text does not state the arrangement of the products in figure 16; floor(16/n) products fit in both
    arrangements.""",
    "The instruction is 16×16×16 of CUDA; it is executed as hardware instructions over ascending k up to 16.",
    "The infinity is the entry [0, 0] of B in the first product of each instruction; all other entries are finite.",
]
CHIPS = ("volta", "turing", "ampere", "hopper", "cdna2")
ARRANGEMENTS = ("same k", "own k")
SIDE = 16


def cells(runs: int = 20, groups: int = 400) -> list[Row]:
    return [
        {"hardware": chip, "accumulate": d, "inputs": "uniform", "n": n, "groups": groups, "seed": seed}
        for n in range(1, SIDE // 2 + 1)
        for d in sorted(ACCUMULATORS)
        for chip in CHIPS
        if d == "fp32" or _has_fp16(chip)
        for seed in range(runs)
    ]


def cost(cell: Row) -> float:
    return float(cell["groups"] * SIDE**3)


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    n, g = cell["n"], SIDE // cell["n"]
    A, B = inputs.operands(cell["inputs"], n, n, n, cell["seed"], "fp16", batch=(cell["groups"], g), low=-1.0, high=1.0)
    spec = _spec(cell["hardware"], cell["accumulate"])
    alone, exact = mma.gemm(A, B, None, spec, device=device), reference.matmul(A, B, device=device)
    options = {"hardware": cell["hardware"], "accumulate": cell["accumulate"]}
    infinite = B.copy()
    infinite[:, 0, 0, 0] = np.inf
    numbers = {"alone relative_l2": metrics.relative_l2(hgemm(A, B, **options), exact)}
    for how in ARRANGEMENTS:
        sums = together(A, B, how, lambda x, y: mma.gemm(x, y, None, spec, device=device))
        results = together(A, B, how, lambda x, y: hgemm(x, y, **options))
        others = together(A, infinite, how, lambda x, y: hgemm(x, y, **options))[:, 1:]
        numbers[f"{how} differing"] = float(np.mean(_codes(sums) != _codes(alone)))
        numbers[f"{how} relative_l2"] = metrics.relative_l2(results, exact)
        numbers[f"{how} nan"] = float(np.mean(np.isnan(others)))
    return numbers


def together(A: NDArray[Any], B: NDArray[Any], how: str, multiply: Any) -> NDArray[Any]:
    """Return the products (groups, g, n, n), each group in one 16×16×16 product by ``multiply``."""
    groups, g, n, _ = A.shape
    x, y = (np.zeros((groups, SIDE, SIDE), np.float16) for _ in range(2))
    places = [slice(j * n, (j + 1) * n) for j in range(g)]
    first = slice(0, n)
    selected = how == "own k"
    for j, place in enumerate(places):
        x[:, place, place if selected else first] = A[:, j]
        y[:, place if selected else first, first if selected else place] = B[:, j]
    D = multiply(x, y)
    return np.stack([D[:, place, first if selected else place] for place in places], axis=1)


def same_cuts(n: int, block: int) -> bool:
    """Return whether blocks divide every product that starts at a multiple of n as they divide one that starts at 0."""
    cuts = [{k - j * n for k in range(j * n + 1, (j + 1) * n) if k % block == 0} for j in range(SIDE // n)]
    return all(cut == cuts[0] for cut in cuts)


def _spec(chip: str, accumulate: str) -> MmaSpec:
    return mma.spec(chip, "fp16", accumulate, "mma" if _has_fp16(chip) else None)


def _has_fp16(chip: str) -> bool:
    return not chip.startswith("cdna")


def _codes(x: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(x).view(np.uint16 if x.dtype == np.float16 else np.uint32)


_MARKED = {"turing": 7.0, "hopper": 6.0}  # these markers show beneath those that coincide with them


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 2, height=4.8)
    lengths = sorted({row["n"] for row in rows})
    black = plotting.Series("same $k$, largest of all", plotting.BLACK, "x", ":")
    for axis, d in zip(axes[:, 0], sorted(ACCUMULATORS), strict=True):
        for chip in CHIPS:
            runs = {n: x for n in lengths if (x := _runs(rows, chip, d, n, "own k differing"))}
            if runs:
                look = plotting.HARDWARE[chip]
                low, median, high = np.quantile(list(runs.values()), (0.25, 0.5, 0.75), axis=1)
                axis.plot(list(runs), median, **look.line(markersize=_MARKED.get(chip, 4)))
                axis.fill_between(list(runs), low, high, color=look.color, alpha=0.15, linewidth=0)
        shares = [(row["n"], row["same k differing"]) for row in rows if row["accumulate"] == d]
        most = {n: max(share for other, share in shares if other == n) for n, _ in sorted(shares)}
        axis.plot(list(most), list(most.values()), **black.line(markersize=4))
        axis.set_xticks(lengths)
        axis.set_ylabel("share of entries")
    axes[-1, 0].set_xlabel("$n$")
    plotting.panel_titles(axes, [f"other bits than alone, sums in {d}" for d in sorted(ACCUMULATORS)])
    title = f"{in_legend(rows)} of {rows[0]['groups']} instructions;\nTuring and Ampere coincide, Hopper is at zero"
    plotting.legend_below(figure, axes[1, 0], 3, title=title)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    if rows:
        yield Measure("same_k_same_bits", max(row["same k differing"] for row in rows), variant="over the same k")
    differing: dict[bool, list[float]] = {True: [], False: []}
    for row in rows:
        alike = same_cuts(row["n"], _spec(row["hardware"], row["accumulate"]).block)
        differing[alike].append(row["own k differing"])
    if differing[True]:
        yield Measure("same_k_same_bits", max(differing[True]), variant="own k, blocks divide all products alike")
    if differing[False]:
        yield Measure("own_k_other_bits_detected", min(differing[False]))


def finding(rows: list[Row]) -> str:
    other: dict[str, dict[str, str]] = {}
    for chip in CHIPS:
        for d in sorted(ACCUMULATORS):
            largest = {
                n: max(shares)
                for n in sorted({row["n"] for row in rows})
                if (shares := _runs(rows, chip, d, n, "own k differing"))
            }
            if largest:
                sizes = ", ".join(str(n) for n, share in largest.items() if share > 0)
                text = f"n = {sizes} (at most {max(largest.values()):.1%})" if sizes else "no n"
                name = f"{plotting.HARDWARE[chip].label}, blocks of {_spec(chip, 'fp32').block}"
                other.setdefault(name, {})[f"{d}:"] = text
    ratios = [row["own k relative_l2"] / row["alone relative_l2"] for row in rows]
    nan = {how.replace("own", "separate"): [row[f"{how} nan"] for row in rows] for how in ARRANGEMENTS}
    return paragraph(
        ("entries of products over separate k have other bits at", other),
        ("the error of these products is {} the error of each product alone", ratios, ".3f×"),
        (
            "an infinity in B of one product makes these shares of the entries of other products NaN by 0 · Inf",
            nan,
            ".3g%",
        ),
        (
            "a kernel that arranges products along k must therefore check for infinities and NaN first",
            max(nan["separate k"]) > 0,
        ),
    )


_runs = runs_by("hardware", "accumulate", "n")


PAGE = Page(
    PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost, quick={"runs": 3, "groups": 40}
)
