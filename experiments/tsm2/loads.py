"""TSM2 and ISM2: loads per element of A, B and C, counted by executing the published loops, and bank conflicts.

The counts of sections 3.2, 3.3 and 5.2, and Fig. 1: a tile of B in shared memory by columns or by rows.
"""

import itertools
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
TRANSACTIONS = (128, 32)
"""Bytes"""
NARROW = (2, 4)
"""t2 of Algorithm 4 on a K40c and a P100 that the figure does not show."""


def cells(algorithms: str = "123467") -> list[Row]:
    loads = [(name, t2, "") for name in algorithms for t2 in ((N,) if name in "12" else (N, N // 2))]
    loads += [("4", t2, "") for t2 in NARROW if "4" in algorithms]
    banks = [("", t2, order) for t2 in range(1, N + 1) for order in ORDERS]
    return [{"algorithm": name, "t2": t2, "stored by": order} for name, t2, order in (*loads, *banks)]


def evaluate(cell: Row) -> dict[str, float]:
    """The mean loads per element of A, B and C, and the share of the bytes of transactions that a warp uses when it
    loads A and B; for a tile of B the accesses to one bank."""
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
    numbers = {name: float(np.mean(getattr(threads, name).counts)) for name in "ABC"}
    neighbours = np.arange(WARP)  # rows of A, or of a column of a tile of B
    loaded = {"A": neighbours, "B": neighbours * (name not in ("V0", "V1"))}
    for matrix, elements in loaded.items():
        numbers |= {f"{matrix} used of {size}": used(elements, size) for size in TRANSACTIONS}
    return numbers


def used(elements: NDArray[Any], size: int) -> float:
    """Return the share of the bytes of transactions of a size that a warp's loads of fp64 elements use.

    >>> used(np.zeros(32, int), 128), used(np.arange(32), 128)
    (0.0625, 1.0)
    """
    addresses = 8 * np.unique(elements)
    return float(8 * len(addresses) / (size * len(np.unique(addresses // size))))


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
    figure, axes = plotting.figure(1, 2, height=4.4, share_x=False, share_y=False)
    left, right = axes[:, 0]
    for shift, (matrix, look) in enumerate(_LOOK.items()):
        for row in (row for row in rows if row["algorithm"] and row["t2"] not in NARROW):
            x = list(ALGORITHMS).index(row["algorithm"]) + 0.22 * (shift - 1)
            face = look.color if row["t2"] == N else "white"
            left.plot([x], [row[matrix]], **look.line(markerfacecolor=face, label=None, zorder=2.5 + (row["t2"] == N)))
        left.plot([], [], **look.line(linestyle="none", label=f"{matrix}, $t_2$ = {N}"))
    left.plot([], [], "o", color=plotting.GREY, markerfacecolor="white", label=f"open: $t_2$ = {N // 2}")
    left.set_yscale("log", base=2)
    left.set_xticks(range(len(ALGORITHMS)), [f"{name}\n{form}" for name, form in ALGORITHMS.items()])
    left.set(xlabel="algorithm of the paper", ylabel="loads per element")
    left.legend(title=f"{M}×{K} times {K}×{N}, $t_1$ = {T1}")
    for order, look in _STORED.items():
        line = sorted((row["t2"], row["conflicts"]) for row in rows if row["stored by"] == order)
        if line:
            right.plot(*zip(*line, strict=True), **look.line())
    right.set(xlabel="$t_2$", ylabel="threads per bank")
    right.set_xticks(range(1, N + 1))
    right.set_ylim(0, 17)
    right.legend(title="tile of B stored")
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
        if name == "4":
            share = row["B"] * K * N * (M / T1) / (row["A"] * M * K)
            yield Measure("loads_of_b", share, variant=f"t2 = {t2}, t1 = {T1}")
            if t2 in NARROW:
                continue
        if name in "23":
            for matrix, size in itertools.product("AB", TRANSACTIONS):
                if (column := f"{matrix} used of {size}") in row and t2 == N:
                    published = 8 / size if name + matrix == "2B" else 1.0
                    case = f"{matrix} in Alg. {name}, transactions of {size} bytes"
                    yield Measure("access_efficiency", row[column] / published, variant=case)
        width = "" if name in "12" else f" at t2 = {'n' if t2 == N else 'n/2'}"
        published = {"1": N, "2": 1}.get(name, N / t2)
        yield Measure("loads", row["A"] / published, variant=f"A in Alg. {name}{width}")
        if name in "34":  # once per block of t1 threads, where Algorithm 2 loads once per thread
            yield Measure("loads", row["B"], variant=f"B in Alg. {name}{width}")
        if name == "6":
            yield Measure("ism2_loads", row["B"] / (TCF * N / t2), variant=f"B in Alg. 6{width}")
        if name == "7":
            yield Measure("ism2_loads", row["C"] / (K / T1 * N / t2), variant=f"C in Alg. 7{width}")


def finding(rows: list[Row]) -> str:
    loads = {
        f"Alg. {row['algorithm']}, t2 = {row['t2']}:": ", ".join(f"{matrix} {row[matrix]:.3g}" for matrix in "ABC")
        for row in rows
        if row["algorithm"]
    }
    return paragraph(
        ("the numbers of loads per element are", loads),
        ("an element of B or C belongs to one tile of t2 columns, so its loads do not grow with n / t2", bool(loads)),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="M", version=2)
