"""Errors of MAGMA's batched HGEMM over k, over the batch, and in successive updates of rank 16.

The paper's two shapes are square products and updates C <- C + A B with k = 16, as in a batched LU factorisation. A
factorisation makes many such updates one after another, and each writes its C in fp16. The largest error of a batch
grows with the number of its products.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs, metrics, plotting, reference
from fpemu.batched import hgemm
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, in_legend
from ._errors import CHIPS, METHODS, PAPER, RINGS, SMALL, curves, logarithmic, look

CAPTION = """Batched HGEMM of 16×16×k products, operands uniform in [-1, 1], against the exact product. (a) Relative L2
error over k. (b) Largest error relative to |A||B| in a batch over the number of its products, k = 16, which Hopper
adds in one block, so that its fp16 sums and fp32 sums have the same error. (c) Relative L2 error of C over the number
of updates C <- C + A B of rank 16, C in fp16 between them (beta = 1), and of the same sum as one product accumulated in
fp32. Summed in fp32 or in fp16 on Volta, Ampere and Hopper, or by the kernel for tiny matrices in fp16."""
ASSUMPTIONS = [
    "The paper states neither errors nor the distribution of its operands; here they are uniform in [-1, 1].",
    """Panels (a) and (c) have batches of 20 products. The kernel for tiny matrices supports n <= 32; the figure shows
    its chain for k up to 64.""",
    """An update reads C in fp16, adds it in the accumulator's format to the product (alpha = beta = 1) and writes it in
    fp16, as in the paper's post-processing.""",
]
ONE = "one product"
_OPTIONS: dict[str, dict[str, Any]] = METHODS | {SMALL: {"kernel": "magma-small", "accumulate": "fp16"}}
_LONGEST_SMALL = 64
"""Largest k for which the figure shows the chain of the kernel for tiny matrices."""
RANK = 16
_BATCH = 20


_RANKS = tuple(2**i for i in range(13))
_REPEATS = tuple(2**i for i in range(8))


def cells(
    runs: int = 20,
    ranks: tuple[int, ...] = _RANKS,
    batches: tuple[int, ...] = (1, 10, 100, 1000, 10000),
    repeats: tuple[int, ...] = _REPEATS,
) -> list[Row]:
    some = [("k", _BATCH, k, 1) for k in ranks]
    some += [("batch", batch, RANK, 1) for batch in batches]
    some += [("updates", _BATCH, RANK, updates) for updates in repeats]
    return [
        {"panel": panel, "inputs": "uniform", "n": 16, "k": k, "batch": batch, "updates": updates, "seed": seed}
        for panel, batch, k, updates in some
        for seed in range(runs)
    ]


def cost(cell: Row) -> float:
    return float(cell["batch"] * cell["n"] ** 2 * cell["k"] * cell["updates"])


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    n, K = cell["n"], cell["k"] * cell["updates"]
    A, B = inputs.operands(cell["inputs"], n, n, K, cell["seed"], "fp16", batch=cell["batch"], low=-1.0, high=1.0)
    exact = reference.matmul(A, B, device=device)
    results = {name: updated(A, B, cell["k"], options) for name, options in _OPTIONS.items()}
    results[ONE] = hgemm(A, B, hardware="ideal")
    numbers = {}
    for name, D in results.items():
        numbers[f"{name} relative_l2"] = metrics.relative_l2(D, exact)
        numbers[f"{name} normwise"] = metrics.normwise(D, exact, A, B)
    return numbers


def updated(A: NDArray[Any], B: NDArray[Any], k: int, options: dict[str, Any]) -> NDArray[np.float16]:
    """Return C after the successive updates of rank k whose operands are the columns of A and the rows of B."""
    C = hgemm(A[..., :k], B[..., :k, :], **options)
    for at in range(k, A.shape[-1], k):
        C = hgemm(A[..., at : at + k], B[..., at : at + k, :], C, beta=1.0, **options)
    return C


PANELS = {
    "k": ("relative_l2", "$k$", f"one product, batches of {_BATCH}"),
    "batch": ("normwise", "products in the batch", f"one product, $k$ = {RANK}"),
    "updates": ("relative_l2", "updates of rank 16", f"successive updates, batches of {_BATCH}"),
}


def _look(name: str) -> Series:
    return Series("one product, fp32", plotting.GREY, "x", "-.") if name == ONE else look(name)


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=7.2, share_x=False, share_y=False)
    for axis, (panel, (measure, label, _)) in zip(axes[:, 0], PANELS.items(), strict=True):
        points = _points(rows, panel)
        curves(
            axis,
            points,
            [*METHODS, SMALL, *([ONE] if panel == "updates" else [])],
            lambda name, x, panel=panel, measure=measure: (  # type: ignore[misc]
                []
                if name == SMALL and panel == "k" and x > _LONGEST_SMALL
                else _runs(rows, panel, x, f"{name} {measure}")
            ),
            _look,
        )
        logarithmic(axis, points[::2] if len(points) > 8 else points, base=10 if panel == "batch" else 2)
        axis.set_xlabel(label)
        axis.set_ylabel("relative $L_2$ error" if measure == "relative_l2" else "largest error / $|A||B|$")
    plotting.panel_titles(axes, [title for _, _, title in PANELS.values()])
    title = f"16 × 16 × $k$ products, {in_legend(rows)};\n{RINGS}"
    plotting.legend_below(figure, axes, 2, title=title)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    updates = [x for x in _points(rows, "updates") if x > 1]
    if updates:
        for d in ("fp32", "fp16"):
            least = min(_mean(rows, "updates", updates[-1], f"{chip} {d}") for chip in CHIPS)
            loss = least / _mean(rows, "updates", updates[-1], ONE)
            yield Measure("fp16_between_updates_detected", loss, variant=f"sums in {d}")


def finding(rows: list[Row]) -> str:
    lengths, batches = _points(rows, "k"), _points(rows, "batch")
    updates = [x for x in _points(rows, "updates") if x > 1]
    statements: list[tuple[Any, ...]] = []
    if lengths:
        last = lengths[-1]
        statements += [
            (
                f"with fp32 sums and one rounding to fp16 the error is {{}} at k = {lengths[0]} to {last}",
                [_mean(rows, "k", k, f"{chip} fp32") for chip in CHIPS for k in lengths],
            ),
            (
                f"with fp16 sums the errors at k = {last} are",
                {chip.capitalize(): _mean(rows, "k", last, f"{chip} fp16") for chip in CHIPS},
                ".2g",
            ),
        ]
    if batches:
        worst = {
            f"{batch} product{'s' * (batch > 1)}": {
                d: _mean(rows, "batch", batch, f"volta {d}", "normwise") for d in ("fp32", "fp16")
            }
            for batch in (batches[0], batches[-1])
        }
        statements.append(
            ("the largest errors relative to |A||B| on Volta, with fp32 and with fp16 sums, are", worst, ".2g")
        )
    if updates:
        last = updates[-1]
        once = _mean(rows, "updates", last, ONE)
        ratio = {look(name).label: _mean(rows, "updates", last, name) / once for name in METHODS}
        errors = [_mean(rows, "updates", x, "hopper fp32") for x in updates]
        growth = float(np.polyfit(np.log2(updates), np.log2(errors), 1)[0]) if len(updates) > 1 else None
        statements += [
            (
                f"the errors after {last} updates with C in fp16 between them, relative to one product, are",
                ratio,
                ".3g×",
            ),
            ("with fp32 sums the error grows as the number of updates to the power of {}", growth, ".2f"),
        ]
    return paragraph(*statements)


def _points(rows: list[Row], panel: str) -> list[int]:
    return sorted({row[panel] for row in rows if row["panel"] == panel})


def _runs(rows: list[Row], panel: str, x: int, column: str) -> list[float]:
    return [row[column] for row in rows if row["panel"] == panel and row[panel] == x]


def _mean(rows: list[Row], panel: str, x: int, name: str, measure: str = "relative_l2") -> float:
    return float(np.mean(_runs(rows, panel, x, f"{name} {measure}")))


QUICK = {
    "runs": 3,
    "ranks": tuple(4**i for i in range(7)),
    "batches": (1, 10, 100, 1000),
    "repeats": tuple(2**i for i in range(7)),
}
PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost, quick=QUICK)
