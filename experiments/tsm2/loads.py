"""TSM2 and ISM2: loads per element of A, B and C, counted by executing the published loops, and bank conflicts.

The counts of sections 3.2, 3.3 and 5.2, and Fig. 1: a tile of B in shared memory by columns or by rows.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import FP32, plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.simt.tallskinny import LoopTiles, Threads, concurrent_rows, inner, interleaved, outer, prefetched, shared

from .._findings import paragraph
from .._rows import Row

PAPER = """Rivera, Chen, Xiong, Song, Tao: ISM2: optimizing irregular-shaped matrix-matrix multiplication on GPUs
(2020), sections 3.2 to 3.4 and 5.2, Fig. 1, Algorithms 1 to 4, 6 and 7"""
CAPTION = """(a) Loads from global memory per element of A and of C by its thread, and per element of B by a block of
threads (in Algorithms 1 and 2 by each thread), in 512×512 times 512×16 with t1 = 128, t3 = 4 and tcf = 2; filled:
t2 = n = 16, open: t2 = 8 (Algorithms 1 and 2 have no t2). (b) Threads of a warp that access the same bank of shared
memory at once when they store a column of a tile of B, the tile stored by columns or by rows, over its width t2."""
ASSUMPTIONS = [
    """The loops are the published loops with corrected indices, as in fpemu.simt. A load of a tile of B into
    shared memory counts once for the block; a load by every thread counts once per thread.""",
    "Shared memory has 32 banks of the width of an element, and a warp has 32 threads, as in section 3.4.",
    """A count agrees with the published count if it is within 5 %, because Algorithm 7 prefetches the first elements of
    the next tile of A and loads them again.""",
]
M, K, N, T1, T3, TCF = 512, 512, 16, 128, 4, 2
ALGORITHMS = {"1": "V0", "2": "V1", "3": "V2", "4": "V3", "6": "opt 1", "7": "opt 2"}
ORDERS = ("columns", "rows")
WARP = BANKS = 32


def cells() -> list[Row]:
    loads = [(name, t2, "") for name in ALGORITHMS for t2 in ((N,) if name in "12" else (N, N // 2))]
    banks = [("", t2, order) for t2 in range(1, N + 1) for order in ORDERS]
    return [{"algorithm": name, "t2": t2, "stored by": order} for name, t2, order in (*loads, *banks)]


def evaluate(cell: Row) -> dict[str, float]:
    """The mean loads per element of A, B and C; for a tile of B the accesses to one bank."""
    if not cell["algorithm"]:
        return {"conflicts": float(conflicts(cell["t2"], cell["stored by"]))}
    tiles, name = LoopTiles(T1, cell["t2"], T3), ALGORITHMS[cell["algorithm"]]
    shapes = ((M, K), (K, N), (M, N))
    arguments: list[Any] = [*(_Counted(np.zeros(shape), np.zeros(shape)) for shape in shapes), FP32]
    threads = _Counting(*arguments)
    if name in ("V0", "V1"):
        (inner if name == "V0" else outer)(threads)
    elif name == "opt 1":
        for rows in concurrent_rows(M, TCF, T1):
            prefetched(threads.rows(rows), tiles)
    elif name == "opt 2":
        interleaved(threads, tiles, TCF)
    else:
        (shared if name == "V2" else prefetched)(threads, tiles)
    return {name: float(np.mean(getattr(threads, name).counts)) for name in "ABC"}


def conflicts(t2: int, stored_by: str) -> int:
    """Return the largest number of threads of a warp that store elements of a column of the tile to one bank.

    >>> [conflicts(2, order) for order in ORDERS]
    [1, 2]
    """
    rows = np.arange(WARP)
    addresses = rows * t2 if stored_by == "rows" else rows
    return int(np.bincount(addresses % BANKS).max())


class _Counted:
    """A matrix that counts the loads of its elements; views of all columns share the counts."""

    def __init__(self, values: NDArray[Any], counts: NDArray[Any]) -> None:
        self.values, self.counts, self.shape = values, counts, values.shape

    def __getitem__(self, key: Any) -> Any:
        if key[-1] == slice(None):
            return _Counted(self.values[key], self.counts[key])
        self.counts[key] += 1
        return self.values[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.values[key] = value


class _Counting(Threads):
    """Threads that load and store, and leave out the arithmetic."""

    def rows(self, rows: slice) -> Threads:
        return _Counting(self.A[..., rows, :], self.B, self.C[..., rows, :], self.fmt)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return c


_LOOK = {
    "A": Series("A", plotting.VERMILION, "o", ":"),
    "B": Series("B", plotting.BLUE, "s", ":"),
    "C": Series("C", plotting.GREEN, "^", ":"),
}
_STORED = {"columns": Series("by columns", plotting.BLACK, "o"), "rows": Series("by rows", plotting.VERMILION, "s")}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, height=2.8, share_y=False)
    left, right = axes[0]
    for shift, (matrix, look) in enumerate(_LOOK.items()):
        for row in (row for row in rows if row["algorithm"]):
            x = list(ALGORITHMS).index(row["algorithm"]) + 0.22 * (shift - 1)
            face = look.color if row["t2"] == N else "white"
            left.plot([x], [row[matrix]], **look.line(markerfacecolor=face, label=None, zorder=2.5 + (row["t2"] == N)))
        left.plot([], [], **look.line(linestyle="none", label=f"{matrix}, $t_2$ = {N}"))
    left.plot([], [], "o", color=plotting.GREY, markerfacecolor="white", label=f"open: $t_2$ = {N // 2}")
    left.set_yscale("log", base=2)
    left.set_xticks(range(len(ALGORITHMS)), [f"{name}\n{form}" for name, form in ALGORITHMS.items()])
    left.set(xlabel="algorithm of the paper", ylabel="loads per element")
    left.legend(fontsize=7)
    for order, look in _STORED.items():
        line = sorted((row["t2"], row["conflicts"]) for row in rows if row["stored by"] == order)
        if line:
            right.plot(*zip(*line, strict=True), **look.line())
    right.set(xlabel="$t_2$", ylabel="threads per bank")
    right.set_xticks([1, 2, 4, 8, 12, 16])
    right.set_ylim(0, 17)
    right.legend(title="tile of B stored", fontsize=7, title_fontsize=7)
    plotting.panel_titles(axes, ["loads from global memory", "conflicts in shared memory"])
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for row in rows:
        name, t2 = row["algorithm"], row["t2"]
        if not name:
            if t2 in (2, 4, 8, 16):
                most = t2 if row["stored by"] == "rows" else 1
                variant = f"by {row['stored by']} at t2 = {t2}"
                yield Measure("bank_conflicts", row["conflicts"] / most, variant=variant)
            continue
        width = "" if name in "12" else f" at t2 = {'n' if t2 == N else 'n/2'}"
        published = {"1": N, "2": 1}.get(name, N / t2)
        yield Measure("loads", row["A"] / published, variant=f"A in Alg. {name}{width}")
        if name in "34":  # once per block of t1 threads, where Algorithm 2 loads once per thread
            yield Measure("loads", row["B"], variant=f"B in Alg. {name}{width}")
        if name == "4":
            share = row["B"] * K * N * (M / T1) / (row["A"] * M * K)
            yield Measure("loads_of_b", share, variant=f"t2 = {t2}, t1 = {T1}")
        if name == "6":
            yield Measure("ism2_loads", row["B"] / (TCF * N / t2), variant=f"B in Alg. 6{width}")
        if name == "7":
            yield Measure("ism2_loads", row["C"] / (K / T1 * N / t2), variant=f"C in Alg. 7{width}")


def finding(rows: list[Row]) -> str:
    loads = {
        f"Alg. {row['algorithm']}, t2 = {row['t2']}:": f"A {row['A']:.3g}, B {row['B']:.3g}, C {row['C']:.3g}"
        for row in rows
        if row["algorithm"]
    }
    return paragraph(
        ("the numbers of loads per element are", loads),
        ("an element of B or C belongs to one tile of t2 columns, so its loads do not grow with n / t2", bool(loads)),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="M")
