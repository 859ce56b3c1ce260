"""H2SGEMM, figure 5: the number of blocks of A that fit into L1 (Equation 8), and the share of L1 that they fill.

Every block that Equation 10 allows with 0.5 <= b_n/b_m <= 2 is evaluated twice: with L1 of 524,288 fp16 numbers (1 MB,
as in the platform file of the Ascend 910A) and with 262,144 (512 KB, as in the text of the paper).
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from . import model as h2sgemm
from .model import PUBLISHED, Block

PAPER = "H2SGEMM: emulating FP32 GEMM on Ascend NPUs using FP16 units (2025), section 3.3.1, figure 5"
CAPTION = """All blocks allowed by Equation 10 with b_n/b_m between 0.5 and 2 (colour). (a) N_fused, Equation 8, over
the size of a block of A, L1 of 524,288 numbers; star: the published best block (176, 64, 176). (b) f, the share of L1
that blocks of A fill. (c) f if L1 were 262,144 numbers, the 512 KB of the text. Dashed: 0.92, the least f claimed."""
ASSUMPTIONS = [
    """The size of L1 is given in fp16 numbers: 524,288 (1 MB), with which N_fused = 44, or 262,144, the 512 KB of the
    text."""
]
SMALL_L1 = 262144


def cells() -> list[Row]:
    return [{"b_m": b.m, "b_k": b.k, "b_n": b.n} for b in h2sgemm.blocks() if 0.5 <= b.n / b.m <= 2]


def evaluate(cell: Row) -> dict[str, float]:
    """N_fused and f with 524,288 and with 262,144 numbers in L1; the optimal b_m that follows."""
    block = Block(cell["b_m"], cell["b_k"], cell["b_n"])
    numbers: dict[str, float] = {}
    for name, l1 in (("", h2sgemm.ASCEND_910A.numbers), (", 512 KB", SMALL_L1)):
        f = h2sgemm.used(block, l1)
        numbers |= {f"N_fused{name}": float(h2sgemm.fused(block, l1)), f"f{name}": f}
        numbers[f"optimal b_m{name}"] = h2sgemm.optimal_bm(f, l1)
        numbers[f"L1 over block{name}"] = l1 / (block.m * block.k)
    return numbers


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=6.6, share_x=False, share_y=False)
    size = np.array([row["b_m"] * row["b_k"] for row in rows])
    aspect = np.array([row["b_n"] / row["b_m"] for row in rows])
    shown = None
    for axis, column in zip(axes[:, 0], ("N_fused", "f", "f, 512 KB"), strict=True):
        values = [row[column] for row in rows]
        shown = axis.scatter(size, values, c=aspect, cmap="cividis", s=5, linewidths=0, vmin=0.5, vmax=2)
        axis.set_xlabel("size of a block of $A$, $b_m b_k$ numbers")
        star = {"color": plotting.VERMILION, "markersize": 9, "markeredgecolor": "black", "markeredgewidth": 0.5}
        here = [row[column] for row in rows if _block(row) == PUBLISHED]
        axis.plot([PUBLISHED.m * PUBLISHED.k] * len(here), here, "*", label="published block (176, 64, 176)", **star)
    axes[0, 0].set(xscale="log", yscale="log", ylabel="$N_{fused}$")
    for axis in axes[1:, 0]:
        axis.set(ylim=(0.82, 1.005), ylabel="$f$", xlim=(0, 17000))
        axis.set_xticks([0, 4096, 8192, 12288, 16384])
        axis.axhline(0.92, color=plotting.GREY, linestyle="--", linewidth=0.8, label="0.92, the least $f$ claimed")
    plotting.panel_titles(
        axes, ["blocks of $A$ in L1 of 1 MB", "share of 1 MB that they fill", "share of 512 KB that they fill"]
    )
    if shown is not None:
        plotting.legend_below(figure, axes, 2)
        plotting.colour_bar(figure, shown, list(axes[:, 0]), "$b_n/b_m$ of the block")
    return figure


def _block(row: Row) -> Block:
    return Block(row["b_m"], row["b_k"], row["b_n"])


_DIRECTIONS: dict[str, tuple[Callable[[Row], Any], Callable[[Row], int]]] = {
    "growing b_n/b_m at the same b_m and b_k": (lambda row: (row["b_m"], row["b_k"]), lambda row: row["b_n"]),
    "growing b_m b_k at the same b_n/b_m": (lambda row: row["b_n"] / row["b_m"], lambda row: row["b_m"] * row["b_k"]),
}


def _rising(rows: list[Row], column: str, same: Callable[[Row], Any], by: Callable[[Row], int]) -> float:
    """The share of the pairs of blocks, equal in one quantity, whose column is larger where the other is larger."""
    groups: dict[Any, list[tuple[int, float]]] = {}
    for row in rows:
        groups.setdefault(same(row), []).append((by(row), row[column]))
    pairs = [pair for group in groups.values() for pair in itertools.combinations(sorted(group), 2)]
    rising = [following > first for (x, first), (y, following) in pairs if y > x]
    return float(np.mean(rising)) if rising else 0.0


def measures(rows: list[Row]) -> Iterator[Measure]:
    for suffix, reading in (("", "L1 of 524,288 numbers (1 MB)"), (", 512 KB", "L1 of 262,144 numbers (512 KB)")):
        for row in rows:
            if _block(row) == PUBLISHED:
                yield Measure("n_fused_44", row[f"N_fused{suffix}"], reading)
        optima = [row[f"optimal b_m{suffix}"] for row in rows]
        yield Measure("bm_96", 100 * float(np.mean([16 * round(b / 16) == 96 for b in optima])), reading)
        yield Measure("l1_over_block", min(row[f"L1 over block{suffix}"] for row in rows), reading)
        for variant, (same, by) in _DIRECTIONS.items():
            yield Measure("f_falls", 100 * _rising(rows, f"f{suffix}", same, by), reading, variant)
        for end, name in ((min, "least"), (max, "largest")):
            yield Measure("f_range", end(row[f"f{suffix}"] for row in rows), reading, name)
            yield Measure("optimal_bm", end(row[f"optimal b_m{suffix}"] for row in rows), reading, name)


def finding(rows: list[Row]) -> str:
    row = next((row for row in rows if _block(row) == PUBLISHED), None)
    if row is None:
        return ""
    low = [str(_block(r)) for r in rows if r["f"] < 0.92]
    best = [r["optimal b_m"] for r in rows]
    sizes = {"524,288 numbers (1 MB)": "", "262,144 numbers (512 KB)": ", 512 KB"}
    return paragraph(
        (
            f"N_fused of {PUBLISHED} (printed: 44) by the size of L1 is",
            {name: row[f"N_fused{key}"] for name, key in sizes.items()},
            "g",
        ),
        ("the optimal b_m is", {name: row[f"optimal b_m{key}"] for name, key in sizes.items()}),
        ("the smallest f with 512 KB is {}", min(r["f, 512 KB"] for r in rows)),
        ("the platform file of the manufacturer states 1 MB, so the text should state 512 K numbers", True),
        (
            f"the number of the {len(rows)} blocks with f below 0.92 is {{}}",
            f"{len(low)}" + (f" ({', '.join(low[:3])})" if low else ""),
        ),
        ("the optimal b_m of all blocks is {}, and above 90 where f is nearly 1", best),
        (
            "for {} of the blocks the nearest multiple of 16 is below 96",
            float(np.mean([16 * round(b / 16) < 96 for b in best])),
            ".3g%",
        ),
        (
            f"the block {PUBLISHED} has f = {row['f']:.7g} and the optimum {row['optimal b_m']:.6g}; the middle of 80 "
            "and 96 is 88",
            True,
        ),
        ("Equation 10 is symmetric in b_m and b_n: as many blocks have b_n/b_m = 2 as 0.5, more have 1", True),
        ("without the floor f is 1 - 2 b_k b_n / L1", True),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="M")
